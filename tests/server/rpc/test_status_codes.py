import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ssfl.codec.errors import ChecksumMismatch, CodecError, MaskError
from ssfl.method.errors import ManifestError
from ssfl.server import errors
from ssfl.server.errors import Refusal, VersionUnsupported
from ssfl.server.loop.refusals import REASONS, reason_of
from ssfl.server.rpc.status_codes import STATUS, status_of

WIRE_FORMAT = Path(__file__).parents[3] / "docs" / "wire-format.md"


def family(kind: type[Exception]) -> Iterator[type[Exception]]:
    """Yield all descendants of an exception."""
    for child in kind.__subclasses__():
        yield child
        yield from family(child)


def bare(kind: type[Exception]) -> Exception:
    """Return an instance without going through its constructor."""
    return kind.__new__(kind)


REFUSALS = sorted(family(Refusal), key=lambda kind: kind.__name__)
SENT = [*REFUSALS, CodecError, *family(CodecError), ManifestError]


def test_the_walk_finds_the_deepest() -> None:
    assert errors.BadValues in REFUSALS
    assert len(REFUSALS) >= 13


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.__name__)
def test_every_refusal_class_has_a_status_and_a_reason(kind: type[Exception]) -> None:
    assert status_of(bare(kind)) is not grpc.StatusCode.INTERNAL
    assert re.fullmatch("[a-z]+(_[a-z]+)*", reason_of(bare(kind)))
    assert reason_of(bare(kind)) not in ("internal", "refused")


def test_every_refusal_has_a_reason_of_its_own() -> None:
    reasons = [kind.reason for kind in REFUSALS if issubclass(kind, Refusal)]
    assert len(set(reasons)) == len(reasons)
    assert not set(reasons) & set(REASONS.values())


def test_the_closest_ancestor_decides() -> None:
    assert status_of(errors.BadValues("x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert reason_of(errors.BadValues("x")) == "bad_values"
    assert status_of(MaskError("x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert reason_of(MaskError("x")) == "bad_payload"
    assert status_of(ChecksumMismatch(0)) is grpc.StatusCode.DATA_LOSS
    assert reason_of(ChecksumMismatch(0)) == "checksum_mismatch"


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("x"), errors.StateError("x")])
def test_an_unlisted_error_is_internal(error: Exception) -> None:
    assert status_of(error) is grpc.StatusCode.INTERNAL
    assert reason_of(error) == "internal"


def test_every_line_of_the_table_is_needed() -> None:
    assert set(STATUS) <= {*SENT}
    assert set(REASONS) <= {*SENT}


def test_the_page_lists_every_reason_with_its_status() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| ([A-Z_]+) \|", WIRE_FORMAT.read_text(), re.MULTILINE)
    page = {reason: status for cell, status in rows for reason in re.findall("[a-z_]+", cell)}
    code = {reason_of(bare(kind)): status_of(bare(kind)).name for kind in SENT}
    assert page == code | {"internal": "INTERNAL"}


def test_a_protocol_from_the_future_names_both_versions() -> None:
    error = VersionUnsupported(theirs=2, ours=1)
    assert "protocol 2" in str(error) and "speaks 1" in str(error)
