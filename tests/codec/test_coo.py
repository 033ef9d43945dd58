import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.conformance import vectors
from ssfl.codec.contract import BLOCK, SparseVector
from ssfl.codec.coo import COO
from ssfl.codec.errors import CodecError, MaskError

VECTOR = SparseVector(4, b"\x0d", np.array([1, -2, 0.5], dtype=np.float32))
PAYLOAD = bytes.fromhex("00000000 02000000 03000000 0000803f 000000c0 0000003f")


def payload_of(*indices: int) -> bytes:
    return struct.pack(f"<{len(indices)}I", *indices) + bytes(4 * len(indices))


def test_golden_bytes_both_ways() -> None:
    assert COO.encode(VECTOR) == PAYLOAD
    assert COO.decode(PAYLOAD, 4, 3) == VECTOR


@given(vectors())
def test_a_payload_is_the_kept_indices_then_their_values(vector: SparseVector) -> None:
    indices = [i for i in range(vector.size) if vector.bits[i // 8] >> i % 8 & 1]
    assert COO.encode(vector) == struct.pack(
        f"<{2 * len(indices)}I", *indices, *vector.values.view(np.uint32).tolist()
    )
    assert COO.encoded_bytes(vector.size, vector.num_kept) == 8 * vector.num_kept


@given(st.lists(st.integers(0, 12), max_size=6))
def test_indices_decode_only_if_they_ascend_and_exist(indices: list[int]) -> None:
    sound = indices == sorted(set(indices)) and all(index < 10 for index in indices)
    try:
        vector = COO.decode(payload_of(*indices), 10, len(indices))
    except CodecError:
        assert not sound
    else:
        assert sound
        assert int.from_bytes(vector.bits, "little") == sum(1 << index for index in indices)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ((2, 2, 3), "index 2 follows 2: not ascending"),
        ((0, 3, 1), "index 1 follows 3: not ascending"),
        ((9, 8, 1), "index 8 follows 9: not ascending"),
        ((1, 2, 4), "index 4 in a vector of 4 coordinates"),
        ((1, 2, 2**32 - 1), "index 4294967295 in a vector of 4 coordinates"),
    ],
)
def test_indices_out_of_order_or_range_are_named(indices: tuple[int, ...], message: str) -> None:
    with pytest.raises(MaskError, match=message):
        COO.decode(payload_of(*indices), 4, 3)


@pytest.mark.parametrize(
    "indices", [(BLOCK - 1, BLOCK), (0, 3 * BLOCK), (BLOCK, 2 * BLOCK - 1, 3 * BLOCK + 4)]
)
def test_indices_on_either_side_of_a_block_keep_their_place(indices: tuple[int, ...]) -> None:
    size = 3 * BLOCK + 5
    vector = COO.decode(payload_of(*indices), size, len(indices))
    kept = np.unpackbits(np.frombuffer(vector.bits, np.uint8), bitorder="little")
    assert np.flatnonzero(kept).tolist() == list(indices)
    assert COO.encode(vector) == payload_of(*indices)


def test_the_first_and_the_last_coordinate_of_a_large_vector_have_an_index() -> None:
    size = 1 << 27  # a mask of 16 MiB
    vector = COO.decode(payload_of(0, size - 1), size, 2)
    assert (vector.bits[0], vector.bits[-1]) == (0x01, 0x80)
