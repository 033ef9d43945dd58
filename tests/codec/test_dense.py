import struct

import numpy as np
import pytest
from hypothesis import given

from codec.conformance import vectors
from ssfl.codec.contract import SparseVector
from ssfl.codec.dense import DENSE
from ssfl.codec.errors import MaskError

VECTOR = SparseVector(4, b"\x0d", np.array([1, -2, 0.5], dtype=np.float32))
PAYLOAD = bytes.fromhex("0000803f 00000000 000000c0 0000003f")


def test_golden_bytes_both_ways() -> None:
    assert DENSE.encode(VECTOR) == PAYLOAD
    assert DENSE.decode(PAYLOAD, 4, 3, b"\x0d") == VECTOR


@given(vectors())
def test_a_payload_is_every_coordinate_in_turn(vector: SparseVector) -> None:
    values = iter(vector.values.view(np.uint32).tolist())
    words = [next(values) if vector.bits[i // 8] >> i % 8 & 1 else 0 for i in range(vector.size)]
    assert DENSE.encode(vector) == struct.pack(f"<{vector.size}I", *words)


@given(vectors())
def test_without_the_mask_every_coordinate_counts_as_kept(vector: SparseVector) -> None:
    decoded = DENSE.decode(DENSE.encode(vector), vector.size, vector.num_kept)
    assert decoded.num_kept == vector.size
    assert decoded.values.tobytes() == vector.dense().tobytes()


@pytest.mark.parametrize("stray", [1.0, -0.0, float("nan")])
def test_a_value_off_the_mask_is_refused(stray: float) -> None:
    payload = PAYLOAD[:4] + struct.pack("<f", stray) + PAYLOAD[8:]
    with pytest.raises(MaskError, match="a coordinate off the mask is not zero"):
        DENSE.decode(payload, 4, 3, b"\x0d")
    with pytest.raises(MaskError, match="more than 3 coordinates are not zero"):
        DENSE.decode(payload, 4, 3)
    assert DENSE.decode(payload, 4, 4).num_kept == 4


def test_a_kept_zero_is_not_a_value_off_the_mask() -> None:
    assert DENSE.decode(bytes(16), 4, 3, b"\x0d").values.tolist() == [0, 0, 0]
