"""Receiving an upload: header, grant, chunks into the spool, verification, receipt.

The same for initial models, scores and updates. At most `slots` uploads hold a grant at once,
so memory in flight is bounded whatever the number of clients (slots.py). A half upload stays in
the spool and is resumed; nothing of it reaches a sum.

Progress is bytes, not messages: in every `no_progress_s` at least MIN_PROGRESS of them must
arrive, or the rest of the payload, else the upload is given up.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ssfl.codec import Receiver
from ssfl.codec.errors import DigestMismatch, TruncatedPayload
from ssfl.method.strategies.contract import ClientId
from ssfl.server.accounting.ledger import Direction, Ledger, encoding_word
from ssfl.server.errors import InvalidRequest, NoProgress
from ssfl.server.storage.disk_full import refused_if_full
from ssfl.server.storage.spool import Spool, append
from ssfl.server.uploads.slots import UploadSlot, UploadSlots
from ssfl.v1 import transfer_pb2 as pb

QUEUED_EVERY_S = 15.0
MIN_PROGRESS = 16 << 10  # bytes in no_progress_s
LOOKS = 16  # at the queue, in no_progress_s, while no chunk comes


class Upload(Protocol):
    """A request message of any upload stream."""

    def WhichOneof(self, group: str) -> str | None: ...
    def ByteSize(self) -> int: ...
    @property
    def chunk(self) -> pb.Chunk: ...


@dataclass(frozen=True, slots=True)
class Expected:
    """What the header announced, already checked against the step."""

    client: ClientId
    step: int
    payload: pb.Payload
    phase: str  # in the ledger
    over: Callable[[], pb.Receipt | None]  # the answer if it is no longer wanted; None: it is


@dataclass(frozen=True, slots=True)
class Sent:
    """What one upload carried, from its grant to its last byte: a measure of the link."""

    num_bytes: int
    seconds: float


class UploadReceiver:
    """All uploads under way."""

    def __init__(
        self,
        spool: Spool,
        ledger: Ledger,
        slots: int,
        no_progress_s: float,
        clock: Callable[[], float] = time.monotonic,
        resumed: Callable[[], None] = lambda: None,
    ) -> None:
        """`resumed` is called for every upload that goes on where it had been cut off."""
        self.num_slots = slots
        self._clock = clock
        self._resumed = resumed
        self._spool = spool
        self._ledger = ledger
        self._no_progress_s = no_progress_s
        self.slots = UploadSlots(slots, no_progress_s, clock)
        self._writing: dict[ClientId, asyncio.Lock] = {}  # one call at a time touches the file

    @property
    def in_flight(self) -> int:
        """How many uploads hold a grant."""
        return self.slots.held

    async def receive(
        self,
        expected: Expected,
        requests: AsyncIterator[Upload],
        respond: Callable[..., Any],
        accept: Callable[[Path, Sent], Awaitable[pb.Receipt]],
    ) -> AsyncIterator[Any]:
        """Yield the answers to one upload; `accept` verifies the file and makes it count."""
        slot = self.slots.enter(expected.client)
        every_s = min(QUEUED_EVERY_S, self._no_progress_s / 4)
        try:
            async with aclosing(self.slots.granted(slot, every_s)) as waits:
                async for ahead in waits:
                    yield respond(queued=pb.Queued(ahead=ahead))
        except BaseException:
            self.slots.leave(slot)
            raise
        try:
            if receipt := expected.over():
                yield respond(receipt=receipt)
                return
            writing = self._writing.setdefault(expected.client, asyncio.Lock())
            async with writing:  # a chunk that an earlier call is still writing counts
                part = await asyncio.to_thread(
                    self._spool.part, expected.step, expected.client, expected.payload.digest
                )
                receiver = Receiver(expected.payload.num_bytes, part.stat().st_size)
            if receiver.offset > receiver.num_bytes:
                part.unlink()
                raise DigestMismatch(expected.payload.digest, b"")
            granted_s, from_byte = self._clock(), receiver.offset
            if from_byte:
                self._resumed()
            yield respond(grant=pb.Grant(offset=from_byte))
            await self._chunks(expected, requests, receiver, part, slot)
            sent = Sent(receiver.num_bytes - from_byte, self._clock() - granted_s)
            try:
                receipt = await accept(part, sent)
            except OSError:
                raise
            except Exception:
                part.unlink(missing_ok=True)  # what is not sound is not resumed either
                raise
            yield respond(receipt=receipt)
        except FileNotFoundError:  # its spool is gone: the step ended, or another upload was first
            receipt = expected.over()
            if receipt is None:
                raise NoProgress("the upload was disturbed by another one: send it again") from None
            yield respond(receipt=receipt)
        except OSError:
            with refused_if_full():
                raise
        finally:
            self.slots.give_back()
            self.slots.leave(slot)

    async def _chunks(
        self,
        expected: Expected,
        requests: AsyncIterator[Upload],
        receiver: Receiver,
        part: Path,
        slot: UploadSlot,
    ) -> None:
        first_chunk = True
        since_s, since_byte = self._clock(), receiver.offset  # when progress was last made
        while not receiver.complete:
            request = await self._next(requests, slot, since_s, receiver)
            if request.WhichOneof("part") != "chunk":
                raise InvalidRequest("a second header inside an upload")
            chunk = request.chunk
            async with self._writing[expected.client]:
                slot.check()
                if first_chunk and chunk.offset == 0 and receiver.offset:
                    # Sent without waiting for the grant: from the start, in a file of its own,
                    # since an earlier call of this client may still be reading the old one.
                    part.unlink(missing_ok=True)
                    part.touch()
                    receiver.offset = since_byte = 0
                first_chunk = False
                receiver.check(chunk.offset, chunk.data, chunk.crc32)
                self._ledger.count(  # before it is written: the call may be cut off meanwhile
                    expected.phase, Direction.UP, request.ByteSize(), len(chunk.data),
                    client=expected.client, encoding=encoding_word(expected.payload.encoding),
                )  # fmt: skip
                await _written(part, chunk.data)
            if receiver.complete:
                return
            if receiver.offset - since_byte >= MIN_PROGRESS:
                since_s, since_byte = self._clock(), receiver.offset
            self.slots.check(slot, between_chunks=True)

    async def _next(
        self, requests: AsyncIterator[Upload], slot: UploadSlot, since_s: float, receiver: Receiver
    ) -> Upload:
        """Return the next message; raise if it is too late, or if the upload has to make room."""
        coming = asyncio.ensure_future(anext(requests))
        try:
            while True:
                left_s = since_s + self._no_progress_s - self._clock()
                if left_s <= 0:
                    raise NoProgress(
                        f"fewer than {MIN_PROGRESS} bytes of the upload in "
                        f"{self._no_progress_s:g} s: send it again, it goes on at byte "
                        f"{receiver.offset}"
                    )
                await asyncio.wait(
                    {coming, slot.replaced},
                    timeout=min(left_s, self._no_progress_s / LOOKS),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if coming.done():
                    return coming.result()
                self.slots.check(slot, between_chunks=False)
        except StopAsyncIteration:
            raise TruncatedPayload(receiver.num_bytes, receiver.offset) from None
        finally:
            if not coming.done():  # the stream can be closed only when nobody reads it any more
                coming.cancel()
                await asyncio.wait({coming})
            if not coming.cancelled():
                coming.exception()


async def _written(part: Path, data: bytes) -> None:
    """Append a chunk; if the call is cut off meanwhile, end only when the chunk is in the file."""
    writing = asyncio.ensure_future(asyncio.to_thread(append, part, data))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await writing
        raise


async def first(requests: AsyncIterator[Any], no_progress_s: float) -> Any:
    """Return the header of an upload stream."""
    try:
        request = await asyncio.wait_for(anext(requests), no_progress_s)
    except TimeoutError:
        raise NoProgress(f"no header for {no_progress_s:g} s: send it again") from None
    except StopAsyncIteration:
        request = None
    if request is None or request.WhichOneof("part") != "header":
        raise InvalidRequest("an upload begins with its header")
    return request
