"""Rounding to integers: to nearest, or stochastically with an exact expectation."""

import numpy as np
import numpy.typing as npt

from ssfl.codec.blocks import Floats, Words
from ssfl.codec.errors import UnfitValues

Doubles = npt.NDArray[np.float64]


def change(values: Floats, reference: Floats) -> Floats:
    """Return values - reference as float32; raise UnfitValues unless it is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = values - reference
    if not np.isfinite(difference).all():
        raise UnfitValues("a lossy code holds finite changes only: there is a NaN or an infinity")
    return difference


def rounded(numbers: Doubles, words: Words | None) -> Doubles:
    """Round in place to nearest (ties to even), or stochastically if random words are given."""
    if words is None:
        return np.rint(numbers, out=numbers)
    numbers += words * 2.0**-32  # in [0, 1)
    return np.floor(numbers, out=numbers)
