import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssfl.codec.blocks import change, rounded
from ssfl.codec.errors import UnfitValues


def test_without_words_halves_go_to_the_even_neighbour() -> None:
    numbers = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999, 2.5001])
    assert rounded(numbers, None).tolist() == [0, 2, 2, 0, -2, 2, 3]


def test_with_words_the_fraction_is_the_probability_of_going_up() -> None:
    words = np.array([0, 2**30, 2**31, 3 * 2**30, 2**32 - 1], dtype=np.uint32)
    assert rounded(np.full(5, 0.25), words).tolist() == [0, 0, 0, 1, 1]
    assert rounded(np.full(5, -0.25), words).tolist() == [-1, 0, 0, 0, 0]
    assert rounded(np.full(5, 7.0), words).tolist() == [7] * 5


@given(st.floats(-1e6, 1e6), st.integers(0, 2**32 - 1))
def test_a_rounded_number_is_one_of_its_two_neighbours(number: float, word: int) -> None:
    (up_or_down,) = rounded(np.array([number]), np.array([word], dtype=np.uint32)).tolist()
    assert up_or_down in (np.floor(number), np.ceil(number))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_change_that_is_not_finite_is_refused(bad: float) -> None:
    zeros, values = np.zeros(3, dtype=np.float32), np.array([1, bad, 2], dtype=np.float32)
    for pair in ((values, zeros), (zeros, values), (values, values)):
        with pytest.raises(UnfitValues, match="finite"):
            change(*pair)


def test_a_change_beyond_float32_is_refused() -> None:
    large = np.array([3e38], dtype=np.float32)
    with pytest.raises(UnfitValues, match="finite"):
        change(large, -large)
    assert change(large, large).tolist() == [0.0]
