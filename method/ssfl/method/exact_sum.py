"""Weighted means that do not depend on the order of the updates.

Values are rounded to a grid of 2^-F and summed as 64-bit integers. Integer addition is
associative, so the mean depends only on *which* updates were added. F is the largest number that
keeps the sum below 2^62 for the given bound and total weight, so the sum cannot overflow. The
mean is the exact rational sum / (weight * 2^F), rounded once to float32.
"""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ssfl.method.errors import SumError

VALUE_BOUND = 1024.0  # largest |value| of an update; larger ones are refused
MAX_FRACTION_BITS = 36  # values: steps of 1.5e-11, far below the precision of float32 weights
MAX_SCORE_FRACTION_BITS = 80  # scores can be tiny; every mean stays a normal float32
_LIMIT_BITS = 62
_BLOCK = 1 << 16  # values at a time, so that scratch memory stays in cache


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
    """Return the largest total weight that cannot overflow with `fraction_bits`.

    >>> limit = max_weight(1024.0, 30)
    >>> fraction_bits(1024.0, limit), fraction_bits(1024.0, limit + 1)
    (30, 29)
    """
    room = Fraction(1 << _LIMIT_BITS) / (Fraction(bound) * Fraction(2) ** fraction_bits)
    return math.ceil(room) - 1


class ExactSum:
    """Sum of weight_k * value_k on the grid 2^-fraction_bits; takes 8 bytes per value."""

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
        """Add a part that starts at value `start`; the caller adds the weight after all parts."""
        if start + values.size > self._sum.size:
            raise SumError(f"{start + values.size} values for a sum of {self._sum.size}")
        scratch = np.empty(min(_BLOCK, values.size), dtype=np.float32)
        units = np.empty(scratch.size, dtype=np.int64)
        scale = np.float32(2.0**self.fraction_bits)
        for at in range(0, values.size, _BLOCK):
            block = values[at : at + _BLOCK]
            x, n = scratch[: block.size], units[: block.size]
            # Exact in float32: a power of two only changes the exponent, which the bound keeps
            # below 62. Underflow does not matter: such values round to zero.
            np.multiply(block, scale, out=x)
            np.rint(x, out=x)
            np.copyto(n, x, casting="unsafe")  # exact: integers below 2^62
            n *= weight
            self._sum[start + at : start + at + block.size] += n

    def mean(self, weights: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.float32]:
        """Return sum / (total weight * 2^F), each rounded once to the nearest float32.

        `weights` gives each value its own total weight, at least 1.
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
            approximate = units / weight.astype(np.float64) * 2.0**-self.fraction_bits
            block = approximate.astype(np.float32)
            doubtful = np.flatnonzero(_near_midpoint(approximate))
            some = weight if weights is None else weight[doubtful]
            block[doubtful] = self._decide(approximate[doubtful], units[doubtful], some)
            out[start : start + _BLOCK] = block
        return out

    def _decide(
        self,
        approximate: npt.NDArray[np.float64],
        units: npt.NDArray[np.int64],
        weight: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.float32]:
        """Round quotients near the midpoint of two floats, by exact comparison with it.

        The midpoint is m * 2^e with m of 25 bits. `units / weight` lies above it if and only if
        `units * 2^-e > weight * m`, in integers. Both sides are about equal, and below 2^62 for
        weights below 2^37.
        """
        bits = np.abs(approximate).view(np.int64)
        m = (bits >> 29 & 0x7FFFFF) << 1 | 0x1000001  # the float below plus half a step
        e = (bits >> 52) - 1023 - 24 + self.fraction_bits
        whole = np.int64 if self.total_weight < 1 << 37 else np.object_  # Python integers
        left = np.abs(units).astype(whole) << np.maximum(-e, 0).astype(whole)
        right = (m.astype(whole) * weight.astype(whole)) << np.maximum(e, 0).astype(whole)
        low_is_odd = (bits >> 29 & 1).astype(np.bool_)
        up = (left > right) | ((left == right) & low_is_odd)
        low = (bits >> 29 << 29).view(np.float64).astype(np.float32)
        rounded = np.where(up, np.nextafter(low, np.float32(np.inf)), low)
        return np.copysign(rounded, approximate.astype(np.float32))


def _near_midpoint(x: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return True where rounding twice (to double, then to float) may differ from rounding once.

    `x` is within 2 units in the last place of the exact quotient. The float32 can differ only
    within that distance of the midpoint of two floats, whose low 29 mantissa bits are 1000…0.
    """
    low = (x.view(np.int64) & 0x1FFFFFFF) - 0x10000000
    near: npt.NDArray[np.bool_] = np.abs(low) <= 4
    return near
