"""Receiving an upload, without a network: requests in, answers out, the file in the spool."""

import asyncio
import threading
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ssfl.codec import ChecksumMismatch, ChunkError, DigestMismatch, TrailingBytes, TruncatedPayload
from ssfl.server.accounting.ledger import Direction, Ledger, encoding_word
from ssfl.server.errors import InvalidRequest, NoProgress, SessionEnded
from ssfl.server.history.counters import ProcessCounters
from ssfl.server.loop.refusals import Refusals
from ssfl.server.storage.spool import Spool
from ssfl.server.storage.upload_files import PartialUpload
from ssfl.server.uploads import receive as module
from ssfl.server.uploads.decode import check_payload
from ssfl.server.uploads.receive import UploadReceiver, read_header
from ssfl.server.uploads.verify import VerifiedUpload
from ssfl.strategies.contract import ClientId
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2

C1, C2 = ClientId("c1"), ClientId("c2")
PAYLOAD = bytes(range(100))
ACCEPTED = transfer_pb2.Receipt(outcome=transfer_pb2.OUTCOME_ACCEPTED)
CLOSED = transfer_pb2.Receipt(outcome=transfer_pb2.OUTCOME_STEP_CLOSED)
DEADLINE_S = 30.0


def announced(data: bytes = PAYLOAD) -> transfer_pb2.Payload:
    return transfer_pb2.Payload(
        encoding=transfer_pb2.ENCODING_VALUES_ONLY,
        num_bytes=len(data),
        digest=sha256(data).digest(),
    )


def chunk(offset: int, data: bytes, crc32: int | None = None) -> pb.SendUpdateRequest:
    checksum = zlib.crc32(data) if crc32 is None else crc32
    return pb.SendUpdateRequest(chunk=transfer_pb2.Chunk(offset=offset, data=data, crc32=checksum))


async def sent(*requests: pb.SendUpdateRequest, hangs: bool = False) -> AsyncIterator[Any]:
    for request in requests:
        yield request
    if hangs:
        await asyncio.Event().wait()


class CheckedUpload:
    """An upload of which the digest alone is checked."""

    step, phase = 3, "values"

    @property
    def sections(self) -> list[tuple[str, str, int]]:
        word = encoding_word(self.payload.encoding)
        return [("values", word, self.payload.num_bytes)]

    def __init__(
        self, receiving: "Receiving", client: ClientId, payload: transfer_pb2.Payload
    ) -> None:
        self.client = client
        self.payload = payload
        self._receiving = receiving

    def receipt_if_unwanted(self) -> transfer_pb2.Receipt | None:
        return self._receiving.over

    def received(self, num_bytes: int, _seconds: float) -> None:
        self._receiving.sent.append(num_bytes)

    def verify(self, part: PartialUpload) -> VerifiedUpload:
        part.check_digest(self.payload.digest)
        return VerifiedUpload(part.values, self.payload.digest, 0.0)

    async def commit(self, part: PartialUpload, _: VerifiedUpload) -> transfer_pb2.Receipt:
        self._receiving.kept.append(part.path.read_bytes())
        return ACCEPTED


class Receiving:
    """A receiver over a spool in a folder."""

    def __init__(self, folder: Path, slots: int = 2, no_progress_s: float = DEADLINE_S) -> None:
        self.spool = Spool(folder)
        self.ledger = Ledger()
        self.counters = ProcessCounters()
        self.refusals = Refusals(time.monotonic, lambda _name: True)
        self.uploads = self.receiver(slots, no_progress_s)
        self.kept: list[bytes] = []
        self.sent: list[int] = []  # bytes of each upload that was received whole
        self.over: transfer_pb2.Receipt | None = None  # the receipt, once it is not wanted

    def receiver(
        self, slots: int, no_progress_s: float, clock: Callable[[], float] = time.monotonic
    ) -> UploadReceiver:
        parts = (self.spool, self.ledger, self.counters, self.refusals.count_error)
        return UploadReceiver(*parts, slots, no_progress_s, clock)

    def stream(
        self,
        requests: AsyncIterator[Any],
        client: ClientId = C1,
        payload: transfer_pb2.Payload | None = None,
    ) -> AsyncIterator[Any]:
        upload = CheckedUpload(self, client, payload or announced())
        return self.uploads.receive(upload, requests, pb.SendUpdateResponse)

    async def receive(self, *requests: pb.SendUpdateRequest, **more: Any) -> list[str]:
        """Return the answers to an upload, in words."""
        answers = self.stream(sent(*requests, hangs=more.pop("hangs", False)), **more)
        return [word(answer) async for answer in answers]

    def part(self) -> PartialUpload:
        return self.spool.part(3, C1, announced().digest)


def word(answer: pb.SendUpdateResponse) -> str:
    match answer.WhichOneof("part"):
        case "grant":
            return f"grant {answer.grant.offset}"
        case "queued":
            return f"queued behind {answer.queued.ahead}"
        case _:
            return transfer_pb2.Outcome.Name(answer.receipt.outcome)


def run(story: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(DEADLINE_S):
            return await story

    return asyncio.run(limited())


def test_header_grant_chunks_receipt(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path)
        answers = await receiving.receive(chunk(0, PAYLOAD[:60]), chunk(60, PAYLOAD[60:]))
        assert answers == ["grant 0", "OUTCOME_ACCEPTED"]
        assert receiving.kept == [PAYLOAD]
        (row,) = receiving.ledger.rows()
        assert (row["phase"], row["direction"], row["payload_bytes"]) == ("values", "up", 100)
        assert row["message_bytes"] > 100

    run(story())


def test_a_cut_upload_resumes_where_it_stopped(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path)
        with pytest.raises(TruncatedPayload, match="payload has 60 bytes, 100 were promised"):
            await receiving.receive(chunk(0, PAYLOAD[:60]))
        again = Receiving(tmp_path)  # also after a restart of the coordinator
        assert await again.receive(chunk(60, PAYLOAD[60:])) == ["grant 60", "OUTCOME_ACCEPTED"]
        assert again.kept == [PAYLOAD] and again.sent == [40], "the link carried the rest"
        assert again.counters.resumes == {Direction.UP: 1}

    run(story())


def test_a_chunk_that_is_written_while_the_call_is_cut_off_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        receiving, loop = Receiving(tmp_path), asyncio.get_running_loop()
        writes, goes_on = asyncio.Event(), threading.Event()

        append = PartialUpload.append

        def held(part: PartialUpload, data: bytes) -> None:
            loop.call_soon_threadsafe(writes.set)
            assert goes_on.wait(DEADLINE_S)
            append(part, data)

        with monkeypatch.context() as patched:
            patched.setattr(PartialUpload, "append", held)
            call = asyncio.ensure_future(receiving.receive(chunk(0, PAYLOAD[:60]), hangs=True))
            await writes.wait()
            call.cancel()
            goes_on.set()
            await asyncio.wait({call})
        assert call.cancelled()
        assert await receiving.receive(chunk(60, PAYLOAD[60:])) == ["grant 60", "OUTCOME_ACCEPTED"]
        (row,) = receiving.ledger.rows()
        assert row["payload_bytes"] == 100

    run(story())


def test_a_sender_that_did_not_wait_for_the_grant_may_start_over(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path)
        receiving.part().append(PAYLOAD[:60])
        assert await receiving.receive(chunk(0, PAYLOAD)) == ["grant 60", "OUTCOME_ACCEPTED"]
        assert receiving.kept == [PAYLOAD]

    run(story())


def test_an_upload_that_is_whole_already_needs_no_chunk(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path)
        receiving.part().append(PAYLOAD)
        assert await receiving.receive() == ["grant 100", "OUTCOME_ACCEPTED"]

    run(story())


@pytest.mark.parametrize(
    ("requests", "error"),
    [
        ([chunk(0, PAYLOAD[:50]), chunk(60, PAYLOAD[60:])], ChunkError),
        ([chunk(0, PAYLOAD[:50]), chunk(0, PAYLOAD[:50])], ChunkError),
        ([chunk(0, PAYLOAD[:50]), chunk(50, b"")], ChunkError),
        ([chunk(0, PAYLOAD[:50]), chunk(50, PAYLOAD[50:], crc32=1)], ChecksumMismatch),
        ([chunk(0, PAYLOAD[:50]), chunk(50, PAYLOAD[50:] + b"!")], TrailingBytes),
        ([chunk(0, PAYLOAD[:50]), pb.SendUpdateRequest()], InvalidRequest),
    ],
)
def test_a_bad_chunk_ends_the_upload_and_what_came_before_is_kept(
    tmp_path: Path, requests: list[pb.SendUpdateRequest], error: type[Exception]
) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path)
        with pytest.raises(error):
            await receiving.receive(*requests)
        assert receiving.part().path.read_bytes() == PAYLOAD[:50]
        assert await receiving.receive(chunk(50, PAYLOAD[50:])) == ["grant 50", "OUTCOME_ACCEPTED"]

    run(story())


def test_an_upload_that_fails_verification_is_dropped_and_can_be_sent_again(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path)
        with pytest.raises(DigestMismatch):
            await receiving.receive(chunk(0, PAYLOAD[::-1]))
        assert receiving.kept == []
        assert await receiving.receive(chunk(0, PAYLOAD)) == ["grant 0", "OUTCOME_ACCEPTED"]

    run(story())


def test_a_part_longer_than_announced_is_dropped(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path)
        receiving.part().append(PAYLOAD + b"!")
        with pytest.raises(DigestMismatch):
            await receiving.receive()
        assert await receiving.receive(chunk(0, PAYLOAD)) == ["grant 0", "OUTCOME_ACCEPTED"]

    run(story())


def test_a_step_that_ends_during_an_upload_gives_a_receipt_not_an_error(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path)

        async def requests() -> AsyncIterator[Any]:
            yield chunk(0, PAYLOAD[:50])
            receiving.spool.drop_through(3)
            receiving.over = CLOSED
            yield chunk(50, PAYLOAD[50:])

        answers = [word(answer) async for answer in receiving.stream(requests())]
        assert answers == ["grant 0", "OUTCOME_STEP_CLOSED"]

    run(story())


def test_a_spool_file_that_vanishes_from_an_open_step_is_sent_again(tmp_path: Path) -> None:
    """Another upload of the client committed first; this one does not decide if that counts."""

    async def story() -> None:
        receiving = Receiving(tmp_path)

        async def requests() -> AsyncIterator[Any]:
            yield chunk(0, PAYLOAD[:50])
            receiving.spool.drop_through(3)
            yield chunk(50, PAYLOAD[50:])

        with pytest.raises(NoProgress, match="send it again"):
            [word(answer) async for answer in receiving.stream(requests())]

    run(story())


def test_an_unwanted_upload_gets_a_receipt_and_leaves_no_folder(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path)
        receiving.over = CLOSED
        assert await receiving.receive(chunk(0, PAYLOAD)) == ["OUTCOME_STEP_CLOSED"]
        assert list(tmp_path.iterdir()) == []

    run(story())


def test_an_upload_of_a_silent_sender_is_ended(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path, no_progress_s=0.001)
        with pytest.raises(
            NoProgress, match=r"fewer than 16384 .* in 0.001 s: .* resumes at byte 50"
        ):
            await receiving.receive(chunk(0, PAYLOAD[:50]), hangs=True)

    run(story())


def test_a_newer_upload_of_the_client_ends_the_older(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path)
        go_on = asyncio.Event()

        async def older() -> AsyncIterator[Any]:
            yield chunk(0, PAYLOAD[:50])
            await go_on.wait()
            yield chunk(50, PAYLOAD[50:])

        first_stream = receiving.stream(older())
        assert word(await anext(first_stream)) == "grant 0"
        rest = asyncio.ensure_future(anext(first_stream))
        while receiving.part().num_bytes < 50:
            await asyncio.sleep(0)
        newer = receiving.stream(sent(chunk(50, PAYLOAD[50:])))
        assert word(await anext(newer)) == "grant 50"
        go_on.set()
        with pytest.raises(SessionEnded, match="a newer upload of this client"):
            await rest
        assert word(await anext(newer)) == "OUTCOME_ACCEPTED"
        assert receiving.kept == [PAYLOAD]

    run(story())


def test_no_more_uploads_than_slots_hold_a_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUED_EVERY_S", 0.001)

    async def story() -> None:
        receiving = Receiving(tmp_path, slots=1)
        holder = receiving.stream(sent(chunk(0, PAYLOAD)), C1)
        assert word(await anext(holder)) == "grant 0"
        waiting = receiving.stream(sent(chunk(0, PAYLOAD)), C2)
        assert [word(await anext(waiting)) for _ in range(3)] == ["queued behind 0"] * 3
        assert [word(answer) async for answer in holder] == ["OUTCOME_ACCEPTED"]
        answers = [word(answer) async for answer in waiting]
        assert [answer for answer in answers if "queued" not in answer] == [
            *("grant 0", "OUTCOME_ACCEPTED"),
        ]

    run(story())


@pytest.mark.parametrize("when", ["while queued", "while sending", "after an error"])
def test_a_slot_is_free_again_however_its_upload_ends(tmp_path: Path, when: str) -> None:
    async def story() -> None:
        receiving = Receiving(tmp_path, slots=1)
        if when == "after an error":
            with pytest.raises(ChunkError):
                await receiving.receive(chunk(7, PAYLOAD))
        else:
            holder = receiving.stream(sent(hangs=True), C1)
            assert word(await anext(holder)) == "grant 0"
            if when == "while queued":
                queued = asyncio.ensure_future(anext(receiving.stream(sent(), C2)))
                while receiving.uploads.slots.queued == 0:
                    await asyncio.sleep(0)
                queued.cancel()
                await asyncio.wait({queued})
            await holder.aclose()  # type: ignore[attr-defined]  # it is a generator
        for client in (C1, C2):
            answers = await receiving.receive(chunk(0, PAYLOAD), client=client)
            assert answers == ["grant 0", "OUTCOME_ACCEPTED"]

    run(story())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoding": 2}, "encoding 2 is not allowed; expected ENCODING_VALUES_ONLY"),
        ({"encoding": 0}, "encoding 0 is not allowed; expected ENCODING_VALUES_ONLY"),
        ({"encoding": 77}, "encoding 77 is not allowed"),
        ({"num_bytes": 101}, "101 bytes announced; expected 100"),
        ({"num_bytes": 2**63}, "9223372036854775808 bytes announced; expected 100"),
        ({"digest": b"short"}, "a digest has 32 bytes, not 5"),
    ],
)
def test_a_payload_with_a_wrong_announcement_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    payload = announced()
    check_payload(payload, {transfer_pb2.ENCODING_VALUES_ONLY: (100, 100)})
    for name, value in changes.items():
        setattr(payload, name, value)
    with pytest.raises(InvalidRequest, match=message):
        check_payload(payload, {transfer_pb2.ENCODING_VALUES_ONLY: (100, 100)})


def test_an_upload_begins_with_its_header() -> None:
    async def story() -> None:
        header = pb.SendUpdateRequest()
        header.header.step = 3
        assert (await read_header(sent(header), DEADLINE_S)).header.step == 3
        for wrong in (sent(), sent(chunk(0, b"x")), sent(pb.SendUpdateRequest())):
            with pytest.raises(InvalidRequest, match="an upload begins with its header"):
                await read_header(wrong, DEADLINE_S)
        with pytest.raises(NoProgress, match=r"no header for 0\.001 s"):
            await read_header(sent(hangs=True), 0.001)

    run(story())


def test_the_ledger_records_the_encoding_of_an_upload(tmp_path: Path) -> None:
    async def story() -> None:
        receiving, payload = Receiving(tmp_path), announced()
        payload.encoding = transfer_pb2.ENCODING_INT8
        await receiving.receive(chunk(0, PAYLOAD), payload=payload)
        assert [row["encoding"] for row in receiving.ledger.rows()] == ["int8"]

    run(story())
