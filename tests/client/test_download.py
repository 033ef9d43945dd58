"""Download of a task: complete or resumed, no byte twice."""

import hashlib
import tracemalloc
import zlib
from typing import Any

import grpc
import pytest

from client.fakes import MANIFEST, FakeCall, FakeRpcError
from ssfl.client.connection import Watchdog
from ssfl.client.download import Downloads
from ssfl.client.errors import Refused, Unavailable
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, transfer_pb2

MASK, BASE = bytes([1, 2, 3]), bytes(range(56))
WHOLE = MASK + BASE


def payload(data: bytes, encoding: Any) -> transfer_pb2.Payload:
    digest = hashlib.sha256(data).digest()
    return transfer_pb2.Payload(encoding=encoding, num_bytes=len(data), digest=digest)


def train_task(name: bytes = b"one", offset: int = 0) -> pb.Task:
    mask = mask_pb2.MaskBroadcast(mask=payload(MASK, transfer_pb2.ENCODING_BITMASK))
    work = pb.TrainTask(mask=mask, base=payload(BASE, transfer_pb2.ENCODING_VALUES_ONLY))
    return pb.Task(task_digest=name, step=3, offset=offset, train=work)


def header(task: pb.Task) -> pb.NextTaskResponse:
    return pb.NextTaskResponse(task=task)


def chunk(start: int, stop: int, data: bytes = WHOLE) -> pb.NextTaskResponse:
    part = data[start:stop]
    return pb.NextTaskResponse(
        chunk=transfer_pb2.Chunk(offset=start, data=part, crc32=zlib.crc32(part))
    )


def waiting(reason: str) -> pb.NextTaskResponse:
    return pb.NextTaskResponse(waiting=pb.Waiting(reason=reason))


CUT = FakeRpcError(grpc.StatusCode.UNAVAILABLE, "socket closed")


@pytest.fixture
def downloads() -> Downloads:
    return Downloads(Watchdog(60.0), MANIFEST)


def test_payloads_arrive_in_the_order_of_their_fields(downloads: Downloads) -> None:
    answers = [waiting("others"), header(train_task()), chunk(0, 2), chunk(2, 40), chunk(40, 59)]
    got = downloads.receive(FakeCall(answers))
    assert [bytes(part) for part in got.parts()] == [MASK, BASE]
    assert got.task.step == 3
    assert downloads.resume_fields() == {}, "nothing is left to resume"


def test_a_task_without_payload_is_complete_at_once(downloads: Downloads) -> None:
    task = pb.Task(task_digest=b"x", initialize=pb.InitializeTask())
    got = downloads.receive(FakeCall([header(task)]))
    assert got.task.WhichOneof("work") == "initialize"
    assert got.payloads == []


def test_a_broken_download_resumes_where_it_stopped(downloads: Downloads) -> None:
    with pytest.raises(Unavailable):
        downloads.receive(FakeCall([header(train_task()), chunk(0, 30)], CUT))
    assert downloads.resume_fields() == {"task_digest": b"one", "offset": 30}
    got = downloads.receive(FakeCall([header(train_task(offset=30)), chunk(30, 59)]))
    assert bytes(got.buffer) == WHOLE


def test_a_stream_that_ends_early_without_an_error_is_resumed(downloads: Downloads) -> None:
    with pytest.raises(Unavailable, match="before the task was complete"):
        downloads.receive(FakeCall([header(train_task()), chunk(0, 30)]))
    assert downloads.resume_fields()["offset"] == 30
    with pytest.raises(Unavailable):
        downloads.receive(FakeCall([]))
    assert downloads.resume_fields()["offset"] == 30, "an empty stream keeps the offset"


def test_another_task_starts_at_byte_0(downloads: Downloads) -> None:
    with pytest.raises(Unavailable):
        downloads.receive(FakeCall([header(train_task()), chunk(0, 30)], CUT))
    got = downloads.receive(FakeCall([header(train_task(b"two")), chunk(0, 59)]))
    assert got.task.task_digest == b"two"


def test_a_download_restarts_if_the_coordinator_cannot_resume(downloads: Downloads) -> None:
    with pytest.raises(Unavailable):
        downloads.receive(FakeCall([header(train_task()), chunk(0, 30)], CUT))
    got = downloads.receive(FakeCall([header(train_task(offset=0)), chunk(0, 59)]))
    assert bytes(got.buffer) == WHOLE


@pytest.mark.parametrize(
    "second",
    [
        chunk(30, 59, WHOLE[:40] + b"X" + WHOLE[41:]),  # the digest of the payload differs
        pb.NextTaskResponse(chunk=transfer_pb2.Chunk(offset=30, data=WHOLE[30:], crc32=1)),
        chunk(31, 59),
        chunk(0, 30),
        chunk(30, 90, WHOLE + bytes(99)),
    ],
    ids=["other bytes", "a wrong checksum", "a gap", "a repeat", "too much"],
)
def test_a_damaged_download_is_discarded_and_requested_again(
    downloads: Downloads, second: pb.NextTaskResponse
) -> None:
    with pytest.raises(Unavailable, match="damaged"):
        downloads.receive(FakeCall([header(train_task()), chunk(0, 30), second]))
    assert downloads.resume_fields() == {}, "starts again at byte 0"
    got = downloads.receive(FakeCall([header(train_task()), chunk(0, 59)]))
    assert bytes(got.buffer) == WHOLE


@pytest.mark.parametrize(
    ("encoding", "max_bytes"),
    [
        (transfer_pb2.ENCODING_VALUES_ONLY, 4 * 24),
        (transfer_pb2.ENCODING_DENSE, 4 * 24),
        (transfer_pb2.ENCODING_BITMASK, 3),
        (transfer_pb2.ENCODING_BITMASK_ZSTD, 2),
        (transfer_pb2.ENCODING_REFERENCE, 4 * 24 + 16),
        (transfer_pb2.ENCODING_BFLOAT16, 2 * 24 + 8),
        (transfer_pb2.ENCODING_INT8, 24 + 4 + 4),
        (transfer_pb2.ENCODING_GRID, 4 * 24 + 17),
        (transfer_pb2.ENCODING_BITMASK_SORTED, 2 + 4 + 2 + 9 + 5 * 64 + 3),
    ],
)
def test_an_impossible_size_is_refused_before_allocation(
    downloads: Downloads, encoding: Any, max_bytes: int
) -> None:
    base = transfer_pb2.Payload(encoding=encoding, num_bytes=1 << 40, digest=bytes(32))
    task = pb.Task(task_digest=b"big", train=pb.TrainTask(base=base))
    tracemalloc.start()
    try:
        with pytest.raises(
            Refused, match=f"announced {1 << 40} bytes; at most {max_bytes} are possible"
        ):
            downloads.receive(FakeCall([header(task)]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_chunk_without_a_task_is_refused(downloads: Downloads) -> None:
    with pytest.raises(Refused, match="without a task"):
        downloads.receive(FakeCall([chunk(0, 30)]))
