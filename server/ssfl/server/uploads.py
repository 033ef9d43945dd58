"""Receiving an upload: header, grant, chunks into the spool, verification, receipt.

The same for initial models, scores and updates. At most `slots` uploads hold a grant at once,
so memory in flight is bounded whatever the number of clients. A half upload stays in the spool
and is resumed; nothing of it reaches a sum.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ssfl.codec import Receiver
from ssfl.codec.errors import DigestMismatch, TruncatedPayload
from ssfl.method.strategies.contract import ClientId
from ssfl.server.disk import is_full
from ssfl.server.errors import DiskFull, InvalidRequest, NoProgress, SessionEnded
from ssfl.server.ledger import Direction, Ledger, encoding_word
from ssfl.server.spool import Spool, append
from ssfl.v1 import transfer_pb2 as pb

QUEUED_EVERY_S = 15.0


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


class Uploads:
    """All uploads under way."""

    def __init__(
        self,
        spool: Spool,
        ledger: Ledger,
        slots: int,
        no_progress_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = slots
        self._clock = clock
        self._spool = spool
        self._ledger = ledger
        self._no_progress_s = no_progress_s
        self._free = asyncio.Semaphore(slots)
        self._queued = 0
        self._newest: dict[ClientId, object] = {}
        self._writing: dict[ClientId, asyncio.Lock] = {}  # one call at a time touches the file

    @property
    def in_flight(self) -> int:
        """How many uploads hold a grant."""
        return len(self._newest)

    async def receive(
        self,
        expected: Expected,
        requests: AsyncIterator[Upload],
        respond: Callable[..., Any],
        accept: Callable[[Path, Sent], Awaitable[pb.Receipt]],
    ) -> AsyncIterator[Any]:
        """Yield the answers to one upload; `accept` verifies the file and makes it count."""
        async for answer in self._slot(respond):
            yield answer
        this = self._newest[expected.client] = object()  # a newer upload of the client wins
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
            yield respond(grant=pb.Grant(offset=from_byte))
            await self._chunks(expected, requests, receiver, part, this)
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
        except OSError as error:
            if not is_full(error):
                raise
            raise DiskFull(
                "the coordinator's disk is full: its operator must make room; the upload goes on "
                "where it stopped"
            ) from error
        finally:
            self._free.release()
            if self._newest.get(expected.client) is this:
                del self._newest[expected.client]

    async def _slot(self, respond: Callable[..., Any]) -> AsyncIterator[Any]:
        """Wait for a free slot, with a sign of life every 15 s."""
        self._queued += 1
        try:
            waiting = asyncio.ensure_future(self._free.acquire())
            try:
                while not (await asyncio.wait({waiting}, timeout=QUEUED_EVERY_S))[0]:
                    yield respond(queued=pb.Queued(ahead=self._queued - 1))
            except BaseException:
                if not waiting.cancel() and waiting.done() and not waiting.cancelled():
                    self._free.release()
                raise
        finally:
            self._queued -= 1

    async def _chunks(
        self,
        expected: Expected,
        requests: AsyncIterator[Upload],
        receiver: Receiver,
        part: Path,
        this: object,
    ) -> None:
        first_chunk = True
        while not receiver.complete:
            try:
                request = await asyncio.wait_for(anext(requests), self._no_progress_s)
            except StopAsyncIteration:
                raise TruncatedPayload(receiver.num_bytes, receiver.offset) from None
            except TimeoutError:
                raise NoProgress(
                    f"no byte of the upload for {self._no_progress_s:g} s: send it again, "
                    f"it goes on at byte {receiver.offset}"
                ) from None
            if request.WhichOneof("part") != "chunk":
                raise InvalidRequest("a second header inside an upload")
            chunk = request.chunk
            async with self._writing[expected.client]:
                if self._newest.get(expected.client) is not this:
                    raise SessionEnded("a newer upload of this client has replaced this one")
                if first_chunk and chunk.offset == 0 and receiver.offset:
                    # Sent without waiting for the grant: from the start, in a file of its own,
                    # since an earlier call of this client may still be reading the old one.
                    part.unlink(missing_ok=True)
                    part.touch()
                    receiver.offset = 0
                first_chunk = False
                receiver.check(chunk.offset, chunk.data, chunk.crc32)
                await _written(part, chunk.data)
            self._ledger.count(
                expected.phase, Direction.UP, request.ByteSize(), len(chunk.data),
                client=expected.client, encoding=encoding_word(expected.payload.encoding),
            )  # fmt: skip


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
