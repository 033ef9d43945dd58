"""Coded uploads: allowed encodings, size limits, and the files they leave on disk."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from server.step_harness import announced
from ssfl.codec import (
    CodecError,
    DigestMismatch,
    MalformedPayload,
    TrailingBytes,
    TruncatedPayload,
    bfloat16,
    blocks,
    grid,
    int8,
    reference,
    scores,
)
from ssfl.codec.blocks import ValueCode
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.settings import RunSettings
from ssfl.server.errors import InvalidRequest, StaleBase
from ssfl.server.loop.refusals import reason_of
from ssfl.server.storage.upload_files import PartialUpload, StoredValues
from ssfl.server.uploads.decode import check_scores, check_update, score_blocks, update_blocks
from ssfl.server.uploads.step_upload import StepUpload
from ssfl.server.uploads.verify import ScoreCheck, VerifiedUpload, verify_coded, verify_plain
from ssfl.strategies.contract import ClientId
from ssfl.v1 import transfer_pb2 as pb

Vector = npt.NDArray[np.float32]
BASE_DIGEST = bytes(range(32))
CODES: dict[str, tuple[int, ValueCode]] = {
    "bfloat16": (pb.ENCODING_BFLOAT16, bfloat16.CODE),
    "int8": (pb.ENCODING_INT8, int8.CODE),
    "grid": (pb.ENCODING_GRID, grid.Grid()),
}
EXACT = RunSettings()


def of(encoding: int, num_bytes: int, against: bytes = b"") -> pb.Payload:
    name = pb.Encoding.Name(encoding)
    return pb.Payload(
        encoding=name, num_bytes=num_bytes, digest=bytes(32), reference_digest=against
    )


# -- what may be announced


@pytest.mark.parametrize("value_type", ["float32", *CODES])
def test_an_update_may_be_plain_or_exact_or_in_the_lossy_code_of_the_run(value_type: str) -> None:
    settings = RunSettings(value_type=value_type)
    allowed = []
    for encoding in pb.Encoding.values():
        size = 400 if encoding == pb.ENCODING_VALUES_ONLY else 50
        try:
            check_update(of(encoding, size), 100, BASE_DIGEST, settings)
        except InvalidRequest as error:
            expected = "is not allowed; expected ENCODING_VALUES_ONLY"
            assert f"encoding {encoding} {expected}" in str(error)
        else:
            allowed.append(encoding)
    lossy = [CODES[value_type][0]] if value_type in CODES else []
    assert allowed == [pb.ENCODING_VALUES_ONLY, pb.ENCODING_REFERENCE, *lossy]


@pytest.mark.parametrize(
    ("value_type", "encoding", "most"),
    [
        ("float32", pb.ENCODING_REFERENCE, 4 * 70_000 + 16 * 2),
        ("bfloat16", pb.ENCODING_BFLOAT16, 2 * 70_000 + 8 * 2),
        ("int8", pb.ENCODING_INT8, 70_000 + 4 * 274 + 4 * 2),
        ("grid", pb.ENCODING_GRID, 4 * 70_000 + 17 * 2),
    ],
)
def test_a_coded_update_is_refused_above_its_documented_size(
    value_type: str, encoding: int, most: int
) -> None:
    settings = RunSettings(value_type=value_type)
    for size in (1, most):
        check_update(of(encoding, size), 70_000, BASE_DIGEST, settings)
    for size in (0, most + 1, 2**63):
        with pytest.raises(InvalidRequest, match=f"{size} bytes .*; expected at most {most}"):
            check_update(of(encoding, size), 70_000, BASE_DIGEST, settings)


def test_a_plain_update_has_a_fixed_size_in_a_lossy_run() -> None:
    for size in (399, 401):
        with pytest.raises(InvalidRequest, match="; expected 400"):
            check_update(
                of(pb.ENCODING_VALUES_ONLY, size), 100, b"", RunSettings(value_type="int8")
            )


def test_compact_scores_are_accepted_if_the_run_uses_them() -> None:
    most = 3 + 70_000 + 4 * 2
    for settings in (EXACT, RunSettings(scores="exact")):
        check_scores(of(pb.ENCODING_DENSE, 4 * 70_000), 70_000, settings)
    for size in (1, most):
        check_scores(of(pb.ENCODING_SCORES, size), 70_000, EXACT)
    for size in (0, most + 1):
        with pytest.raises(InvalidRequest, match=f"expected at most {most}"):
            check_scores(of(pb.ENCODING_SCORES, size), 70_000, EXACT)
    with pytest.raises(InvalidRequest, match="expected ENCODING_DENSE"):
        check_scores(of(pb.ENCODING_SCORES, most), 70_000, RunSettings(scores="exact"))


def test_an_update_is_coded_against_the_base_of_the_step_or_nothing() -> None:
    for against in (b"", BASE_DIGEST):
        check_update(of(pb.ENCODING_REFERENCE, 50, against), 100, BASE_DIGEST, EXACT)
    for against in (bytes(32), BASE_DIGEST[:31], b"x"):
        with pytest.raises(StaleBase, match="coded against other values") as caught:
            check_update(of(pb.ENCODING_REFERENCE, 50, against), 100, BASE_DIGEST, EXACT)
        assert reason_of(caught.value) == "stale_base"


# -- what becomes of the file


def numbers(size: int) -> tuple[Vector, Vector]:
    rng = np.random.default_rng(4)
    base = rng.normal(0, 0.1, size).astype(np.float32)
    return base, (base + rng.normal(0, 1e-3, size)).astype(np.float32)


MODEL = Manifest((TensorSpec("w", (blocks.BLOCK + 7,), Role.MASKED, Init("zeros")),))
FINITE = ScoreCheck(ClientId("c1"), MODEL, signed=True)


def received(folder: Path, data: bytes) -> PartialUpload:
    part = PartialUpload(folder / "c1.0123.part")
    part.path.write_bytes(data)
    return part


def in_blocks(
    part: PartialUpload, payload: pb.Payload, base: Vector, settings: RunSettings
) -> VerifiedUpload:
    """Verify a coded update as an upload does."""
    decoded = update_blocks(part.view(), payload, base, settings)
    return verify_coded(part, payload.digest, decoded, FINITE)


@pytest.mark.parametrize("against", [BASE_DIGEST, b""], ids=["base", "nothing"])
@pytest.mark.parametrize("value_type", ["float32", *CODES])
def test_a_coded_update_is_decoded_to_a_file_of_values(
    tmp_path: Path, value_type: str, against: bytes
) -> None:
    encoding, code = CODES.get(value_type, (pb.ENCODING_REFERENCE, reference.CODE))
    base, trained = numbers(blocks.BLOCK + 7)
    data = bytes(blocks.encode(code, trained, base if against else None))
    part = received(tmp_path, data)
    settings = RunSettings(value_type=value_type)
    found = in_blocks(part, announced(data, encoding, against), base, settings)
    path = found.values.path
    assert (path.parent, path.suffix) == (tmp_path, ".plain")
    expected = blocks.decode(code, data, base.size, base if against else None)
    assert path.read_bytes() == expected.tobytes()
    assert found.digest == found.values.digest()
    assert found.largest == np.abs(expected).max()
    assert part.path.read_bytes() == data, "still there, to be resumed"


def test_a_plain_upload_is_its_own_file_and_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, _ = numbers(blocks.BLOCK + 7)
    part = received(tmp_path, values.tobytes())
    digest, starts, read = part.digest(), list[int](), StoredValues.read

    def counting(stored: StoredValues, start: int, count: int) -> Vector:
        starts.append(start)
        return read(stored, start, count)

    monkeypatch.setattr(StoredValues, "read", counting)
    monkeypatch.setattr(PartialUpload, "digest", None)
    found = verify_plain(part, digest, values.size, FINITE)
    assert found == VerifiedUpload(part.values, digest, float(np.abs(values).max()))
    assert starts == [0, blocks.BLOCK]


def test_bytes_damaged_in_transit_raise_a_digest_error_before_bad_values(tmp_path: Path) -> None:
    """The digest is compared first, also where a value of the damaged bytes breaks the rule."""
    values, _ = numbers(10)
    for damaged in (np.full(10, np.nan, np.float32), values + np.float32(1)):
        part = received(tmp_path, damaged.tobytes())
        with pytest.raises(DigestMismatch):
            verify_plain(part, hashlib.sha256(values.tobytes()).digest(), 10, FINITE)


def test_compact_scores_become_plain_ones(tmp_path: Path) -> None:
    found = np.abs(numbers(scores.BLOCK + 7)[0])
    data = bytes(scores.encode(found, 1000, np.zeros(found.size, dtype=np.uint32)))
    part, payload = received(tmp_path, data), announced(data, pb.ENCODING_SCORES)
    decoded = score_blocks(part.view(), payload, found.size)
    verified = verify_coded(part, payload.digest, decoded, FINITE)
    assert verified.values.path.read_bytes() == scores.decode(data, found.size).tobytes()


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: data[:-1], TruncatedPayload),
        (lambda data: data + b"\0", TrailingBytes),
        (lambda data: data[:0], TruncatedPayload),
        (lambda data: b"\xff" * len(data), MalformedPayload),
    ],
    ids=["short", "long", "empty", "noise"],
)
def test_an_undecodable_upload_is_refused_and_leaves_no_values(
    tmp_path: Path, damage: Callable[[bytes], bytes], error: type[CodecError]
) -> None:
    base, trained = numbers(100)
    data = damage(bytes(blocks.encode(reference.CODE, trained, base)))
    part = received(tmp_path, data)
    with pytest.raises(error):
        in_blocks(part, announced(data, pb.ENCODING_REFERENCE, BASE_DIGEST), base, EXACT)
    assert list(tmp_path.iterdir()) == [part.path]


def test_a_kind_of_upload_must_decode_its_values() -> None:
    assert StepUpload.__abstractmethods__ == {"_decoded"}
