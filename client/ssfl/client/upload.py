"""Sending a result: header, grant, chunks, receipt; resumes at the granted offset.

A slot is lent: if others wait, a long upload is asked to give it back. It then queues again and
goes on at the new grant's offset; that is no failure, and nobody has to join again.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from ssfl.client.client_stats import ClientStats
from ssfl.client.connection import Watchdog
from ssfl.client.errors import SlotReclaimed, Unavailable, translate
from ssfl.codec import ChunkSizer, pieces
from ssfl.durable.failpoints import failpoint
from ssfl.v1 import transfer_pb2

log = logging.getLogger(__name__)


def send(
    rpc: Callable[[Iterator[Any]], Any],
    header: Any,
    payload: memoryview,
    watchdog: Watchdog,
    *,
    wait_for_grant: bool = True,
    reached: Callable[[], None] = lambda: None,
    stats: ClientStats | None = None,
) -> transfer_pb2.Outcome:
    """Upload a payload and return what became of it; `reached` is called at every answer.

    `header` is the first request message; chunks are sent in messages of its type. Without
    `wait_for_grant` (a slot came with the task) they follow the header at once.
    """
    while True:
        try:
            return _send(
                rpc, header, payload, watchdog, reached, stats or ClientStats(),
                wait_for_grant=wait_for_grant,
            )  # fmt: skip
        except SlotReclaimed as error:
            log.info("queueing again: %s", error)
            wait_for_grant = True  # to learn where to go on


def _send(
    rpc: Callable[[Iterator[Any]], Any],
    header: Any,
    payload: memoryview,
    watchdog: Watchdog,
    reached: Callable[[], None],
    stats: ClientStats,
    *,
    wait_for_grant: bool,
) -> transfer_pb2.Outcome:
    granted = threading.Event()
    offset, began_s = 0, time.monotonic()
    over = threading.Event()

    def requests() -> Iterator[Any]:
        yield header
        if wait_for_grant:
            granted.wait()
        if over.is_set():
            return
        for start, data, crc32 in pieces([payload], offset, ChunkSizer(time.monotonic)):
            watchdog.feed()
            failpoint("client.chunk")
            chunk = transfer_pb2.Chunk(offset=start, data=bytes(data), crc32=crc32)
            yield type(header)(chunk=chunk)

    call = rpc(requests())
    outcome: transfer_pb2.Outcome | None = None
    try:
        with watchdog.watch(call):
            for response in call:
                watchdog.feed()
                reached()
                match response.WhichOneof("part"):
                    case "grant":
                        offset, began_s = response.grant.offset, time.monotonic()
                        stats.begin_transfer("up", offset)
                        granted.set()
                    case "receipt":
                        seconds = time.monotonic() - began_s
                        stats.end_transfer("up", len(payload) - offset, seconds)
                        # The coordinator ends the call: whoever cancels it here costs it 80
                        # bytes for good, if its last word is just on the way (grpc.aio).
                        outcome = response.receipt.outcome
    except grpc.RpcError as error:
        if outcome is None:
            raise translate(error) from error
    finally:
        over.set()
        granted.set()
        call.cancel()
    if outcome is None:
        raise Unavailable("the coordinator closed the upload without a receipt")
    return outcome
