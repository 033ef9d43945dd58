import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.value_codes import numbers, random_words, round_trip, rounding_slack, words
from ssfl.codec import blocks
from ssfl.codec.errors import UnfitValues
from ssfl.codec.int8 import CODE, GROUP

Floats = npt.NDArray[np.float32]
LARGEST = 2.0**125  # so that no difference and no sum overflows


def exact(*values: float) -> Floats:
    return np.array(values, dtype=np.float32)


def steps(values: Floats, base: Floats) -> npt.NDArray[np.float64]:
    """Return the step of each value, by a slow computation."""
    changes = np.abs(values.astype(np.float64) - base)
    groups = np.arange(values.size) // GROUP
    return np.array([changes[groups == group].max() / 127 for group in groups])


def test_golden_bytes_both_ways() -> None:
    # The step is 127 / 127 = 1.0; zigzagged, 127 is 254 and -3 is 5.
    payload = bytes.fromhex("0000803f  02000000 fe05")
    assert bytes(blocks.encode(CODE, exact(127.0, -3.0), None)) == payload
    assert blocks.decode(CODE, payload, 2, None).tolist() == [127.0, -3.0]


def test_halves_are_rounded_to_even() -> None:
    values = exact(127.0, 0.5, 1.5, 2.5, -0.5, -1.5)
    assert round_trip(CODE, values, None).tolist() == [127, 0, 2, 2, 0, -2]


def test_every_256_values_have_a_step_of_their_own() -> None:
    values = np.concatenate([np.full(GROUP, 127e6), np.full(GROUP, 127e-6), [3.0]])
    values = values.astype(np.float32)
    assert np.allclose(round_trip(CODE, values, None), values, rtol=2**-22, atol=0)


def test_a_group_without_a_change_is_exact() -> None:
    base = random_words(300, seed=3) * np.float32(2.0**-32)
    base = base.astype(np.float32)
    assert round_trip(CODE, base, base).tolist() == base.tolist()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Floats, Floats, npt.NDArray[np.uint32]]:
    size = draw(st.one_of(st.integers(0, 65), st.integers(GROUP - 1, GROUP + 1)))
    return draw(numbers(size, LARGEST)), draw(numbers(size, LARGEST)), draw(words(size))


@given(cases())
def test_the_error_is_at_most_half_a_step_or_a_step(
    case: tuple[Floats, Floats, npt.NDArray[np.uint32]],
) -> None:
    values, base, noise = case
    step = steps(values, base)
    for share, used in ((0.5, None), (1.0, noise)):
        received = round_trip(CODE, values, base, used)
        slack = rounding_slack(values, base, received) + 2**-22 * step
        assert (np.abs(received.astype(np.float64) - values) <= share * step + slack).all()


@pytest.mark.parametrize("value", [0.3, -0.3, 41.99, -126.5, 5.0, 1e-3])
def test_the_expectation_over_all_words_is_the_change_itself(value: float) -> None:
    count = 255 * GROUP  # in each group one value of 127, so that the step is 1
    noise = (np.arange(count) * (2**32 / count)).astype(np.uint32)
    values = np.full(count, value, dtype=np.float32)
    values[::GROUP] = 127
    received = blocks.decode(CODE, blocks.encode(CODE, values, None, noise), count, None)
    others = np.arange(count) % GROUP > 0
    assert set(np.unique(received[others])) <= {np.floor(value), np.ceil(value)}
    # The words are evenly spread but for one in 256: the mean is off by that much at most.
    assert received[others].astype(np.float64).mean() == pytest.approx(value, abs=1 / GROUP)


@pytest.mark.parametrize("value", [0.3, -41.7])
def test_the_expectation_over_random_words_is_the_change_itself(value: float) -> None:
    count = 1 << 18
    values = np.full(count, value, dtype=np.float32)
    values[::GROUP] = 127
    payload = blocks.encode(CODE, values, None, random_words(count, seed=9))
    others = np.arange(count) % GROUP > 0
    received = blocks.decode(CODE, payload, count, None)[others].astype(np.float64)
    # Five standard errors of a mean of steps of 1; the words are seeded.
    assert received.mean() == pytest.approx(value, abs=5 * 0.5 / count**0.5)


def test_the_largest_floats_never_become_infinite() -> None:
    # largest / 127 is rounded up to a step whose 127-fold is infinite.
    with pytest.raises(UnfitValues, match="too large for int8"):
        blocks.encode(CODE, exact(1.0, 3.4028235e38), None)
    assert np.isfinite(round_trip(CODE, exact(1.0, 3.4e38), None)).all()


def test_the_smallest_subnormal_numbers_are_kept_or_dropped_but_never_wild() -> None:
    smallest = 2.0**-149
    values = exact(*(n * smallest for n in (0, 1, -1, 63, 64, 127, 190, -190)))
    received = round_trip(CODE, values, None)
    assert np.abs(received.astype(np.float64) - values).max() <= 127 * smallest
