"""Upload of a result: header, grant, chunks, receipt; it resumes at the granted offset.

The coordinator may reclaim the slot of a long upload if other clients wait for one. The upload
then queues again and resumes at the offset of the next grant, without another Join.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
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
    """Upload a payload and return its outcome; call `reached` at every response.

    `header` is the first request message; chunks are sent in messages of its type. Without
    `wait_for_grant`, if the task came with a slot, chunks follow the header at once.
    """
    attempt = partial(_send, rpc, header, payload, watchdog, reached, stats or ClientStats())
    while True:
        try:
            return attempt(wait_for_grant)
        except SlotReclaimed as error:
            log.info("queueing again: %s", error)
            wait_for_grant = True  # the next grant names the offset


def _send(
    rpc: Callable[[Iterator[Any]], Any],
    header: Any,
    payload: memoryview,
    watchdog: Watchdog,
    reached: Callable[[], None],
    stats: ClientStats,
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
                        # The coordinator ends the call. Cancelling it here, while the last
                        # message is under way, would leak 80 bytes in its grpc.aio.
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
