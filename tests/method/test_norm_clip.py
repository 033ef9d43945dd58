"""An update with too large a norm is scaled down, to the same bits everywhere."""

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.method.norm_clip import BLOCK, change_norm, clip, in_blocks
from ssfl.method.streams import Stream

Vector = npt.NDArray[np.float32]


def drawn(size: int, purpose: str) -> Vector:
    return (Stream(0, purpose, "c").uniform(size) - 0.5).astype(np.float32)


def vector(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


def test_the_norm_is_that_of_the_change() -> None:
    assert change_norm(in_blocks(vector(4, 1, 7)), vector(1, 1, 3)) == 5.0
    assert change_norm(in_blocks(vector()), vector()) == 0.0


def test_an_update_within_the_limit_keeps_its_bits() -> None:
    values, base = vector(3, 4, -0.0), vector(0, 0, 0)
    for limit in (0.0, 5.0, 6.0):
        same, norm = clip(values, base, limit)
        assert same.tobytes() == values.tobytes() and norm is None


def test_a_longer_update_is_scaled_to_the_limit_and_its_norm_is_returned() -> None:
    short, norm = clip(vector(1 + 30, 2, 40), vector(1, 2, 0), 5.0)
    assert norm == 50.0
    assert short.tolist() == [4.0, 2.0, 4.0]


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_the_result_equals_the_slow_computation(size: int) -> None:
    values, base = drawn(size, "values"), drawn(size, "base")
    short, norm = clip(values, base, 0.01)
    change = values.astype(np.float64) - base.astype(np.float64)
    assert norm == pytest.approx(np.linalg.norm(change), rel=1e-12)
    assert norm is not None
    by_hand = (base.astype(np.float64) + change * (0.01 / norm)).astype(np.float32)
    assert short.tobytes() == by_hand.tobytes()
    assert short.dtype == np.float32
    # As close to the limit as float32 values around the base can be.
    assert change_norm(in_blocks(short), base) == pytest.approx(0.01, rel=1e-3)


def test_the_largest_values_do_not_overflow() -> None:
    """|value| is at most 1024 here; even half a billion of them have a finite norm."""
    values = np.full(BLOCK, 1024, dtype=np.float32)
    short, norm = clip(values, -values, 1.0)
    assert norm is not None and np.isfinite(norm)
    assert np.isfinite(short).all() and np.abs(short).max() <= 1024
