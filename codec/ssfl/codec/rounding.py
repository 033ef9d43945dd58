"""Rounding to integers: to nearest, or up with the probability that keeps the expectation exact."""

import numpy as np
import numpy.typing as npt

from ssfl.codec.blocks import Floats, Words
from ssfl.codec.errors import UnfitValues

Doubles = npt.NDArray[np.float64]


def change(values: Floats, reference: Floats) -> Floats:
    """Return values - reference, which must be finite, as float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = values - reference
    if not np.isfinite(difference).all():
        raise UnfitValues("a lossy code holds finite changes only: there is a NaN or an infinity")
    return difference


def rounded(numbers: Doubles, words: Words | None) -> Doubles:
    """Return whole numbers: the nearest (ties to even), or stochastically with random words."""
    if words is None:
        return np.rint(numbers, out=numbers)
    numbers += words * 2.0**-32  # in [0, 1)
    return np.floor(numbers, out=numbers)
