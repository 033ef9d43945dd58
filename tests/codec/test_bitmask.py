import struct

import numpy as np
import pytest
from hypothesis import given

from codec.conformance import vectors
from ssfl.codec import MaskError
from ssfl.codec.bitmask import BITMASK
from ssfl.codec.contract import SparseVector

VECTOR = SparseVector(10, b"\x0d\x02", np.array([1, -2, 0.5, 8], dtype=np.float32))
PAYLOAD = bytes.fromhex("0d02 0000803f 000000c0 0000003f 00000041")


def test_golden_bytes_both_ways() -> None:
    assert BITMASK.encode(VECTOR) == PAYLOAD
    assert BITMASK.decode(PAYLOAD, 10, 4) == VECTOR


@given(vectors())
def test_a_payload_is_the_packed_bits_then_the_values(vector: SparseVector) -> None:
    words = vector.values.view(np.uint32).tolist()
    assert BITMASK.encode(vector) == vector.bits + struct.pack(f"<{len(words)}I", *words)


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        ("0d00", "the mask keeps 3 coordinates, not 4"),
        ("0f02", "the mask keeps 5 coordinates, not 4"),
        ("0d04", "bits behind the last coordinate are set"),
    ],
)
def test_bits_that_do_not_match_the_counts_are_refused(packed: str, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        BITMASK.decode(bytes.fromhex(packed) + PAYLOAD[2:], 10, 4)


@pytest.mark.parametrize("size", [8, 16, 24, 32])
def test_values_are_aligned_behind_a_mask_of_any_length(size: int) -> None:
    vector = SparseVector(size, b"\xff" * (size // 8), np.arange(size, dtype=np.float32))
    decoded = BITMASK.decode(BITMASK.encode(vector), size, size)
    assert decoded == vector
    assert decoded.values.flags.aligned
