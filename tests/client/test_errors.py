"""The CallError of each status of the coordinator (the table in docs/wire-format.md)."""

import grpc
import pytest
from grpc import StatusCode

from client.fakes import FakeRpcError
from ssfl.client.errors import (
    CallError,
    Refused,
    Resync,
    SlotReclaimed,
    Unavailable,
    reason_of,
    translate,
)


@pytest.mark.parametrize(
    ("code", "reason", "meaning"),
    [
        (StatusCode.INVALID_ARGUMENT, "invalid_request", Refused),
        (StatusCode.INVALID_ARGUMENT, "bad_values", Refused),
        (StatusCode.INVALID_ARGUMENT, "bad_payload", Refused),
        (StatusCode.INVALID_ARGUMENT, "bad_manifest", Refused),
        (StatusCode.DATA_LOSS, "checksum_mismatch", Unavailable),
        (StatusCode.DATA_LOSS, "digest_mismatch", Unavailable),
        (StatusCode.FAILED_PRECONDITION, "version_unsupported", Refused),
        (StatusCode.FAILED_PRECONDITION, "manifest_mismatch", Refused),
        (StatusCode.FAILED_PRECONDITION, "model_unusable", Refused),
        (StatusCode.FAILED_PRECONDITION, "join_again", Resync),
        (StatusCode.FAILED_PRECONDITION, "stale_base", Resync),
        (StatusCode.NOT_FOUND, "unknown_client", Resync),
        (StatusCode.ABORTED, "session_ended", Refused),
        (StatusCode.ALREADY_EXISTS, "client_id_taken", Refused),
        (StatusCode.ALREADY_EXISTS, "update_conflict", Refused),
        (StatusCode.DEADLINE_EXCEEDED, "no_progress", Unavailable),
        (StatusCode.DEADLINE_EXCEEDED, "", Unavailable),
        (StatusCode.UNAVAILABLE, "", Unavailable),
        (StatusCode.CANCELLED, "", Unavailable),
        (StatusCode.FAILED_PRECONDITION, "run_full", Refused),
        (StatusCode.FAILED_PRECONDITION, "too_many_samples", Refused),
        (StatusCode.RESOURCE_EXHAUSTED, "too_many_joins", Unavailable),
        (StatusCode.RESOURCE_EXHAUSTED, "too_many_calls", Unavailable),
        (StatusCode.UNAVAILABLE, "slot_yielded", SlotReclaimed),
        (StatusCode.RESOURCE_EXHAUSTED, "", Refused),
        (StatusCode.UNIMPLEMENTED, "", Refused),
        (StatusCode.INTERNAL, "internal", Unavailable),
    ],
)
def test_every_refusal_has_one_meaning(
    code: StatusCode, reason: str, meaning: type[CallError]
) -> None:
    error = translate(FakeRpcError(code, "a sentence", reason))
    assert type(error) is meaning
    assert "a sentence" in str(error)


def test_a_status_without_details_is_named() -> None:
    assert str(translate(FakeRpcError(StatusCode.UNAVAILABLE))) == "unavailable"
    assert str(translate(FakeRpcError(StatusCode.RESOURCE_EXHAUSTED))) == "resource_exhausted"


def test_a_server_that_is_not_a_coordinator_is_reported() -> None:
    text = str(translate(FakeRpcError(StatusCode.UNIMPLEMENTED, "unknown service")))
    assert "not an ssfl coordinator" in text
    assert "unknown service" in text


def test_the_reason_is_empty_without_metadata() -> None:
    class Bare(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
        def trailing_metadata(self) -> None:
            return None

    assert reason_of(Bare()) == ""
    assert reason_of(FakeRpcError(StatusCode.ABORTED, reason="session_ended")) == "session_ended"
