"""Preflight: answers `ssfl check` before a Join, and exchanges noise to measure the connection.

The run does not change: no session, no member, no journal entry. The question is answered from the
published state. Measurements share the network with training clients, so they are limited in bytes,
seconds and concurrency. The ledger counts the question, the answer and the echoes. The noise is
logged but is not part of the run's bytes.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from ssfl.program.version import ssfl_version
from ssfl.server.accounting.ledger import Direction
from ssfl.server.broadcast.tasks import settings_to_message
from ssfl.server.errors import InvalidRequest, NoProgress, Refusal, TooManyChecks
from ssfl.server.loop.limits import Bucket, Limits
from ssfl.server.rpc import request_checks
from ssfl.server.rpc.call_context import CallContext
from ssfl.server.uploads.encoding_choice import is_coded
from ssfl.strategies.contract import ClientId
from ssfl.v1 import coordinator_pb2 as pb

MAX_NOISE_BYTES = 8 << 20  # each way
MAX_NOISE_S = 3.0  # of one download; ssfl-client stays below it in total, each way
MAX_PIECE_BYTES = 64 << 10
MAX_ECHOES = 64
MAX_DOWNLOADS = 256
CALL_S = 60.0  # a whole check
SILENCE_S = 20.0  # without a message
OPEN_CHECKS = 16
MEASURING = 2  # at once
QUESTIONS, QUESTION_EVERY_S = 100, 0.1  # a burst, then one per interval
MEASUREMENTS, MEASUREMENT_EVERY_S = 20, 10.0
CONTROL = ("question", "answer", "echo")  # counted in the ledger; all others are measurements

log = logging.getLogger(__name__)

Message = TypeVar("Message", pb.CheckRequest, pb.CheckResponse)


class Preflight:
    """Answers checks."""

    def __init__(
        self,
        context: CallContext,
        limits: Limits,
        upload_slots: int,
        reference_coding: str,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._context = context
        self._run = context.run
        self._clock = context.clock
        self._limits = limits
        self._upload_slots = upload_slots
        self._reference_coding = reference_coding
        self._wall = wall
        now_s = self._clock()
        self._questions = Bucket(QUESTIONS, QUESTION_EVERY_S, now_s)
        self._measurements = Bucket(MEASUREMENTS, MEASUREMENT_EVERY_S, now_s)
        self._open = self._measuring = 0

    async def answer(
        self, requests: AsyncIterator[pb.CheckRequest], peer: str = ""
    ) -> AsyncIterator[pb.CheckResponse]:
        """Answer one check, message by message."""
        wait_s = self._questions.spend(self._clock())
        if wait_s or self._open >= OPEN_CHECKS:
            raise _too_many(max(1.0, wait_s))
        self._open += 1
        call = _Call(self._clock() + CALL_S)
        try:
            request = await self._next(requests, call)
            if request is None or request.WhichOneof("part") != "question":
                raise InvalidRequest("a check begins with its question")
            call.client_id = request_checks.check_client_id(request.client_id)
            answer = pb.CheckResponse(answer=self._answer(request, peer))
            yield self._book(answer, call, Direction.DOWN)
            while (request := await self._next(requests, call)) is not None:
                async for response in self._respond(request, call):
                    yield self._book(response, call, Direction.DOWN)
        finally:
            self._open -= 1
            self._measuring -= call.measures
            if call.measures:
                up, down = call.measured[Direction.UP], call.measured[Direction.DOWN]
                log.info("%s measured its link: %d bytes up, %d down", call.client_id, up, down)

    async def _next(
        self, requests: AsyncIterator[pb.CheckRequest], call: "_Call"
    ) -> pb.CheckRequest | None:
        """Return the next message after counting it; None at the end."""
        left_s = min(SILENCE_S, call.ends_s - self._clock())
        try:
            request = await asyncio.wait_for(anext(requests), max(0.0, left_s))
        except TimeoutError:
            raise NoProgress(
                f"a check ends after {CALL_S:g} s, or after {SILENCE_S:g} s without a message"
            ) from None
        except StopAsyncIteration:
            return None
        self._book(request, call, Direction.UP)
        if call.client_id and request.client_id != call.client_id:
            raise InvalidRequest("a check is for one client: send its id in every message")
        return request

    async def _respond(
        self, request: pb.CheckRequest, call: "_Call"
    ) -> AsyncIterator[pb.CheckResponse]:
        match request.WhichOneof("part"):
            case "echo":
                call.echoes += 1
                if call.echoes > MAX_ECHOES:
                    raise InvalidRequest(f"more than {MAX_ECHOES} echoes")
                echo = pb.CheckEcho(number=request.echo.number, unix_time_s=self._wall())
                yield pb.CheckResponse(echo=echo)
            case "noise":
                self._begin_measuring(call)
                call.received += len(request.noise)
                if not 0 < len(request.noise) <= MAX_PIECE_BYTES:
                    raise InvalidRequest(f"noise of {len(request.noise)} bytes in one message")
                if call.received > MAX_NOISE_BYTES:
                    raise InvalidRequest(f"more than {MAX_NOISE_BYTES} bytes of noise")
                yield pb.CheckResponse(received=pb.CheckReceived(num_bytes=call.received))
            case "download":
                self._begin_measuring(call)
                async for response in self._download(request.download.num_bytes, call):
                    yield response
            case _:
                raise InvalidRequest("a check has one question, then echoes, noise and downloads")

    async def _download(self, num_bytes: int, call: "_Call") -> AsyncIterator[pb.CheckResponse]:
        call.downloads += 1
        call.downloaded += num_bytes
        if not num_bytes or call.downloaded > MAX_NOISE_BYTES or call.downloads > MAX_DOWNLOADS:
            raise InvalidRequest(
                f"at most {MAX_DOWNLOADS} downloads, of 1 to {MAX_NOISE_BYTES} bytes in all"
            )
        sent, ends_s = 0, min(call.ends_s, self._clock() + MAX_NOISE_S)
        while sent < num_bytes and self._clock() < ends_s:
            piece = os.urandom(min(MAX_PIECE_BYTES, num_bytes - sent))
            sent += len(piece)
            yield pb.CheckResponse(noise=piece)
        yield pb.CheckResponse(sent=pb.CheckSent(num_bytes=sent))

    def _begin_measuring(self, call: "_Call") -> None:
        """Acquire a measurement slot unless the call has one; raise TooManyChecks if full."""
        if call.measures:
            return
        if self._measuring >= MEASURING:
            raise _too_many(MAX_NOISE_S)
        if wait_s := self._measurements.spend(self._clock()):
            raise _too_many(wait_s)
        call.measures = True
        self._measuring += 1

    def _answer(self, request: pb.CheckRequest, peer: str) -> pb.CheckAnswer:
        state, manifest = self._run.state, self._run.manifest
        refusal = self._refusal(request)
        return pb.CheckAnswer(
            protocol_version=request_checks.PROTOCOL_VERSION,
            software=ssfl_version(),
            unix_time_s=self._wall(),
            run_id=state.run_id,
            phase=state.phase.value,
            rounds_done=state.rounds_done,
            num_clients=len(state.members),
            refusal_reason=refusal.reason if refusal else "",
            refusal=str(refusal) if refusal else "",
            settings=settings_to_message(state.settings),
            manifest=manifest.json if manifest else b"",
            reference_coding=is_coded(peer, self._reference_coding),
            upload_slots=self._upload_slots,
        )

    def _refusal(self, request: pb.CheckRequest) -> Refusal | None:
        """Return the refusal that a Join of this client would get; None if it would succeed."""
        question, state = request.question, self._run.state
        join = pb.JoinRequest(
            protocol_version=question.protocol_version,
            client_id=request.client_id,
            token=question.token,
            num_samples=question.num_samples or 1,
            encodings=request_checks.MUST_READ,
            software=question.software,
        )
        alive = self._context.presence.alive(ClientId(request.client_id), self._clock())
        proven = self._context.names_proven
        try:
            client = request_checks.check_join(join, state, alive=alive, name_proven=proven)
            self._limits.check_room(client, state)
        except Refusal as refusal:
            return refusal
        return None

    def _book(self, message: Message, call: "_Call", direction: Direction) -> Message:
        """Count a message: in the run's ledger unless it is part of a measurement."""
        num_bytes = message.ByteSize()
        if message.WhichOneof("part") in CONTROL:
            self._context.ledger.count("control", direction, num_bytes)
        else:
            call.measured[direction] += num_bytes
        return message


class _Call:
    def __init__(self, ends_s: float) -> None:
        self.ends_s = ends_s
        self.client_id = ""
        self.echoes = self.received = self.downloads = self.downloaded = 0
        self.measures = False
        self.measured = dict.fromkeys(Direction, 0)  # message bytes


def _too_many(wait_s: float) -> TooManyChecks:
    return TooManyChecks(f"other sites are being checked: try again in {max(1.0, wait_s):.0f} s")
