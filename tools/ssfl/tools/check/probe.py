"""The client side of a `Check` call: a question, echoes, and random bytes both ways.

Bandwidth is measured over the second half of the random bytes (the noise), after TCP slow start.
Like the rates of `ssfl plan`, it counts IP packets with their headers.
"""

import os
import queue
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from ssfl.program.version import ssfl_version
from ssfl.tools.plan.link import Link, framed_bits
from ssfl.v1 import coordinator_pb2 as pb

PROTOCOL_VERSION = 1
TOKEN_BYTES = 16
ASK_S = 15.0  # deadline of question and echoes
MEASURE_S = 40.0  # deadline of the noise in both directions
NOISE_BYTES = 8 << 20
NOISE_S = 3.0
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 4 << 10, 64 << 10
ECHOES = 10
MIN_DURATION_S = 1e-4  # of a measurement: below it the clock is too coarse

ArrivalSamples = list[tuple[float, int]]  # (time, bytes received so far)


@dataclass(frozen=True, slots=True)
class Question:
    """What a client sends about itself in Check."""

    client_id: str
    token: bytes = b""  # of an earlier start of the client; empty: none
    num_samples: int = 0  # of its shard; 0: not known yet

    def message(self) -> pb.CheckRequest:
        question = pb.CheckQuestion(
            protocol_version=PROTOCOL_VERSION,
            token=self.token or secrets.token_bytes(TOKEN_BYTES),
            num_samples=self.num_samples,
            software=ssfl_version(),
        )
        return pb.CheckRequest(client_id=self.client_id, question=question)


@dataclass(frozen=True, slots=True)
class CoordinatorReply:
    """The coordinator's answer, the round trip and the clock difference."""

    answer: pb.CheckAnswer
    rtt_s: float  # the shortest of the echoes
    ahead_s: float  # the coordinator's clock minus ours


def ask(stub: Any, question: Question, echoes: int = ECHOES) -> CoordinatorReply:
    """Ask the question, then measure round trip and clocks; raise grpc.RpcError if refused."""
    with _Stream(stub, ASK_S) as stream:
        stream.put(question.message())
        answer = stream.next().answer
        rtt_s, ahead_s = float("inf"), 0.0
        for number in range(echoes):
            began_s, wall_s = time.monotonic(), time.time()
            echo = pb.CheckEcho(number=number)
            stream.put(pb.CheckRequest(client_id=question.client_id, echo=echo))
            response = stream.next().echo
            took_s = time.monotonic() - began_s
            if took_s < rtt_s:
                rtt_s, ahead_s = took_s, response.unix_time_s - (wall_s + took_s / 2)
        return CoordinatorReply(answer, rtt_s, ahead_s)


def measure(stub: Any, question: Question, rtt_s: float) -> Link:
    """Return the link as measured with noise; raise grpc.RpcError if refused or too slow."""
    with _Stream(stub, MEASURE_S) as stream:
        stream.put(question.message())
        stream.next()
        stream.put(question.client_id)
        up: ArrivalSamples = [(time.monotonic(), 0)]
        while up[-1][1] != stream.noise_bytes:
            received = stream.next().received.num_bytes
            up.append((time.monotonic(), received))
            stream.acknowledge(received)
        down = _download(stream, question.client_id)
    return Link(framed_bits(bytes_per_s(up)), framed_bits(bytes_per_s(down)), rtt_s)


def _download(stream: "_Stream", client_id: str) -> ArrivalSamples:
    """Request noise in parts, each no larger than the bytes received so far."""
    samples: ArrivalSamples = [(time.monotonic(), 0)]
    ends_s, asked, parts = time.monotonic() + NOISE_S, 0, 0
    while True:
        now_s, received = samples[-1]
        part = min(NOISE_BYTES - asked, max(MAX_PIECE_BYTES, received) - (asked - received))
        if part > 0 and now_s < ends_s and (part >= MAX_PIECE_BYTES or not asked - received):
            download = pb.CheckDownload(num_bytes=part)
            stream.put(pb.CheckRequest(client_id=client_id, download=download))
            asked, parts = asked + part, parts + 1
        if not parts:
            return samples
        response = stream.next()
        if response.WhichOneof("part") == "sent":
            parts -= 1
        else:
            samples.append((time.monotonic(), received + len(response.noise)))


def bytes_per_s(samples: ArrivalSamples) -> float:
    """Return the rate of the second half.

    >>> bytes_per_s([(0.0, 0), (9.0, 50), (10.0, 100), (11.0, 150)])
    50.0
    """
    last_s, total = samples[-1]
    half = [sample for sample in samples[:-1] if sample[1] >= total / 2] or samples[-2:-1]
    first_s, before = half[0]
    return (total - before) / max(MIN_DURATION_S, last_s - first_s)


class _Stream:
    """A `Check` call with a queue of requests."""

    def __init__(self, stub: Any, deadline_s: float) -> None:
        self.noise_bytes = -1  # total to send; -1: not known yet
        self._acknowledged = 0  # noise bytes that the coordinator has received
        self._changed = threading.Condition()
        self._outgoing: queue.SimpleQueue[pb.CheckRequest | str | None] = queue.SimpleQueue()
        self._call = stub.Check(self._requests(), timeout=deadline_s)

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_error: object) -> None:
        self._outgoing.put(None)
        self._call.cancel()

    def put(self, request: pb.CheckRequest | str) -> None:
        """Send a request, or noise for a client id: up to NOISE_BYTES, for up to NOISE_S."""
        self._outgoing.put(request)

    def acknowledge(self, num_bytes: int) -> None:
        """Record the noise bytes received so far, so that more may be sent."""
        with self._changed:
            self._acknowledged = num_bytes
            self._changed.notify()

    def next(self) -> pb.CheckResponse:
        try:
            response: pb.CheckResponse = next(self._call)
        except StopIteration:
            raise CallEnded from None
        return response

    def _requests(self) -> Iterator[pb.CheckRequest]:
        while (item := self._outgoing.get()) is not None:
            if isinstance(item, str):
                yield from self._pieces(item)
            else:
                yield item

    def _pieces(self, client_id: str) -> Iterator[pb.CheckRequest]:
        """Yield noise; bytes in flight are bounded, so that a slow link is not clogged."""
        size, sent, began_s = MIN_PIECE_BYTES, 0, time.monotonic()
        while self.noise_bytes < 0:
            with self._changed:
                self._changed.wait_for(partial(self._may_send, sent), NOISE_S)
            piece = os.urandom(min(size, NOISE_BYTES - sent))
            sent += len(piece)
            if sent == NOISE_BYTES or time.monotonic() - began_s > NOISE_S:
                self.noise_bytes = sent  # set before sending: the receipt may be quick
            yield pb.CheckRequest(client_id=client_id, noise=piece)
            size = min(2 * size, MAX_PIECE_BYTES)

    def _may_send(self, sent: int) -> bool:
        return sent - self._acknowledged <= max(MAX_PIECE_BYTES, self._acknowledged)


class CallEnded(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """The coordinator ended the call early."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INTERNAL

    def details(self) -> str:
        return "the coordinator ended the call early"

    def trailing_metadata(self) -> tuple[()]:
        return ()
