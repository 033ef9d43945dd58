import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.value_codes import numbers, random_words, round_trip, rounding_slack, words
from ssfl.codec import blocks
from ssfl.codec.errors import MalformedPayload, UnfitValues
from ssfl.codec.grid import DEFAULT_BITS, MAX_BITS, MIN_BITS, Grid

Floats = npt.NDArray[np.float32]


def exact(*values: float) -> Floats:
    return np.array(values, dtype=np.float32)


def test_golden_bytes_both_ways() -> None:
    values, base = exact(1.5, -(2.0**-16)), exact(1.0, 0.0)
    # 16 bits; 0.5 is 32768 steps, zigzagged 0x10000; one step down is 1.
    payload = bytes.fromhex("10  02000000 0001  02000000 0000  02000000 0100  02000000 0000")
    assert DEFAULT_BITS == 16
    assert bytes(blocks.encode(Grid(), values, base)) == payload
    assert blocks.decode(Grid(), payload, 2, base).tolist() == values.tolist()


def test_the_payload_says_its_grid() -> None:
    values = exact(0.25, -3.0)
    payload = blocks.encode(Grid(5), values, None)
    assert blocks.decode(Grid(30), payload, 2, None).tolist() == values.tolist()


def test_halves_are_rounded_to_even() -> None:
    values = exact(0.25, 0.75, 1.25, -0.25, -0.75)
    assert round_trip(Grid(1), values, None).tolist() == [0, 1, 1, 0, -1]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Grid, Floats, Floats, npt.NDArray[np.uint32]]:
    size, grid = draw(st.integers(0, 65)), Grid(draw(st.integers(MIN_BITS, MAX_BITS)))
    largest = 2.0 ** (29 - grid.bits)
    values, base = draw(numbers(size, largest)), draw(numbers(size, largest))
    return grid, values, base, draw(words(size))


@given(cases())
def test_the_error_is_at_most_half_a_step_or_a_step(
    case: tuple[Grid, Floats, Floats, npt.NDArray[np.uint32]],
) -> None:
    grid, values, base, noise = case
    for share, used in ((0.5, None), (1.0, noise)):
        received = round_trip(grid, values, base, used)
        slack = rounding_slack(values, base, received)
        error = np.abs(received.astype(np.float64) - values)
        assert (error <= share * 2.0**-grid.bits + slack).all()


@given(st.lists(st.integers(-(2**23), 2**23), max_size=65), st.integers(MIN_BITS, MAX_BITS))
def test_numbers_on_the_grid_are_kept_exactly(steps: list[int], bits: int) -> None:
    values = np.array(steps, dtype=np.float32) * np.float32(2.0**-bits)
    noise = np.full(values.size, 2**32 - 1, dtype=np.uint32)
    assert round_trip(Grid(bits), values, None).tolist() == values.tolist()
    # The largest word of all still rounds a whole number to itself.
    small = np.abs(np.array(steps, dtype=np.int64)) < 2**20
    assert round_trip(Grid(bits), values[small], None, noise[small]).tolist() == (
        values[small].tolist()
    )


@pytest.mark.parametrize("steps", [0.3, -0.3, 1000.75, -1e-4, 7.0])
def test_the_expectation_is_the_change_itself(steps: float) -> None:
    count = 1 << 17
    values = np.full(count, steps * 2.0**-DEFAULT_BITS, dtype=np.float32)
    true = float(values[0]) * 2.0**DEFAULT_BITS
    even = (np.arange(count, dtype=np.uint64) << np.uint64(15)).astype(np.uint32)
    # Evenly spread words: off by one word in `count` at most. Random ones: 5 standard errors.
    for noise, slack in (
        (even, 1 / count),
        (random_words(count, seed=4), 5 * 0.5 / count**0.5),
    ):
        payload = blocks.encode(Grid(), values, None, noise)
        received = blocks.decode(Grid(), payload, count, None) * 2.0**DEFAULT_BITS
        assert set(np.unique(received)) <= {np.floor(true), np.ceil(true)}
        assert received.astype(np.float64).mean() == pytest.approx(true, abs=slack)


def test_a_change_beyond_31_bits_is_refused() -> None:
    largest = np.nextafter(np.float32(2.0**15), np.float32(0))
    assert round_trip(Grid(16), exact(largest, -largest), None).tolist() == [largest, -largest]
    for value in (2.0**15, -(2.0**15), 1e30):
        with pytest.raises(UnfitValues, match="too large for the grid 2\\^-16"):
            blocks.encode(Grid(16), exact(1.0, value), None)


@pytest.mark.parametrize("bits", [-1, 0, 41, 255])
def test_a_grid_that_does_not_exist_is_refused_at_both_ends(bits: int) -> None:
    with pytest.raises(UnfitValues, match=f"not {bits}"):
        Grid(bits)
    payload = bytearray(blocks.encode(Grid(), exact(1.0), None))
    payload[0] = bits % 256
    with pytest.raises(MalformedPayload, match=f"a grid of {bits % 256} bits"):
        blocks.decode(Grid(), payload, 1, None)
