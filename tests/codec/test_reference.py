import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from codec.value_codes import (
    BLOCK_EDGES,
    SPECIAL,
    bits,
    patterns,
    random_words,
    round_trip,
)
from ssfl.codec import blocks, reference
from ssfl.codec.reference import CODE

GOLDEN = bytes.fromhex(
    # 1.0 is 0x3f800000, and twice that as zigzag code; -2.0 is 0xc0000000, as ordered integer
    # -0x40000001, as zigzag code 0x80000001; 0.5 is 0x3f000000. Four planes of three bytes.
    "03000000 000100  03000000 000000  03000000 000000  03000000 7f807e"
)


def test_golden_bytes_both_ways() -> None:
    values = np.array([1.0, -2.0, 0.5], dtype=np.float32)
    assert bytes(blocks.encode(CODE, values, None)) == GOLDEN
    assert blocks.decode(CODE, GOLDEN, 3, None).tolist() == [1.0, -2.0, 0.5]


def test_golden_bytes_against_a_reference() -> None:
    values = np.array([0x3F800002, 0xBF800001, 0x80000000], dtype=np.uint32).view(np.float32)
    base = np.array([1.0, -1.0, 0.0], dtype=np.float32)
    # Two units up, one unit down, and -0.0 is one unit below 0.0: codes 4, 1 and 1.
    payload = bytes.fromhex("03000000 040101" + 3 * "03000000 000000")
    assert bytes(blocks.encode(CODE, values, base)) == payload
    assert bits(blocks.decode(CODE, payload, 3, base)) == bits(values)


@given(st.integers(0, 65).flatmap(lambda n: st.tuples(patterns(n), patterns(n))))
def test_any_pattern_of_bits_survives_against_any_other(
    pair: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
) -> None:
    values, base = pair
    assert bits(round_trip(CODE, values, base)) == bits(values)
    assert bits(round_trip(CODE, values, None)) == bits(values)


def test_every_special_number_survives_against_every_other() -> None:
    special = np.array(SPECIAL, dtype=np.uint32).view(np.float32)
    values, base = np.repeat(special, special.size), np.tile(special, special.size)
    assert bits(round_trip(CODE, values, base)) == bits(values)


@pytest.mark.parametrize("size", [*range(66), *BLOCK_EDGES])
def test_every_size_survives(size: int) -> None:
    values = random_words(size, seed=1).view(np.float32)
    base = random_words(size, seed=2).view(np.float32)
    assert bits(round_trip(CODE, values, base)) == bits(values)
    assert bits(round_trip(CODE, values, None)) == bits(values)
    assert bits(round_trip(CODE, values, values)) == bits(values)


def test_random_words_change_nothing_of_a_lossless_code() -> None:
    values = random_words(100).view(np.float32)
    assert blocks.encode(CODE, values, None, random_words(100, 5)) == blocks.encode(
        CODE, values, None
    )


def test_close_values_take_less_than_half_of_their_bytes() -> None:
    base = np.random.default_rng(0).normal(0, 0.05, 10_000).astype(np.float32)
    values = base + np.float32(1e-6) * base
    assert len(blocks.encode(CODE, values, base)) < values.nbytes / 2
    assert len(blocks.encode(CODE, base, base)) < 200


@given(hnp.arrays(np.int32, st.integers(0, 65)))
def test_zigzag_is_undone_and_puts_small_numbers_first(integers: npt.NDArray[np.int32]) -> None:
    codes = reference.zigzag(integers.copy())
    expected = [2 * n if n >= 0 else -2 * n - 1 for n in integers.tolist()]
    assert codes.tolist() == expected
    assert reference.unzigzag(codes).tolist() == integers.tolist()
