import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.value_codes import numbers, round_trip, rounding_slack, words
from ssfl.codec import blocks
from ssfl.codec.bfloat16 import CODE
from ssfl.codec.errors import UnfitValues

Floats = npt.NDArray[np.float32]
LARGEST = 2.0**126  # so that no difference and no sum overflows


def exact(*values: float) -> Floats:
    return np.array(values, dtype=np.float32)


def test_golden_bytes_both_ways() -> None:
    # 1.0 is 0x3f80 and -2.0 is 0xc000; rotated left by one 0x7f00 and 0x8001.
    payload = bytes.fromhex("02000000 0001  02000000 7f80")
    assert bytes(blocks.encode(CODE, exact(1.0, -2.0), None)) == payload
    assert blocks.decode(CODE, payload, 2, None).tolist() == [1.0, -2.0]


def test_halves_are_rounded_to_even() -> None:
    # Seven bits behind the point: 1 + 2^-8 lies half-way between 1 and 1 + 2^-7.
    values = exact(1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20)
    assert round_trip(CODE, values, None).tolist() == [1, 1 + 2**-6, -1, 1 + 2**-7]


def test_zeros_keep_their_sign_and_subnormal_changes_their_size() -> None:
    smallest = float(np.array([0x00010000], dtype=np.uint32).view(np.float32)[0])
    received = round_trip(CODE, exact(0.0, smallest, -smallest), None)
    assert received.tolist() == [0.0, smallest, -smallest]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Floats, Floats, npt.NDArray[np.uint32]]:
    size = draw(st.integers(0, 65))
    return draw(numbers(size, LARGEST)), draw(numbers(size, LARGEST)), draw(words(size))


@given(cases())
def test_the_error_is_at_most_1_part_in_256_of_the_change(
    case: tuple[Floats, Floats, npt.NDArray[np.uint32]],
) -> None:
    values, base, noise = case
    change = np.abs(values.astype(np.float64) - base)
    received = round_trip(CODE, values, base)
    slack = rounding_slack(values, base, received)
    assert (
        np.abs(received.astype(np.float64) - values) <= 2**-8 * change + 2.0**-134 + slack
    ).all()
    received = round_trip(CODE, values, base, noise)
    slack = rounding_slack(values, base, received)
    assert (
        np.abs(received.astype(np.float64) - values) <= 2**-7 * change + 2.0**-133 + slack
    ).all()


@pytest.mark.parametrize("value", [1.001, -0.3, 1.9999, 1e-40, -3e38, 2.0**-133, 0.0])
def test_the_expectation_over_all_words_is_the_change_itself(value: float) -> None:
    noise = np.arange(1 << 16, dtype=np.uint32)  # only the low 16 bits count
    values = np.full(noise.size, value, dtype=np.float32)
    received = blocks.decode(CODE, blocks.encode(CODE, values, None, noise), values.size, None)
    assert np.unique(received).size <= 2
    # Sums of 2^16 doubles that differ by one unit of 2^-7: exact but for the last bits.
    assert received.astype(np.float64).mean() == pytest.approx(float(values[0]), rel=1e-12)


@pytest.mark.parametrize("value", [3.4028235e38, -3.4e38])
def test_a_change_that_would_round_to_infinity_is_refused(value: float) -> None:
    with pytest.raises(UnfitValues, match="too large for bfloat16"):
        blocks.encode(CODE, exact(1.0, value), None)
    # Cut instead of rounded it fits.
    noise = np.zeros(2, dtype=np.uint32)
    assert np.isfinite(round_trip(CODE, exact(1.0, value), None, noise)).all()
