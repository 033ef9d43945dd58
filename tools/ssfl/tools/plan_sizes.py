"""Payload sizes before the payloads exist.

Values and exact scores have a size that follows from their number. What is entropy-coded has a
hard bound, which its codec states, and a range that was measured; each range names where.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ssfl.codec import values_only
from ssfl.codec.bitmask import packed_bytes

# Share of the entropy of independent bits that a mask of saliency took as a zstd frame. Masks are
# not independent bits: whole channels are kept or dropped. The few bits of a small model compress
# worse than that, so the frame's own bytes are added. Measured by benchmarks/plan_accuracy.py.
MASK_SHARE = (0.7, 1.05)
FRAME_BYTES = 32


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes: expected from `low` to `high`, never more than `most`."""

    low: int
    high: int
    most: int

    @classmethod
    def fixed(cls, num_bytes: int) -> "Size":
        return cls(num_bytes, num_bytes, num_bytes)

    @property
    def is_fixed(self) -> bool:
        return self.low == self.high == self.most

    def map(self, function: Callable[[int], int]) -> "Size":
        """Return the size after a function that never falls."""
        return Size(function(self.low), function(self.high), function(self.most))

    def __add__(self, other: "Size") -> "Size":
        return Size(self.low + other.low, self.high + other.high, self.most + other.most)

    def __mul__(self, times: int) -> "Size":
        return Size(self.low * times, self.high * times, self.most * times)


ZERO = Size.fixed(0)


def values_size(count: int) -> Size:
    """Return the payload of an update or a base of `count` values."""
    return Size.fixed(values_only.encoded_bytes(count))


def scores_size(num_masked: int) -> Size:
    """Return the payload of one client's scores."""
    return Size.fixed(values_only.encoded_bytes(num_masked))


def mask_size(num_masked: int, num_kept: int) -> Size:
    """Return the payload of the mask; one that keeps everything does not travel."""
    if num_kept == num_masked:
        return ZERO
    most = packed_bytes(num_masked)
    entropy_bytes = num_masked * _entropy_bits(num_kept / num_masked) / 8
    low, high = (share * entropy_bytes for share in MASK_SHARE)
    return Size(min(most, int(low)), min(most, int(high) + FRAME_BYTES), most)


def _entropy_bits(share: float) -> float:
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)
