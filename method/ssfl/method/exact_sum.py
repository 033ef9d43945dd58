"""Weighted means that do not depend on who comes first (design: exact aggregation).

Values are put on a grid of 2^-F and summed as 64-bit integers, so addition is associative and
the mean depends only on *which* updates went in. F is the largest that keeps the sum below
2^62 for the announced bound and total weight, so overflow cannot happen. The mean is the exact
rational sum / (weight * 2^F), rounded once to float32.
"""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ssfl.method.errors import SumError

VALUE_BOUND = 1024.0  # |value| of an update; larger ones are refused by name
MAX_FRACTION_BITS = 36  # values: 1.5e-11, far below the float32 step of any weight that matters
MAX_SCORE_FRACTION_BITS = 80  # scores: small ones count; keeps every mean a normal float32
_LIMIT_BITS = 62
_BLOCK = 1 << 16  # values at a time: their scratch stays in cache


def fraction_bits(bound: float, total_weight: int, max_bits: int = MAX_FRACTION_BITS) -> int:
    """Return the largest F <= `max_bits` with bound * total_weight * 2^F < 2^62.

    >>> fraction_bits(1024.0, 1000)
    36
    """
    if total_weight < 1 or not 0 <= bound < math.inf:
        raise SumError(f"cannot sum with bound {bound} and total weight {total_weight}")
    if bound == 0:
        return max_bits
    room = Fraction(1 << _LIMIT_BITS) / (Fraction(bound) * total_weight)
    bits = room.numerator.bit_length() - room.denominator.bit_length() + 1
    while Fraction(2) ** bits >= room:
        bits -= 1
    return min(bits, max_bits)


def max_weight(bound: float, fraction_bits: int) -> int:
    """Return the largest total weight that a grid has room for.

    >>> limit = max_weight(1024.0, 30)
    >>> fraction_bits(1024.0, limit), fraction_bits(1024.0, limit + 1)
    (30, 29)
    """
    room = Fraction(1 << _LIMIT_BITS) / (Fraction(bound) * Fraction(2) ** fraction_bits)
    return math.ceil(room) - 1


class ExactSum:
    """Sum of weight_k * value_k on the grid 2^-fraction_bits; 8 bytes per value, whoever comes."""

    def __init__(self, size: int, fraction_bits: int) -> None:
        self.fraction_bits = fraction_bits
        self.total_weight = 0
        self._sum = np.zeros(size, dtype=np.int64)

    def fold(self, values: npt.NDArray[np.float32], weight: int) -> None:
        """Add `weight` times the values, which must be finite and within the bound of F."""
        if values.shape != self._sum.shape:
            raise SumError(f"{values.shape[0]} values for a sum of {self._sum.shape[0]}")
        self.fold_at(0, values, weight)
        self.total_weight += weight

    def fold_at(self, start: int, values: npt.NDArray[np.float32], weight: int) -> None:
        """Add a part that begins at value `start`; the caller counts the weight when all are in."""
        if start + values.size > self._sum.size:
            raise SumError(f"{start + values.size} values for a sum of {self._sum.size}")
        scratch = np.empty(min(_BLOCK, values.size), dtype=np.float32)
        units = np.empty(scratch.size, dtype=np.int64)
        scale = np.float32(2.0**self.fraction_bits)
        for at in range(0, values.size, _BLOCK):
            block = values[at : at + _BLOCK]
            x, n = scratch[: block.size], units[: block.size]
            # Exact in float32: a power of two moves the exponent only, the bound keeps it below
            # 62, and what falls below the smallest float is rounded to zero anyway.
            np.multiply(block, scale, out=x)
            np.rint(x, out=x)
            np.copyto(n, x, casting="unsafe")  # exact: integers below 2^62
            n *= weight
            self._sum[start + at : start + at + block.size] += n

    def mean(self, weights: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.float32]:
        """Return sum / (total weight * 2^F), each rounded once to the nearest float32.

        With `weights`, each value has a total weight of its own, at least 1.
        """
        if self.total_weight < 1 or (weights is not None and weights.min(initial=1) < 1):
            raise SumError("the mean of nothing")
        out = np.empty(self._sum.size, dtype=np.float32)
        for start in range(0, out.size, _BLOCK):
            units = self._sum[start : start + _BLOCK]
            if weights is None:
                weight = np.full(1, self.total_weight, dtype=np.int64)
            else:
                weight = weights[start : start + _BLOCK]
            nearly = units / weight.astype(np.float64) * 2.0**-self.fraction_bits
            block = nearly.astype(np.float32)
            doubtful = np.flatnonzero(_near_midpoint(nearly))
            some = weight if weights is None else weight[doubtful]
            block[doubtful] = self._decide(nearly[doubtful], units[doubtful], some)
            out[start : start + _BLOCK] = block
        return out

    def _decide(
        self,
        nearly: npt.NDArray[np.float64],
        units: npt.NDArray[np.int64],
        weight: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.float32]:
        """Round the quotients next to the midpoint of two floats, by comparing exactly with it.

        The midpoint is m * 2^e with m of 25 bits, so `units / weight` lies above it if and only if
        `units * 2^-e > weight * m`, in integers: both sides are about equal, below 2^62 for
        weights below 2^37.
        """
        bits = np.abs(nearly).view(np.int64)
        m = (bits >> 29 & 0x7FFFFF) << 1 | 0x1000001  # the float below, and half a step
        e = (bits >> 52) - 1023 - 24 + self.fraction_bits
        whole = np.int64 if self.total_weight < 1 << 37 else np.object_  # then Python's integers
        left = np.abs(units).astype(whole) << np.maximum(-e, 0).astype(whole)
        right = (m.astype(whole) * weight.astype(whole)) << np.maximum(e, 0).astype(whole)
        low_is_odd = (bits >> 29 & 1).astype(np.bool_)
        up = (left > right) | ((left == right) & low_is_odd)
        low = (bits >> 29 << 29).view(np.float64).astype(np.float32)
        rounded = np.where(up, np.nextafter(low, np.float32(np.inf)), low)
        return np.copysign(rounded, nearly.astype(np.float32))


def _near_midpoint(x: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Tell where two roundings (to double, then to float) might differ from one.

    `x` is within 2 units in the last place of the exact quotient; only within that distance of
    the midpoint of two floats, whose low 29 mantissa bits are 1000…0, can the float32 differ.
    """
    low = (x.view(np.int64) & 0x1FFFFFFF) - 0x10000000
    near: npt.NDArray[np.bool_] = np.abs(low) <= 4
    return near
