"""Invalid requests are refused with a reason, and the run still ends with the expected model.

The sender is `ann`, a member with a valid session, or a stranger. Afterwards ann and bob take part
honestly, and the result is compared with the expected one (raw_client.py).
"""

import os
import socket
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import StatusCode

from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2, update_pb2
from system.raw_client import (
    INITIAL,
    MASKED,
    TENSORS,
    TIMEOUT_S,
    RawClient,
    Received,
    chunks_of,
    manifest_of,
    payload_of,
    sha256,
)
from system.raw_run import RawRun, refused

pytestmark = pytest.mark.system

INVALID, PRECONDITION = StatusCode.INVALID_ARGUMENT, StatusCode.FAILED_PRECONDITION


# -- callers and joins

BAD_JOINS: dict[str, tuple[dict[str, Any], StatusCode, str, str]] = {
    "a protocol from the future": (
        {"protocol_version": 2}, PRECONDITION, "version_unsupported", "protocol 2",
    ),
    "no protocol version": ({"protocol_version": 0}, INVALID, "invalid_request", "version"),
    "an id that is a path": ({"client_id": "../../x"}, INVALID, "invalid_request", "'../../x'"),
    "no id": ({"client_id": ""}, INVALID, "invalid_request", "client id"),
    "an endless id": ({"client_id": "x" * 65}, INVALID, "invalid_request", "1 to 64"),
    "a short token": ({"token": b"x"}, INVALID, "invalid_request", "16 bytes"),
    "no samples": ({"num_samples": 0}, INVALID, "invalid_request", "0 training samples"),
    "too many samples": ({"num_samples": 2**31 + 1}, INVALID, "invalid_request", "2147483649"),
    "a novel for a fingerprint": (
        {"fingerprint": "x" * 201}, INVALID, "invalid_request", "200 characters",
    ),
}  # fmt: skip


def test_a_bad_join_is_refused(raw: RawRun) -> None:
    raw.training()
    eve = raw.client("eve")
    for changes, code, reason, words in BAD_JOINS.values():
        with refused(code, reason, words):
            eve.join(**changes)
    raw.finish_honestly()


def test_another_model_is_refused_by_its_first_differing_tensor(raw: RawRun) -> None:
    raw.training()
    wider = [TENSORS[0], ("first.bias", (21,), "dense", "zeros"), *TENSORS[2:]]
    eve = raw.client("eve", manifest=manifest_of(wider))
    with refused(PRECONDITION, "join_again"):
        eve.join(manifest=b"")
    with refused(PRECONDITION, "manifest_mismatch", "eve", "first.bias", "21"):
        eve.join()
    raw.coordinator.says("first.bias (21")
    raw.finish_honestly()


BAD_MANIFESTS = {
    "nothing": b"",
    "no JSON": b"\xff\xfe",
    "no manifest": b"[]",
    "half of one": manifest_of()[:-20],
    "spaces": manifest_of().replace(b":", b": "),
    "another format": manifest_of().replace(b'"format":1', b'"format":2'),
    "a model that is not an object": manifest_of().replace(b'{"name":"by hand"}', b'"by hand"'),
    "a scale beyond floats": manifest_of().replace(b"0x0.0p+0", b"0x1.0p+99999"),
    "an endless tensor": manifest_of([("w", (2**31, 2), "masked", "ones")]),
    "an empty tensor": manifest_of([("w", (0,), "masked", "ones")]),
    "a tensor twice": manifest_of([TENSORS[0], TENSORS[0]]),
    "nothing to mask": manifest_of([TENSORS[1]]),
    "deep nesting": b"[" * 100_000,
}


def test_a_bad_manifest_is_refused(raw: RawRun) -> None:
    raw.ann.join()
    raw.bob.join()
    for manifest in BAD_MANIFESTS.values():
        with refused(INVALID, "bad_manifest"):
            raw.ann.upload(raw.ann.initial_header(manifest=manifest), [])
    raw.finish_honestly()


def test_initial_weights_that_do_not_follow_from_the_seed_are_refused(raw: RawRun) -> None:
    raw.ann.join()
    raw.bob.join()
    with refused(PRECONDITION, "manifest_mismatch", "seed"):
        raw.ann.upload(raw.ann.initial_header(initial_digest=bytes(32)), [])
    raw.finish_honestly()


def test_the_first_described_model_is_kept_across_a_restart(raw: RawRun) -> None:
    """Eve joins with another model before the run has one; her later description is ignored."""
    other = manifest_of([*TENSORS[:3], ("second.bias", (10,), "dense", "ones")])
    eve = raw.client("eve", manifest=other)
    raw.ann.join()  # the first to join is asked to describe the model
    eve.join()
    raw.bob.join()
    with refused(INVALID, "invalid_request", "Join"):
        raw.ann.upload(raw.ann.initial_header(manifest=other), [])
    raw.ann.answer(Received(pb.Task(initialize=pb.InitializeTask()), b""))
    digest = sha256(np.r_[INITIAL[:-10], np.ones(10)].astype("<f4").tobytes())
    with refused(PRECONDITION, "join_again"):
        eve.upload(eve.initial_header(initial_digest=digest), [])
    raw.restart()
    raw.ann.join()
    raw.bob.join()
    raw.finish_honestly()


def calls_of(client: RawClient, caller: pb.Caller) -> list[Callable[[], Any]]:
    """Return one call of each kind under the identity `caller`."""
    data = bytes(4)
    update = update_pb2.SparseUpdate(values=payload_of(data, transfer_pb2.ENCODING_VALUES_ONLY))
    unary = {"timeout": TIMEOUT_S}
    evaluation = pb.ReportEvaluationRequest(caller=caller)
    leave = pb.LeaveRequest(caller=caller, reason=pb.LEAVE_REASON_STOPPING)
    return [
        lambda: client.next_task(caller=caller),
        lambda: client.upload(client.initial_header(), [], caller=caller),
        lambda: client.upload(update, chunks_of(data), caller=caller),
        lambda: client.stub.ReportEvaluation(evaluation, **unary),
        lambda: client.stub.Progress(pb.ProgressRequest(caller=caller), **unary),
        lambda: client.stub.Leave(leave, **unary),
    ]


def test_calls_by_clients_that_have_not_joined_are_refused(raw: RawRun) -> None:
    raw.training()
    run_id, session = raw.ann.caller.run_id, raw.ann.caller.session
    strangers = (
        pb.Caller(),
        pb.Caller(run_id="20200101-000000-abcdef", client_id="ann", session=session),
        pb.Caller(run_id=run_id, client_id="eve", session=session),
    )
    for caller in strangers:
        for call in calls_of(raw.ann, caller):
            with refused(StatusCode.NOT_FOUND, "unknown_client"):
                call()
    raw.finish_honestly()


def test_calls_of_a_replaced_session_are_aborted(raw: RawRun) -> None:
    raw.training()
    old = raw.ann.caller
    raw.ann.join()
    for call in calls_of(raw.ann, old):
        with refused(StatusCode.ABORTED, "session_ended", "ann"):
            call()
    raw.finish_honestly()


def test_a_session_that_was_replaced_before_a_restart_is_aborted_after_it(raw: RawRun) -> None:
    raw.training()
    old = raw.ann.caller
    raw.ann.join()
    raw.restart()
    for call in calls_of(raw.ann, old):
        with refused(StatusCode.ABORTED, "session_ended", "ann"):
            call()
    raw.finish_honestly()


def test_an_idle_call_ends_when_its_session_does(raw: RawRun) -> None:
    raw.ann.join()
    raw.bob.join()
    request = pb.NextTaskRequest(caller=raw.bob.caller)
    idle = raw.bob.stub.NextTask(request, timeout=TIMEOUT_S)
    assert next(idle).WhichOneof("part") == "waiting"
    raw.bob.join()
    raw.ann.answer(raw.ann.next_task())  # the run advances, so the idle call wakes up
    with refused(StatusCode.ABORTED, "session_ended"):
        list(idle)
    raw.finish_honestly()


def test_a_live_client_keeps_its_name(raw: RawRun) -> None:
    raw.training()
    with refused(StatusCode.ALREADY_EXISTS, "client_id_taken", "ann", "--client-id"):
        raw.ann.join(token=bytes(16))
    raw.finish_honestly()


def test_a_leave_call_needs_a_valid_reason(raw: RawRun) -> None:
    raw.training()
    with refused(INVALID, "invalid_request", "not finished"):
        raw.ann.leave(pb.LEAVE_REASON_FINISHED)
    with refused(INVALID, "invalid_request", "reason"):
        raw.ann.leave(pb.LEAVE_REASON_UNSPECIFIED)
    raw.finish_honestly()


def test_progress_that_no_task_can_have_is_refused(raw: RawRun) -> None:
    got = raw.training()
    request = pb.ProgressRequest(caller=raw.ann.caller, step=got.task.step, steps_done=2**64 - 1)
    with refused(INVALID, "invalid_request", "steps_done is 18446744073709551615"):
        raw.ann.stub.Progress(request, timeout=TIMEOUT_S)
    raw.finish_honestly()


# -- bytes that are not a call


def test_noise_on_the_port_is_harmless(raw: RawRun) -> None:
    raw.training()
    for noise in (
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(1 << 16),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", raw.coordinator.port)) as wire:
            wire.sendall(noise)
    raw.finish_honestly()


def test_a_message_of_16_mb_is_refused_unread(raw: RawRun) -> None:
    got = raw.training()
    huge = transfer_pb2.Chunk(offset=0, data=bytes(16 << 20))
    with refused(StatusCode.RESOURCE_EXHAUSTED, ""):
        raw.ann.upload(raw.ann.update_header(got, raw.ann.trained(got)), [huge])
    with refused(StatusCode.RESOURCE_EXHAUSTED, ""):
        raw.ann.join(manifest=bytes(16 << 20))
    raw.finish_honestly()


def test_an_unknown_method_is_unimplemented(raw: RawRun) -> None:
    with grpc.insecure_channel(raw.coordinator.address) as channel:
        call = channel.unary_unary("/ssfl.v1.CoordinatorService/Shutdown")
        with refused(StatusCode.UNIMPLEMENTED, ""):
            call(b"", timeout=TIMEOUT_S)
    raw.training()
    raw.finish_honestly()


def test_bytes_that_are_not_a_message_are_refused(raw: RawRun) -> None:
    garbage, service = b"\xff" * 100, "/ssfl.v1.CoordinatorService"
    with grpc.insecure_channel(raw.coordinator.address) as channel:
        with refused(INVALID, "invalid_request"):
            channel.unary_unary(f"{service}/Join")(garbage, timeout=TIMEOUT_S)
        with refused(INVALID, "invalid_request"):
            list(channel.unary_stream(f"{service}/NextTask")(garbage, timeout=TIMEOUT_S))
        with refused(INVALID, "invalid_request"):
            call = channel.stream_stream(f"{service}/SendUpdate")
            list(call(iter([garbage]), timeout=TIMEOUT_S))
    raw.training()
    raw.finish_honestly()


# -- answers that do not match their task


def test_a_header_that_does_not_fit_the_step_is_refused(raw: RawRun) -> None:
    got = raw.training()
    data = raw.ann.trained(got)
    values = payload_of(data, transfer_pb2.ENCODING_VALUES_ONLY)
    nonsense = update_pb2.Evaluation(correct=3, total=2)
    wrong: list[tuple[dict[str, Any], StatusCode, str]] = [
        ({"mask_digest": bytes(32)}, PRECONDITION, "stale_mask"),
        ({"mask_epoch": 2}, PRECONDITION, "stale_mask"),
        ({"base_digest": bytes(32)}, PRECONDITION, "stale_base"),
        ({"round_number": 1}, INVALID, "invalid_request"),
        ({"attempt": 1}, INVALID, "invalid_request"),
        ({"num_samples": 0}, INVALID, "invalid_request"),
        ({"num_samples": 2**31 + 1}, INVALID, "invalid_request"),
        ({"training_loss": float("nan")}, INVALID, "invalid_request"),
        ({"work_s": float("inf")}, INVALID, "invalid_request"),
        ({"base_evaluation": nonsense}, INVALID, "invalid_request"),
        ({"values": None}, INVALID, "invalid_request"),
        ({"values": payload_of(data, transfer_pb2.ENCODING_DENSE)}, INVALID, "invalid_request"),
        ({"values": payload_of(data[4:], values.encoding)}, INVALID, "invalid_request"),
        ({"values": payload_of(data * 2, values.encoding)}, INVALID, "invalid_request"),
        (
            {"values": announced(values, num_bytes=2**40)},
            INVALID,
            "invalid_request",
        ),
        (
            {"values": announced(values, digest=b"short")},
            INVALID,
            "invalid_request",
        ),
    ]
    for changes, code, reason in wrong:
        with refused(code, reason):
            raw.ann.upload(raw.ann.update_header(got, data, **changes), chunks_of(data))
    raw.finish_honestly()


def announced(payload: transfer_pb2.Payload, **changes: Any) -> transfer_pb2.Payload:
    """Return the payload with changed fields."""
    changed = transfer_pb2.Payload()
    changed.CopyFrom(payload)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def test_scores_of_another_model_are_refused(raw: RawRun) -> None:
    got = raw.scoring()
    data = raw.ann.scores().tobytes()
    for changes in ({"manifest_digest": bytes(32)}, {"initial_digest": bytes(32)}):
        with refused(PRECONDITION, "stale_base"):
            raw.ann.upload(raw.ann.scores_header(got, data, **changes), chunks_of(data))
    with refused(INVALID, "invalid_request", "0 training samples"):
        raw.ann.upload(raw.ann.scores_header(got, data, num_samples=0), chunks_of(data))
    raw.finish_honestly()


@pytest.mark.parametrize("bad", [-1.0, -np.float32(1e-40), np.nan, np.inf])
def test_invalid_scores_are_refused_with_their_tensor(raw: RawRun, bad: float) -> None:
    got = raw.scoring()
    for place, tensor in (
        (0, "first.weight"),
        (600, "second.weight"),
        (MASKED - 1, "second.weight"),
    ):
        scores = raw.ann.scores()
        scores[place] = bad
        data = scores.tobytes()
        with refused(INVALID, "bad_values", "ann", tensor):
            raw.ann.upload(raw.ann.scores_header(got, data), chunks_of(data))
    raw.finish_honestly()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -1025.0])
def test_invalid_values_are_refused_with_their_tensor(raw: RawRun, bad: float) -> None:
    got = raw.training()
    for place, tensor in ((200, "first.bias"), (219, "first.bias"), (220, "second.bias")):
        values = np.frombuffer(raw.ann.trained(got), dtype="<f4").copy()
        values[place] = bad
        data = values.tobytes()
        with refused(INVALID, "bad_values", "ann", tensor):
            raw.ann.upload(raw.ann.update_header(got, data), chunks_of(data))
    raw.finish_honestly()


def test_an_answer_of_another_kind_or_step_does_not_count(raw: RawRun) -> None:
    """Evaluations, scores and wrong steps are answered with STEP_CLOSED while a round is open."""
    got = raw.training()
    closed = transfer_pb2.OUTCOME_STEP_CLOSED
    request = pb.ReportEvaluationRequest(caller=raw.ann.caller, step=got.task.step)
    assert raw.ann.stub.ReportEvaluation(request, timeout=TIMEOUT_S).outcome == closed
    scores = raw.ann.scores().tobytes()
    (answer,) = raw.ann.upload(raw.ann.scores_header(got, scores, step=got.task.step), [])
    assert answer.receipt.outcome == closed
    data = raw.ann.trained(got)
    for step in (0, got.task.step - 1, got.task.step + 1, 2**64 - 1):
        (answer,) = raw.ann.upload(raw.ann.update_header(got, data, step=step), chunks_of(data))
        assert answer.receipt.outcome == closed
    raw.finish_honestly()


def test_a_client_that_was_not_asked_cannot_answer(raw: RawRun) -> None:
    got = raw.training()
    eve = raw.client("eve")
    eve.join()
    data = raw.ann.trained(got)
    with refused(INVALID, "invalid_request", "eve"):
        eve.upload(eve.update_header(got, data), chunks_of(data))
    eve.leave(pb.LEAVE_REASON_STOPPING)
    raw.finish_honestly()
