"""Predicted payload sizes.

The size of float32 values and scores follows from their number. Entropy-coded payloads have a hard
bound, given by the codec, and a measured range: `benchmarks/plan_ranges.py` fails if a constant
below is wrong. The ranges also cover the larger networks of `benchmarks/bytes_on_wire.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ssfl.codec import blocks, masks, reference, scores, sorted_bits, values_only
from ssfl.codec.blocks import ValueCode
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.value_types import lossy_code
from ssfl.server.uploads.encoding_choice import LOSSY
from ssfl.v1 import transfer_pb2

# Shares of 4 bytes per value. They shrink with the change of the values in a round: with a small
# learning rate, few local steps and many clients in the mean.
REFERENCE_SHARE = (0.57, 0.83)  # against the previous base
FIRST_SHARE = (0.67, 0.85)  # for a client without the previous base: against the first, or none
LOSSY_SHARES = {"bfloat16": (0.32, 0.38), "int8": (0.18, 0.25), "grid": (0.15, 0.42)}
GRID_BITS = 16  # for which the grid's shares hold; each further bit adds a bit per value
MIN_SHARE = 0.03
FROZEN_SHARE = (0.0003, 0.005)  # of values that no client trains: differences of zero

# Compact scores: the coded positions, SCORE_BITS per coded score, and a table per block.
SCORE_BITS = (4.4, 7.0)
SCORE_TABLE_BYTES = 1024

# Size of a mask as a share of the entropy of independent bits, smallest with large images. The
# cost of its channels is extra.
MASK_SHARE = (0.2, 0.56)


Number = TypeVar("Number", int, float)
Other = TypeVar("Other", int, float)


@dataclass(frozen=True)  # with slots, Estimate[int](…) fails in Python 3.11
class Estimate(Generic[Number]):
    """A number of bytes or seconds, expected from `low` to `high`, and at most `most`."""

    low: Number
    high: Number
    most: Number

    @classmethod
    def fixed(cls, number: Number) -> "Estimate[Number]":
        return cls(number, number, number)

    def map(self, function: Callable[[Number], Other]) -> "Estimate[Other]":
        """Return the estimate mapped by a non-decreasing function."""
        return Estimate(function(self.low), function(self.high), function(self.most))

    def or_else(self, other: "Estimate[Number]") -> "Estimate[Number]":
        """Return the range that covers both estimates."""
        most = max(self.most, other.most)
        return Estimate(min(self.low, other.low), max(self.high, other.high), most)

    def __add__(self, other: "Estimate[Number]") -> "Estimate[Number]":
        return Estimate(self.low + other.low, self.high + other.high, self.most + other.most)

    def __mul__(self, times: int) -> "Estimate[Number]":
        return Estimate(self.low * times, self.high * times, self.most * times)


Size = Estimate[int]  # in bytes
Seconds = Estimate[float]
ZERO = Size.fixed(0)
NO_TIME = Seconds.fixed(0.0)


@dataclass(frozen=True, slots=True)
class CodedSize:
    """The encoding and size of a payload, and whether it names a reference."""

    encoding: transfer_pb2.Encoding
    size: Size
    has_reference: bool = False


@dataclass(frozen=True, slots=True)
class Coding:
    """The encodings that the settings of a run and its coordinator select."""

    settings: RunSettings
    reference: bool  # values are coded against a base that both ends hold
    num_frozen: int = 0  # values that no client trains

    def update(self, count: int) -> CodedSize:
        """Return encoding and size of an update of `count` values."""
        if code := lossy_code(self.settings):
            size = self._coded(code, count, self._lossy_share())
            return CodedSize(LOSSY[self.settings.value_type], size, has_reference=True)
        return self._lossless(count, REFERENCE_SHARE)

    def base(self, count: int, *, holds_previous: bool) -> CodedSize:
        """Return encoding and size of a base for a client with or without the previous base."""
        return self.update(count) if holds_previous else self._lossless(count, FIRST_SHARE)

    def _lossless(self, count: int, share: tuple[float, float]) -> CodedSize:
        if self.reference:
            size = self._coded(reference.CODE, count, share)
            return CodedSize(transfer_pb2.ENCODING_REFERENCE, size, has_reference=True)
        plain = Size.fixed(values_only.encoded_bytes(count))
        return CodedSize(transfer_pb2.ENCODING_VALUES_ONLY, plain)

    def scores(self, num_masked: int, num_decisive: int) -> CodedSize:
        """Return encoding and size of one client's scores; `num_decisive` of them are coded."""
        plain = values_only.encoded_bytes(num_masked)
        if self.settings.scores == "exact":
            return CodedSize(transfer_pb2.ENCODING_DENSE, Size.fixed(plain))
        # Scores that no code can hold, near the largest float32, are sent as they are.
        most = max(plain, scores.max_encoded_bytes(num_masked))
        which = num_masked * _entropy_bits(num_decisive / num_masked) / 8
        low, high = (which + num_decisive * bits / 8 for bits in SCORE_BITS)
        high += SCORE_TABLE_BYTES * -(-num_masked // scores.BLOCK)
        size = Size(min(most, int(low)), min(most, math.ceil(high)), most)
        return CodedSize(transfer_pb2.ENCODING_SCORES, size)

    def _coded(self, code: ValueCode, count: int, share: tuple[float, float]) -> Size:
        frozen = values_only.encoded_bytes(min(count, self.num_frozen))
        trained = values_only.encoded_bytes(count) - frozen
        # Values that a lossy code cannot hold are sent without loss.
        most = max(blocks.max_encoded_bytes(each, count) for each in (code, reference.CODE))
        low, high = (
            of_trained * trained + of_frozen * frozen
            for of_trained, of_frozen in zip(share, FROZEN_SHARE, strict=True)
        )
        return Size(min(most, int(low)), min(most, math.ceil(high)), most)

    def _lossy_share(self) -> tuple[float, float]:
        low, high = LOSSY_SHARES[self.settings.value_type]
        if self.settings.value_type == "grid":
            shift = (self.settings.grid_bits - GRID_BITS) / 32
            low, high = max(MIN_SHARE, low + shift), max(2 * MIN_SHARE, high + shift)
        return low, high


def mask_size(manifest: Manifest, num_kept: int) -> Size:
    """Return the payload size of a mask; a mask that keeps everything is not sent."""
    num_masked = manifest.num_masked
    if num_kept == num_masked:
        return ZERO
    most = masks.packed_bytes(num_masked)  # a bound, since the smallest form is sent
    side = sorted_bits.max_encoded_bytes(manifest.masked_shapes) - most
    entropy = num_masked * _entropy_bits(num_kept / num_masked) / 8
    low, high = (share * entropy for share in MASK_SHARE)
    return Size(min(most, int(low)), min(most, math.ceil(high) + side), most)


def _entropy_bits(share: float) -> float:
    if share in (0.0, 1.0):
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)
