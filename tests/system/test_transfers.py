"""Chunk streams: broken ones never count, cut ones resume."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2
from system.programs import Programs, until
from system.raw_client import (
    INITIAL,
    RUN,
    TIMEOUT_S,
    RawClient,
    Received,
    chunks_of,
    payload_of,
    sha256,
)
from system.raw_run import RawRun, refused

pytestmark = pytest.mark.system

Chunk = transfer_pb2.Chunk


def flipped(chunk: Chunk) -> Chunk:
    """Return the chunk with one bit flipped."""
    data = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]
    return Chunk(offset=chunk.offset, data=data, crc32=chunk.crc32)


def broken_streams(data: bytes) -> dict[str, tuple[list[Chunk], StatusCode, str]]:
    first, second, third, *rest = chunks_of(data)
    bad = StatusCode.INVALID_ARGUMENT, "bad_payload"
    too_long = Chunk(offset=second.offset, data=data[second.offset :] + b"more")
    return {
        "truncated": ([first, second], *bad),
        "none at all": ([], *bad),
        "a gap": ([first, third], *bad),
        "reordered": ([second, first, third, *rest], *bad),
        "repeated": ([first, second, second, third, *rest], *bad),
        "an empty chunk": ([first, Chunk(offset=second.offset)], *bad),
        "past the end": ([first, too_long], *bad),
        "oversized": ([Chunk(offset=0, data=bytes((1 << 20) + 1))], *bad),
        "from nowhere": ([Chunk(offset=2**64 - 1, data=b"x")], *bad),
        "a flipped bit": (
            [first, flipped(second), third, *rest],
            StatusCode.DATA_LOSS,
            "checksum_mismatch",
        ),
    }


def test_a_broken_chunk_stream_never_counts(raw: RawRun) -> None:
    got = raw.training()
    data = raw.ann.trained(got)
    header = raw.ann.update_header(got, data)
    for chunks, code, reason in broken_streams(data).values():
        with refused(code, reason):
            raw.ann.upload(header, chunks)
    assert raw.coordinator.client_state("ann") == "working"
    raw.finish_honestly()


def test_an_upload_with_a_wrong_digest_is_refused_at_the_end(raw: RawRun) -> None:
    """All checksums and the length are right, so only the digest differs."""
    got = raw.training()
    data = raw.ann.trained(got)
    other = data[:-1] + bytes([data[-1] ^ 1])
    with refused(StatusCode.DATA_LOSS, "digest_mismatch"):
        raw.ann.upload(raw.ann.update_header(got, data), chunks_of(other))
    raw.finish_honestly()


def test_an_upload_begins_with_one_header(raw: RawRun) -> None:
    got = raw.training()
    data = raw.ann.trained(got)
    header = pb.SendUpdateRequest(caller=raw.ann.caller, header=raw.ann.update_header(got, data))
    chunks = [pb.SendUpdateRequest(caller=raw.ann.caller, chunk=chunk) for chunk in chunks_of(data)]
    for requests in ([], chunks, [pb.SendUpdateRequest()], [header, chunks[0], header]):
        with refused(StatusCode.INVALID_ARGUMENT, "invalid_request", "header"):
            list(raw.ann.stub.SendUpdate(iter(requests), timeout=TIMEOUT_S))
    raw.finish_honestly()


class OpenUpload:
    """An upload that sends some chunks and stays open until it is cut."""

    def __init__(self, client: RawClient, got: Received, data: bytes, num_chunks: int) -> None:
        self._go = threading.Event()
        self._chunks = chunks_of(data)[:num_chunks]
        self.num_bytes = sum(len(chunk.data) for chunk in self._chunks)
        self.call = client.open_upload(client.update_header(got, data), self._rest())
        assert next(self.call).grant.offset == 0

    def _rest(self) -> Iterator[Chunk]:
        yield from self._chunks
        self._go.wait(TIMEOUT_S)

    def stored(self, raw: RawRun) -> None:
        """Wait until the sent bytes are in the spool."""

        def sizes() -> bool:
            parts = (raw.coordinator.state_dir / "spool").glob("*/ann.*.part")
            return [part.stat().st_size for part in parts] == [self.num_bytes]

        until(sizes, "the half upload is in the spool")

    def cut(self) -> None:
        self.call.cancel()
        self._go.set()


def resume(client: RawClient, got: Received, data: bytes) -> tuple[int, int]:
    """Wait for the grant, send the rest; return the granted offset and the outcome."""
    granted = threading.Event()
    offset = 0

    def rest() -> Iterator[Chunk]:
        assert granted.wait(TIMEOUT_S)
        yield from chunks_of(data, start=offset)

    call = client.open_upload(client.update_header(got, data), rest())
    offset = next(call).grant.offset
    granted.set()
    (receipt,) = call
    return offset, receipt.receipt.outcome


def test_a_cut_upload_resumes_at_the_committed_byte(raw: RawRun) -> None:
    got = raw.training()
    data = raw.ann.trained(got)
    half = OpenUpload(raw.ann, got, data, num_chunks=2)
    half.stored(raw)
    half.cut()
    assert resume(raw.ann, got, data) == (half.num_bytes, transfer_pb2.OUTCOME_ACCEPTED)
    raw.finish_honestly()


def test_a_half_upload_survives_kill_9_of_the_coordinator(raw: RawRun) -> None:
    got = raw.training()
    data = raw.ann.trained(got)
    half = OpenUpload(raw.ann, got, data, num_chunks=3)
    half.stored(raw)
    raw.restart()
    half.cut()
    raw.ann.join()
    raw.bob.join()
    assert resume(raw.ann, got, data) == (half.num_bytes, transfer_pb2.OUTCOME_ACCEPTED)
    raw.finish_honestly()


def test_a_newer_upload_of_a_client_replaces_an_open_one(raw: RawRun) -> None:
    """A broken connection that only the client has noticed must not block the next attempt."""
    got = raw.training()
    data = raw.ann.trained(got)
    stuck = OpenUpload(raw.ann, got, data, num_chunks=1)
    stuck.stored(raw)
    assert resume(raw.ann, got, data) == (stuck.num_bytes, transfer_pb2.OUTCOME_ACCEPTED)
    stuck.cut()
    raw.finish_honestly()


def test_an_upload_with_another_digest_replaces_an_unfinished_one(raw: RawRun) -> None:
    got = raw.training()
    half = OpenUpload(raw.ann, got, bytes(920), num_chunks=2)
    half.stored(raw)
    half.cut()
    data = raw.ann.trained(got)
    assert resume(raw.ann, got, data) == (0, transfer_pb2.OUTCOME_ACCEPTED)
    raw.finish_honestly()


def test_a_stalled_upload_is_dropped_and_can_be_resumed(programs: Programs) -> None:
    raw = RawRun(programs, programs.coordinator(*RUN, "--no-progress-s=0.5"))
    got = raw.training()
    data = raw.ann.trained(got)
    half = OpenUpload(raw.ann, got, data, num_chunks=2)
    with refused(StatusCode.DEADLINE_EXCEEDED, "no_progress", "resumes at byte 512"):
        list(half.call)
    half.cut()
    assert resume(raw.ann, got, data) == (512, transfer_pb2.OUTCOME_ACCEPTED)
    raw.finish_honestly()
    raw.close()


def test_the_same_update_twice_counts_once_and_another_is_refused(raw: RawRun) -> None:
    got = raw.training()
    data = raw.ann.trained(got)
    header = raw.ann.update_header(got, data)
    assert raw.ann.upload(header, chunks_of(data))[-1].receipt.outcome == (
        transfer_pb2.OUTCOME_ACCEPTED
    )
    for _ in range(2):
        (answer,) = raw.ann.upload(header, chunks_of(data))
        assert answer.receipt.outcome == transfer_pb2.OUTCOME_ALREADY_ACCEPTED
    other = raw.ann.update_header(
        got, data, values=payload_of(bytes(len(data)), transfer_pb2.ENCODING_VALUES_ONLY)
    )
    with refused(StatusCode.ALREADY_EXISTS, "update_conflict"):
        raw.ann.upload(other, chunks_of(bytes(len(data))))
    raw.finish_honestly()


def test_a_late_update_is_already_accepted_or_its_step_is_closed(raw: RawRun) -> None:
    got = raw.training()
    data = raw.ann.trained(got)
    header = raw.ann.update_header(got, data)
    raw.ann.answer(got)
    raw.bob.answer(raw.bob.next_task())
    raw.ann.next_task()  # task of round 1
    (answer,) = raw.ann.upload(header, chunks_of(data))
    assert answer.receipt.outcome == transfer_pb2.OUTCOME_ALREADY_ACCEPTED
    other = bytes(len(data))
    header = raw.ann.update_header(
        got, data, values=payload_of(other, transfer_pb2.ENCODING_VALUES_ONLY)
    )
    (answer,) = raw.ann.upload(header, chunks_of(other))
    assert answer.receipt.outcome == transfer_pb2.OUTCOME_STEP_CLOSED
    raw.finish_honestly()


def test_a_download_resumes_at_the_requested_byte(raw: RawRun) -> None:
    whole = raw.training()
    digest, size = whole.task.task_digest, len(whole.data)
    for offset in (1, 100, size - 1, size):
        rest = raw.ann.next_task(task_digest=digest, offset=offset)
        assert rest.task.task_digest == digest
        assert (rest.task.offset, rest.data) == (offset, whole.data[offset:])
    fresh: list[dict[str, Any]] = [
        {"task_digest": bytes(len(digest)), "offset": 100},
        {"task_digest": digest, "offset": size + 1},
        {"offset": 100},
    ]
    for fields in fresh:
        again = raw.ann.next_task(**fields)
        assert (again.task.offset, again.data) == (0, whole.data)
    raw.finish_honestly()


def test_payloads_that_a_client_holds_are_not_sent_again(raw: RawRun) -> None:
    whole = raw.training()
    work = whole.task.train
    rest = raw.ann.next_task(mask_digest=work.mask.mask_digest)
    assert not rest.task.train.mask.HasField("mask")
    assert rest.data == whole.data[work.mask.mask.num_bytes :]
    held = {"mask_digest": work.mask.mask_digest, "base_digest": work.base_digest}
    nothing = raw.ann.next_task(**held)
    assert not nothing.task.train.HasField("base")
    assert nothing.data == b""
    raw.finish_honestly()


def test_a_download_resumes_after_kill_9_of_the_coordinator(raw: RawRun) -> None:
    whole = raw.training()
    raw.restart()
    raw.ann.join()
    raw.bob.join()
    rest = raw.ann.next_task(task_digest=whole.task.task_digest, offset=100)
    assert (rest.task.offset, rest.data) == (100, whole.data[100:])
    raw.finish_honestly()


def test_coded_downloads_of_bases_and_final_model_resume_after_kill_9(
    programs: Programs,
) -> None:
    """The new process codes values against the base that the client holds, too."""
    flags = (*RUN, "--reference-coding=on")
    raw = RawRun(programs, programs.coordinator(*flags))
    coded = [1, 2, 3, 4, transfer_pb2.ENCODING_REFERENCE]
    first = raw.training().task.train
    holds = {
        "initial_digest": sha256(INITIAL.tobytes()),
        "mask_digest": first.mask.mask_digest,
        "base_digest": first.base_digest,
    }

    def cut_and_resumed(held: dict[str, bytes]) -> Received:
        raw.ann.join(encodings=coded)
        whole = raw.ann.next_task(**held)
        raw.coordinator.kill()
        raw.coordinator = programs.coordinator(*flags, port=raw.coordinator.port)
        raw.ann.join(encodings=coded)
        offset = len(whole.data) // 2
        rest = raw.ann.next_task(**held, task_digest=whole.task.task_digest, offset=offset)
        assert (rest.task.offset, rest.data) == (offset, whole.data[offset:])
        raw.ann.join()
        raw.bob.join()
        return whole

    raw.ann.answer(raw.ann.next_task())
    raw.bob.answer(raw.bob.next_task())
    again = cut_and_resumed(holds)
    assert again.task.train.base.reference_digest == first.base_digest
    holds["base_digest"] = again.task.train.base_digest
    for client in (raw.ann, raw.bob):
        client.answer(client.next_task())  # round 1
    for client in (raw.ann, raw.bob):
        client.answer(client.next_task())  # the evaluation
    final = cut_and_resumed(holds)
    assert final.kind == "finish"
    assert final.task.finish.base.reference_digest == holds["base_digest"]
    raw.finish_honestly()
    raw.close()


def test_health_and_reflection_answer(raw: RawRun) -> None:
    with grpc.insecure_channel(raw.coordinator.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watched = health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        watched.cancel()
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        (listed,) = reflection.ServerReflectionInfo(iter([question]), timeout=TIMEOUT_S)
        names = {service.name for service in listed.list_services_response.service}
    assert {"ssfl.v1.CoordinatorService", "grpc.health.v1.Health"} <= names
    raw.training()
    raw.finish_honestly()
