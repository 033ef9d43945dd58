from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ssfl.method import exact_sum as module
from ssfl.method.errors import SumError
from ssfl.method.exact_sum import (
    MAX_FRACTION_BITS,
    MAX_SCORE_FRACTION_BITS,
    VALUE_BOUND,
    ExactSum,
    fraction_bits,
)
from ssfl.method.streams import Stream

Vector = npt.NDArray[np.float32]
Upload = tuple[float, int]  # value, weight


def vector(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


def mean_of(uploads: Sequence[tuple[Vector, int]], bound: float = VALUE_BOUND) -> Vector:
    bits = fraction_bits(bound, sum(weight for _, weight in uploads))
    total = ExactSum(uploads[0][0].size, bits)
    for values, weight in uploads:
        total.fold(values, weight)
    return total.mean()


def nearest_float32(exact: Fraction) -> float:
    """Return the float32 nearest to a fraction, ties to even, by integers only."""
    if exact == 0:
        return 0.0
    exponent = abs(exact).numerator.bit_length() - abs(exact).denominator.bit_length()
    if Fraction(2) ** exponent > abs(exact):
        exponent -= 1  # now 2^exponent <= |exact| < 2^(exponent + 1)
    step = Fraction(2) ** (max(exponent, -126) - 23)
    return float(round(exact / step) * step)  # round() of a Fraction takes ties to even


def exact_mean(uploads: Sequence[Upload], bits: int) -> Fraction:
    """Return the exact mean of values rounded to the grid 2^-bits."""
    grid = Fraction(2) ** bits
    total = sum(weight * round(Fraction(value) * grid) for value, weight in uploads)
    return Fraction(total, sum(weight for _, weight in uploads)) / grid


def test_three_clients_with_numbers_by_hand() -> None:
    mean = mean_of([(vector(2.0, -1.0), 10), (vector(5.0, 0.5), 20), (vector(-4.0, 8.0), 10)])
    # (2*10 + 5*20 - 4*10) / 40 = 80 / 40, (-10 + 10 + 80) / 40 = 80 / 40
    assert mean.tolist() == [2.0, 2.0]


def test_weights_are_shares_of_the_whole() -> None:
    assert mean_of([(vector(1.0), 1), (vector(0.0), 3)]).tolist() == [0.25]
    assert mean_of([(vector(1.0), 1_000_000), (vector(0.0), 3_000_000)]).tolist() == [0.25]


def test_one_client_gets_its_own_values_back() -> None:
    values = vector(0.1, -1024.0, 1024.0, 1e-3, 0.0, 3.1415927)
    assert mean_of([(values, 123_457)]).tolist() == values.tolist()


def test_no_order_of_folding_changes_a_bit() -> None:
    stream = Stream(0, "updates")
    uploads = [
        ((stream.uniform(1000) * 2 - 1).astype(np.float32) * np.float32(10.0**-i), 17 + 1000 * i)
        for i in range(5)
    ]
    means = {mean_of(order).tobytes() for order in permutations(uploads)}
    assert len(means) == 1


def test_a_fold_in_parts_is_the_fold_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    values = (Stream(1, "updates").uniform(1000) - 0.5).astype(np.float32)
    whole, parts = ExactSum(1000, 30), ExactSum(1000, 30)
    whole.fold(values, 7)
    monkeypatch.setattr(module, "_BLOCK", 13)
    for start in range(0, 1000, 64):
        parts.fold_at(start, values[start : start + 64], 7)
    parts.total_weight += 7
    assert parts.mean().tobytes() == whole.mean().tobytes()


FINITE = st.floats(-1024, 1024, width=32)
SAMPLES = st.integers(1, 2**31)
SCORES = st.floats(0, width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(FINITE, SAMPLES), min_size=1, max_size=6))
def test_the_mean_is_the_exact_one_rounded_once(uploads: list[Upload]) -> None:
    bits = fraction_bits(VALUE_BOUND, sum(weight for _, weight in uploads))
    mean = mean_of([(vector(value), weight) for value, weight in uploads])
    assert mean.item() == nearest_float32(exact_mean(uploads, bits))


@given(st.integers(0, 2**18 - 1), st.integers(1, 2**33), st.sampled_from([-1, 0, 1]))
@example(place=0, weight=8191, push=0)
@example(place=1, weight=8191, push=0)
@example(place=0, weight=2**33 - 1, push=1)
@example(place=1, weight=2**33 - 1, push=-1)
def test_a_tie_goes_to_the_even_neighbour_and_only_a_tie(
    place: int, weight: int, push: int
) -> None:
    """The mean of three clients is midway between two float32; a fourth may push it off slightly.

    Such sums do not fit in a double, and the push can be far below its last bit.
    """
    low = 500 + place * 2.0**-15  # a float32; the next is 2^-15 away
    middle = low + 2.0**-16
    second = float(np.float32(3 * middle - 1000))
    third = 3 * middle - 1000 - second
    assert float(np.float32(third)) == third
    uploads = [(1000.0, weight), (second, weight), (third, weight)]
    if push:
        uploads.append((middle + push * 2.0**-16, 1))
    bits = fraction_bits(VALUE_BOUND, sum(samples for _, samples in uploads))
    exact = exact_mean(uploads, bits)
    assert (exact > middle) - (exact < middle) == push
    mean = mean_of([(vector(value), samples) for value, samples in uploads])
    assert mean.item() == nearest_float32(exact)


@given(
    st.integers(2**23, 2**24 - 1),
    st.integers(2**25, 2**58) | st.integers(25, 58).map(lambda bits: 2**bits),
    st.sampled_from([-1, 0, 1]),
    st.sampled_from([1.0, -1.0]),
)
@example(half=8388608, total=54976127867781316, push=-1, sign=1.0)  # wraps in 64-bit integers
def test_ties_are_found_for_any_total_weight(half: int, total: int, push: int, sign: float) -> None:
    """A share of about m / 2^25 of the weight uploads one, the rest uploads zero.

    An odd m of 25 bits is midway between two float32: exactly if the total is a power of two.
    """
    m = 2 * half + 1
    weight = (total * m >> 25) + push
    uploads = [(sign, weight), (0.0, total - weight)]
    bits = fraction_bits(1.0, total)
    mean = mean_of([(vector(value), samples) for value, samples in uploads], bound=1.0)
    assert mean.item() == nearest_float32(exact_mean(uploads, bits))


def test_a_tie_by_hand() -> None:
    step = 2.0**-23
    assert mean_of([(vector(1.0), 1), (vector(1.0 + step), 1)]).tolist() == [1.0]
    assert mean_of([(vector(1.0 + step), 1), (vector(1.0 + 2 * step), 1)]).tolist() == [
        1.0 + 2 * step
    ]
    assert mean_of([(vector(-1.0), 1), (vector(-1.0 - step), 1)]).tolist() == [-1.0]


@given(st.lists(st.tuples(SCORES, st.integers(1, 2**20)), min_size=1, max_size=4))
def test_scores_of_any_size_have_an_exact_mean(uploads: list[Upload]) -> None:
    largest = max(value for value, _ in uploads)
    bits = fraction_bits(largest, sum(weight for _, weight in uploads), MAX_SCORE_FRACTION_BITS)
    total = ExactSum(1, bits)
    for value, weight in uploads:
        total.fold(vector(value), weight)
    assert total.mean().item() == nearest_float32(exact_mean(uploads, bits))


@given(st.floats(1e-30, 1e30), st.integers(1, 2**40), st.sampled_from([36, 80]))
def test_fraction_bits_are_the_largest_that_are_safe(bound: float, weight: int, limit: int) -> None:
    bits = fraction_bits(bound, weight, limit)
    room = Fraction(2) ** 62 / (Fraction(bound) * weight)
    assert Fraction(2) ** bits < room
    assert bits == limit or Fraction(2) ** (bits + 1) >= room


@pytest.mark.parametrize(
    ("bound", "weight", "bits"),
    [
        (1024.0, 2**16 - 1, 36),
        (1024.0, 2**16, 35),  # 2^10 * 2^16 * 2^36 would be 2^62 itself
        (1024.0, 2**17 - 1, 35),
        (1024.0, 2**17, 34),
        (1024.0, 1, 36),
        (1.0, 2**62, -1),
        (0.0, 5, 36),
    ],
)
def test_fraction_bits_at_their_edges(bound: float, weight: int, bits: int) -> None:
    assert fraction_bits(bound, weight) == bits


def test_the_largest_sum_of_the_bound_does_not_overflow() -> None:
    for weight in (2**16 - 1, 2**16, 2**31, 2**40 + 1):
        for sign in (1, -1):
            values = vector(sign * VALUE_BOUND)
            assert mean_of([(values, weight), (values, weight)]).tolist() == values.tolist()


def test_the_finest_grid_still_gives_normal_floats() -> None:
    """One unit of the finest score grid, shared by 2^45 samples, is above the smallest normal."""
    total = ExactSum(1, MAX_SCORE_FRACTION_BITS)
    total.fold(vector(2.0**-MAX_SCORE_FRACTION_BITS), 1)
    total.total_weight = 2**45
    assert total.mean().item() == 2.0**-125 >= np.finfo(np.float32).tiny


def test_small_values_keep_most_of_their_bits_on_the_grid() -> None:
    value = float(np.float32(1e-3))
    # The grid is 2^-36 = 1.5e-11, so at most half of that is lost.
    assert abs(mean_of([(vector(value), 1)]).item() - value) <= 2.0 ** -(MAX_FRACTION_BITS + 1)


@pytest.mark.parametrize(
    ("bound", "weight"), [(1.0, 0), (1.0, -1), (-1.0, 1), (float("inf"), 1), (float("nan"), 1)]
)
def test_an_impossible_bound_or_weight_is_refused(bound: float, weight: int) -> None:
    with pytest.raises(SumError, match="cannot sum"):
        fraction_bits(bound, weight)


def test_vectors_of_another_size_are_refused_and_leave_no_trace() -> None:
    total = ExactSum(3, 36)
    with pytest.raises(SumError, match="2 values for a sum of 3"):
        total.fold(vector(1, 2), 1)
    with pytest.raises(SumError, match="4 values for a sum of 3"):
        total.fold_at(2, vector(1, 2), 1)
    total.fold(vector(1, 2, 3), 1)
    assert total.mean().tolist() == [1, 2, 3]


@given(st.lists(st.tuples(st.floats(-1000, 1000, width=32), st.integers(1, 10**6)), min_size=1))
def test_every_value_may_have_its_own_total_weight(uploads: list[Upload]) -> None:
    """Each mean is the exact quotient rounded once, for any weights of the others."""
    bits = fraction_bits(VALUE_BOUND, sum(weight for _, weight in uploads))
    total = ExactSum(3, bits)
    for value, weight in uploads:
        total.fold(vector(value, -value, value), weight)
    mean = exact_mean(uploads, bits)
    whole, own = total.total_weight, [1, 7, total.total_weight]
    exact = [mean * whole, -mean * whole / 7, mean]
    expected = [nearest_float32(fraction) for fraction in exact]
    assert total.mean(np.array(own, dtype=np.int64)).tolist() == expected


def test_a_value_without_weight_has_no_mean() -> None:
    total = ExactSum(2, 36)
    total.fold(vector(1, 2), 3)
    with pytest.raises(SumError, match="the mean of nothing"):
        total.mean(np.array([3, 0], dtype=np.int64))


def test_the_mean_of_nothing_is_refused() -> None:
    with pytest.raises(SumError, match="the mean of nothing"):
        ExactSum(3, 36).mean()


def test_a_sum_of_no_values_has_an_empty_mean() -> None:
    assert mean_of([(vector(), 1)]).size == 0
