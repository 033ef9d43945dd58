"""Download of a task and its payloads; an interrupted download resumes where it stopped."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from ssfl.client.client_stats import ClientStats
from ssfl.client.coding import check_size
from ssfl.client.connection import Watchdog
from ssfl.client.errors import Refused, Unavailable, translate
from ssfl.codec import CodecError, Receiver
from ssfl.method.manifest import Manifest
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2

log = logging.getLogger("ssfl.client")

LOG_WAITING_AFTER_S = 10.0
MAX_VECTORS = 16


@dataclass
class Download:
    """A task and the part of its payloads that has arrived."""

    task: pb.Task
    payloads: list[transfer_pb2.Payload]
    buffer: bytearray
    receiver: Receiver

    def parts(self) -> Iterator[memoryview]:
        """Yield the bytes of each payload."""
        start, view = 0, memoryview(self.buffer)
        for payload in self.payloads:
            yield view[start : start + payload.num_bytes]
            start += payload.num_bytes


@dataclass
class Downloads:
    """Receives tasks; an unfinished download is kept across connections."""

    watchdog: Watchdog
    manifest: Manifest
    reached: Callable[[], None] = lambda: None  # called for every response of the coordinator
    current: Download | None = None  # the unfinished download
    logged_reason: str = ""  # the reason for waiting that was logged last
    stats: ClientStats = field(default_factory=ClientStats)

    def resume_fields(self) -> dict[str, Any]:
        """Return the request fields that let the coordinator resume the download."""
        if self.current is None or self.current.receiver.complete:
            return {}
        return {
            "task_digest": self.current.task.task_digest,
            "offset": self.current.receiver.offset,
        }

    def receive(self, call: Any) -> Download:
        """Return the complete task of a NextTask call, verified against its digests."""
        call_began_s = transfer_began_s = time.monotonic()
        offset = 0
        try:
            with self.watchdog.watch(call):
                for response in call:
                    self.watchdog.feed()
                    self.reached()
                    match response.WhichOneof("part"):
                        case "waiting" if time.monotonic() - call_began_s >= LOG_WAITING_AFTER_S:
                            self._log_waiting(response.waiting.reason)
                        case "task":
                            self._begin(response.task)
                            transfer_began_s, offset = time.monotonic(), response.task.offset
                            self.stats.begin_transfer("down", offset)
                        case "chunk":
                            self._chunk(response.chunk)
        except grpc.RpcError as error:
            raise translate(error) from error
        download, self.current = self.current, None
        if download is None or not download.receiver.complete:
            self.current = download
            raise Unavailable("the coordinator closed the stream before the task was complete")
        for payload, part in zip(download.payloads, download.parts(), strict=True):
            if hashlib.sha256(part).digest() != payload.digest:
                raise Unavailable("a download was damaged in transit")
        seconds = time.monotonic() - transfer_began_s
        self.stats.end_transfer("down", len(download.buffer) - offset, seconds)
        return download

    def _log_waiting(self, reason: str) -> None:
        if reason != self.logged_reason:
            log.info("waiting for %s", reason)
            self.logged_reason = reason

    def _begin(self, task: pb.Task) -> None:
        """Begin the download of `task`, or continue the current one if `task` resumes it."""
        payloads, current = _payloads(task), self.current
        same = current is not None and current.task.task_digest == task.task_digest
        if current and same and task.offset == current.receiver.offset:
            return
        for payload in payloads:
            check_size(payload, self.manifest)
        total = sum(payload.num_bytes for payload in payloads)
        self.current = Download(task, payloads, bytearray(total), Receiver(total))

    def _chunk(self, chunk: transfer_pb2.Chunk) -> None:
        """Check a chunk and copy it into the buffer."""
        download = self.current
        if download is None:
            raise Refused("the coordinator sent a chunk without a task")
        try:
            download.receiver.check(chunk.offset, chunk.data, chunk.crc32)
        except CodecError as error:
            self.current = None
            raise Unavailable(f"a download was damaged in transit: {error}") from error
        download.buffer[chunk.offset : chunk.offset + len(chunk.data)] = chunk.data


def _payloads(task: pb.Task) -> list[transfer_pb2.Payload]:
    """Return the payloads of a task in the order in which they are sent."""
    kind = task.WhichOneof("work")
    if kind is None:
        raise Refused("the coordinator asks for a kind of work that this version does not know")
    work = getattr(task, kind)
    if isinstance(work, pb.InitializeTask):
        return []
    parts = [(work.mask, "mask"), (work, "base")]
    if isinstance(work, pb.ScoreTask):
        parts = [(work, "initial"), *parts, (work, "resting")]
    found = [getattr(message, name) for message, name in parts if message.HasField(name)]
    if isinstance(work, pb.TrainTask):
        if len(work.vectors) > MAX_VECTORS:
            raise Refused(f"the coordinator announced more than {MAX_VECTORS} further vectors")
        found += [vector.values for vector in work.vectors]
    return found
