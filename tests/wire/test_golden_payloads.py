"""Payloads of earlier versions decode to their stored values (golden/v1/README.md).

Nothing here writes such files: a missing or different file is a failure.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ssfl.codec import (
    CodecError,
    bfloat16,
    blocks,
    grid,
    int8,
    masks,
    reference,
    scores,
    sorted_bits,
    values_only,
)
from ssfl.codec.blocks import Floats, ValueCode

V1 = Path(__file__).parent / "golden" / "v1"
LIST_DIGEST = "a67e99a48c9ab44d354e0f0791e292c4208e871c61f8d087dc80a0fb6e0f8483"
NOT_LISTED = {"README.md", "SHA256SUMS"}
NUM_PAYLOADS = 41
VALUE_CODES: dict[str, ValueCode] = {
    code.name: code for code in (reference.CODE, bfloat16.CODE, int8.CODE, grid.Grid())
}
ENCODINGS = {
    *VALUE_CODES,
    *("values_only", "dense", "bitmask", "bitmask_zstd", "scores", "bitmask_sorted"),
}


@dataclass(frozen=True)
class Golden:
    """A stored payload and its expected content."""

    encoding: str
    count: int
    reference: str | None
    values: str
    shapes: Sequence[Sequence[int]]
    weights: str | None

    @property
    def is_mask(self) -> bool:
        return self.encoding.startswith("bitmask")


def listed() -> dict[str, str]:
    """Return the digest of every file, by name."""
    lines = [line.split("  ") for line in (V1 / "SHA256SUMS").read_text().splitlines()]
    return {name: digest for digest, name in lines}


def names() -> list[str]:
    return sorted(name.removesuffix(".payload") for name in listed() if name.endswith(".payload"))


def golden(name: str) -> Golden:
    return Golden(**json.loads((V1 / f"{name}.json").read_text()))


def floats(name: str | None) -> Floats | None:
    return None if name is None else np.fromfile(V1 / name, dtype="<f4")


def decoded(payload: bytes, how: Golden) -> bytes:
    """Return the bytes of the values, or of the new mask, that a payload holds."""
    if how.is_mask:
        bits = mask_bits(payload, how)
        return masks.difference(bits, (V1 / how.reference).read_bytes()) if how.reference else bits
    if code := VALUE_CODES.get(how.encoding):
        values = blocks.decode(code, payload, how.count, floats(how.reference))
    elif how.encoding == "scores":
        values = scores.decode(payload, how.count)
    else:
        assert how.encoding in ("values_only", "dense")
        values = values_only.decode(payload, how.count)
    return bytes(values_only.encode(values))


def mask_bits(payload: bytes, how: Golden) -> bytes:
    if how.encoding == "bitmask_sorted":
        shapes = [tuple(shape) for shape in how.shapes]
        return sorted_bits.decode(payload, shapes, floats(how.weights))
    if how.encoding == "bitmask_zstd":
        return masks.decompress(payload, how.count)
    assert how.encoding == "bitmask"
    return masks.checked(payload, how.count)


def test_no_file_is_missing_and_none_is_new() -> None:
    assert {path.name for path in V1.iterdir()} == {*listed(), *NOT_LISTED}


def test_no_file_has_changed() -> None:
    assert hashlib.sha256((V1 / "SHA256SUMS").read_bytes()).hexdigest() == LIST_DIGEST
    for name, digest in listed().items():
        assert hashlib.sha256((V1 / name).read_bytes()).hexdigest() == digest, name


def test_every_encoding_is_there_and_every_file_is_used() -> None:
    all_of_them = [golden(name) for name in names()]
    assert len(all_of_them) == NUM_PAYLOADS
    assert {golden.encoding for golden in all_of_them} == ENCODINGS
    used = {
        file for golden in all_of_them for file in (golden.reference, golden.values, golden.weights)
    }
    described = {f"{name}.{kind}" for name in names() for kind in ("payload", "json")}
    assert set(listed()) == described | (used - {None})


@pytest.mark.parametrize("name", names())
def test_a_stored_payload_is_read_to_the_bit(name: str) -> None:
    how = golden(name)
    assert decoded((V1 / f"{name}.payload").read_bytes(), how) == (V1 / how.values).read_bytes()


@pytest.mark.parametrize("name", names())
def test_a_stored_payload_that_lost_or_gained_a_byte_is_refused(name: str) -> None:
    how, payload = golden(name), (V1 / f"{name}.payload").read_bytes()
    for damaged in (payload + b"\0", payload[:-1]) if payload else (b"\0",):
        with pytest.raises(CodecError):
            decoded(damaged, how)
