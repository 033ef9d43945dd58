"""Receives an upload: header, grant, chunks into the spool, verification, receipt.

Used for initial models, scores and updates. At most `slots` uploads hold a grant at once, so the
memory for chunks does not depend on the number of clients (slots.py). A partial upload stays in the
spool, where it can be resumed, and is never added to a sum.

Progress is measured in bytes, not in messages. The receiver ends an upload unless MIN_PROGRESS
bytes, or the rest of the payload, arrive in every `no_progress_s`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from functools import partial
from typing import Any, Protocol

from ssfl.codec import Receiver
from ssfl.codec.errors import DigestMismatch, TruncatedPayload
from ssfl.server.accounting.ledger import Direction, Ledger
from ssfl.server.errors import InvalidRequest, NoProgress
from ssfl.server.history.counters import ProcessCounters
from ssfl.server.storage.disk_full import Disk, DiskSpaceWaiter
from ssfl.server.storage.spool import Spool
from ssfl.server.storage.upload_files import PartialUpload
from ssfl.server.uploads.slots import UploadSlot, UploadSlots
from ssfl.server.uploads.verify import VerifiedUpload
from ssfl.strategies.contract import ClientId
from ssfl.v1 import transfer_pb2 as pb

QUEUED_EVERY_S = 15.0  # interval of `queued` messages to a waiting upload
MIN_PROGRESS = 16 << 10  # bytes in no_progress_s
SLOT_CHECKS = 16  # per no_progress_s while no chunk arrives: must the upload yield its slot?


class UploadRequest(Protocol):
    """A request message of any upload stream."""

    def WhichOneof(self, group: str) -> str | None: ...
    def ByteSize(self) -> int: ...
    @property
    def chunk(self) -> pb.Chunk: ...


class Upload(Protocol):
    """One upload whose header was admitted: a StepUpload or an InitialUpload.

    The receiver calls the methods in this order. It may call `receipt_if_unwanted` again later.
    """

    client: ClientId
    step: int
    payload: pb.Payload
    phase: str  # the ledger phase of its header

    @property
    def sections(self) -> Sequence[tuple[str, str, int]]:
        """Phase, encoding and length of its parts, in the order of their bytes."""
        ...

    def receipt_if_unwanted(self) -> pb.Receipt | None:
        """Return a receipt if the run no longer needs the upload, else None."""
        ...

    def received(self, num_bytes: int, seconds: float) -> None:
        """Record that the last byte has arrived, `num_bytes` and `seconds` after the grant."""
        ...

    def verify(self, part: PartialUpload) -> VerifiedUpload:
        """Check every value; runs on a worker thread."""
        ...

    async def commit(self, part: PartialUpload, verified: VerifiedUpload) -> pb.Receipt:
        """Store the verified upload, post it to the run, and return the receipt."""
        ...


class UploadReceiver:
    """Receives all uploads of a run."""

    def __init__(
        self,
        spool: Spool,
        ledger: Ledger,
        counters: ProcessCounters,
        count_error: Callable[[str, Exception], None],
        slots: int,
        no_progress_s: float,
        clock: Callable[[], float] = time.monotonic,
        disk_space: DiskSpaceWaiter | None = None,
    ) -> None:
        """Create a receiver.

        `count_error` counts the refusal of an upload whose sender has disconnected. `disk_space`
        records uploads that did not fit on the disk, for the status report.
        """
        self.num_slots = slots
        self._disk_space = disk_space or DiskSpaceWaiter()
        self._disk = Disk("--state-dir", spool.root.parent, self._disk_space)
        self._clock = clock
        self._counters = counters
        self._count_error = count_error
        self._spool = spool
        self._ledger = ledger
        self._no_progress_s = no_progress_s
        self.slots = UploadSlots(slots, no_progress_s, clock)
        self._writing: dict[ClientId, asyncio.Lock] = {}  # serializes access to a client's file
        self._finishing: dict[ClientId, asyncio.Future[pb.Receipt]] = {}  # at most one per client

    async def receive(
        self, upload: Upload, requests: AsyncIterator[UploadRequest], respond: Callable[..., Any]
    ) -> AsyncIterator[Any]:
        """Yield the answers to one upload; `respond` builds the message of each."""
        slot = self.slots.enter(upload.client)
        every_s = min(QUEUED_EVERY_S, self._no_progress_s / 4)
        try:
            async with aclosing(self.slots.granted(slot, every_s)) as waits:
                async for ahead in waits:
                    yield respond(queued=pb.Queued(ahead=ahead))
        except BaseException:
            self.slots.leave(slot)
            raise
        try:
            if receipt := upload.receipt_if_unwanted():
                yield respond(receipt=receipt)
                return
            writing = self._writing.setdefault(upload.client, asyncio.Lock())
            async with writing:  # wait for a chunk that an earlier call is still writing
                part = await asyncio.to_thread(
                    self._spool.part, upload.step, upload.client, upload.payload.digest
                )
                receiver = Receiver(upload.payload.num_bytes, part.num_bytes)
            if receiver.offset > receiver.num_bytes:
                part.drop()
                raise DigestMismatch(upload.payload.digest, b"")
            granted_s, from_byte = self._clock(), receiver.offset
            if from_byte:
                self._counters.resumes[Direction.UP] += 1
            yield respond(grant=pb.Grant(offset=from_byte))
            await self._receive_chunks(upload, requests, receiver, part, slot)
            upload.received(receiver.num_bytes - from_byte, self._clock() - granted_s)
            try:
                receipt = await self._finish(upload, part)
            except OSError:
                raise
            except Exception:
                part.drop()  # an invalid upload must not be resumed
                raise
            self._disk_space.accept()
            yield respond(receipt=receipt)
        except FileNotFoundError:  # the step ended, or another upload committed first
            unwanted = upload.receipt_if_unwanted()
            if unwanted is None:
                raise NoProgress(
                    "another upload of this client replaced this one: send it again"
                ) from None
            yield respond(receipt=unwanted)
        except OSError:
            with self.refused_if_full():
                raise
        finally:
            self.slots.give_back()
            self.slots.leave(slot)

    async def _finish(self, upload: Upload, part: PartialUpload) -> pb.Receipt:
        """Verify and commit a complete upload, even if the connection breaks meanwhile."""
        if earlier := self._finishing.get(upload.client):
            await asyncio.wait({earlier})  # the upload of an earlier call that was cut off
            if receipt := upload.receipt_if_unwanted():
                return receipt
        finishing = asyncio.ensure_future(_verify_and_commit(upload, part))
        self._finishing[upload.client] = finishing
        finishing.add_done_callback(partial(self._finished, upload.client))
        try:
            return await asyncio.shield(finishing)
        except asyncio.CancelledError:
            finishing.add_done_callback(partial(self._count_unsent_error, upload.client))
            raise

    def _finished(self, client: ClientId, finishing: asyncio.Future[pb.Receipt]) -> None:
        if self._finishing.get(client) is finishing:
            del self._finishing[client]
        if not finishing.cancelled():
            finishing.exception()  # otherwise asyncio would log it if no caller waits for it

    def _count_unsent_error(self, client: ClientId, finishing: asyncio.Future[pb.Receipt]) -> None:
        error = None if finishing.cancelled() else finishing.exception()
        if isinstance(error, Exception):
            self._count_error(client, error)

    def refused_if_full(self) -> AbstractContextManager[None]:
        """Return a context that turns the OSError of a full disk into DiskFull."""
        return self._disk_space.refused_if_full(self._disk, self._clock)

    async def _receive_chunks(
        self,
        upload: Upload,
        requests: AsyncIterator[UploadRequest],
        receiver: Receiver,
        part: PartialUpload,
        slot: UploadSlot,
    ) -> None:
        first_chunk = True
        # Time and offset of the last progress of MIN_PROGRESS bytes.
        progress_s, progress_byte = self._clock(), receiver.offset
        while not receiver.complete:
            request = await self._next(requests, slot, progress_s, receiver)
            if request.WhichOneof("part") != "chunk":
                raise InvalidRequest("a second header inside an upload")
            chunk = request.chunk
            async with self._writing[upload.client]:
                slot.check()
                if first_chunk and chunk.offset == 0 and receiver.offset:
                    # The client did not wait for the grant and sends from byte 0.
                    part.restart()
                    receiver.offset = progress_byte = 0
                first_chunk = False
                receiver.check(chunk.offset, chunk.data, chunk.crc32)
                self._count(upload, request)  # before the write, during which the call may be cut
                await _append(part, chunk.data)
            if receiver.complete:
                return
            if receiver.offset - progress_byte >= MIN_PROGRESS:
                progress_s, progress_byte = self._clock(), receiver.offset
            self.slots.check(slot, between_chunks=True)

    def _count(self, upload: Upload, request: UploadRequest) -> None:
        """Count the bytes of a chunk, each under the phase of its section."""
        chunk, begin, framing = request.chunk, 0, request.ByteSize() - len(request.chunk.data)
        for phase, encoding, num_bytes in upload.sections:
            end = begin + num_bytes
            inside = min(end, chunk.offset + len(chunk.data)) - max(begin, chunk.offset)
            if inside > 0:
                self._ledger.count(
                    phase, Direction.UP, framing + inside, inside, client=upload.client,
                    encoding=encoding,
                )  # fmt: skip
                framing = 0
            begin = end

    async def _next(
        self,
        requests: AsyncIterator[UploadRequest],
        slot: UploadSlot,
        progress_s: float,
        receiver: Receiver,
    ) -> UploadRequest:
        """Return the next message; raise if it is late or if the slot must be yielded."""
        coming = asyncio.ensure_future(anext(requests))
        try:
            while True:
                left_s = progress_s + self._no_progress_s - self._clock()
                if left_s <= 0:
                    raise NoProgress(
                        f"fewer than {MIN_PROGRESS} bytes of the upload arrived in "
                        f"{self._no_progress_s:g} s: send it again; it resumes at byte "
                        f"{receiver.offset}"
                    )
                await asyncio.wait(
                    {coming, slot.replaced},
                    timeout=min(left_s, self._no_progress_s / SLOT_CHECKS),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if coming.done():
                    return coming.result()
                self.slots.check(slot, between_chunks=False)
        except StopAsyncIteration:
            raise TruncatedPayload(receiver.num_bytes, receiver.offset) from None
        finally:
            if not coming.done():  # a stream can be closed only when no read is pending
                coming.cancel()
                await asyncio.wait({coming})
            if not coming.cancelled():
                coming.exception()


async def _verify_and_commit(upload: Upload, part: PartialUpload) -> pb.Receipt:
    verified = await asyncio.to_thread(upload.verify, part)
    try:
        return await upload.commit(part, verified)
    finally:
        if verified.values != part.values:
            verified.values.drop()  # decoded values that were not committed


async def _append(part: PartialUpload, data: bytes) -> None:
    """Append a chunk to the file; if cancelled, raise only after the chunk is written."""
    writing = asyncio.ensure_future(asyncio.to_thread(part.append, data))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await writing
        raise


async def read_header(requests: AsyncIterator[Any], no_progress_s: float) -> Any:
    """Return the first message of an upload stream, which must be its header."""
    try:
        request = await asyncio.wait_for(anext(requests), no_progress_s)
    except TimeoutError:
        raise NoProgress(f"no header for {no_progress_s:g} s: send the upload again") from None
    except StopAsyncIteration:
        request = None
    if request is None or request.WhichOneof("part") != "header":
        raise InvalidRequest("an upload begins with its header")
    return request
