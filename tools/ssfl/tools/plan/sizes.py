"""Predicted payload sizes.

The size of float32 values and scores follows from their number. Entropy-coded payloads have a hard
bound, given by the codec, and a measured range: `benchmarks/plan_ranges.py` fails if a constant
below is wrong. The ranges also cover the larger networks of `benchmarks/bytes_on_wire.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ssfl.codec import blocks, int8, masks, reference, scores, sorted_bits, values_only
from ssfl.codec.blocks import ValueCode
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.value_types import lossy_code
from ssfl.server.uploads.encoding_choice import LOSSY
from ssfl.strategies.registry import strategy_for
from ssfl.v1 import transfer_pb2

# Shares of 4 bytes per value. They are smaller if the values change little in a round: with a small
# learning rate, few local steps and many clients in the mean.
REFERENCE_SHARE = (0.57, 0.83)  # against the previous base
FIRST_SHARE = (0.67, 0.85)  # for a client without the previous base: against the first, or none
LOSSY_SHARES = {"bfloat16": (0.32, 0.38), "int8": (0.18, 0.25), "grid": (0.15, 0.43)}
# Of the values themselves (setting `downloads`), which have no reference.
VALUES_SHARES = {"bfloat16": (0.26, 0.35), "int8": (0.2, 0.26), "grid": (0.33, 0.55)}
GRID_BITS = 16  # for which the grid's shares hold; each further bit adds a bit per value
MIN_SHARE = 0.03
OTHER_SHARE = (0.4, 1.0)  # of rules that move masks, or make another model than the mean
NO_WEIGHTS_SHARE = (0.05, 1.0)  # of rules that train something else than the weights
# Bytes for each value that a round changed, if it changed few (benchmarks/union_bytes.py).
CHANGED_BYTES = {
    "float32": (3.0, 7.5), "bfloat16": (1.5, 4.5), "int8": (1.0, 2.5), "grid": (0.5, 6.0),
}  # fmt: skip
FROZEN_SHARE = (0.0003, 0.005)  # of values that no client trains: differences of zero

# Compact scores: the coded positions, SCORE_BITS per coded score, and a table per block.
SCORE_BITS = (4.4, 7.0)
SCORE_TABLE_BYTES = 1024

# Size of a mask as a share of the entropy of independent bits, smallest with large images. The
# bytes that describe its channels are extra.
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

    def union(self, other: "Estimate[Number]") -> "Estimate[Number]":
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

    def _share(self, usual: tuple[float, float]) -> tuple[float, float]:
        """Return a share that was measured with means of updates, or one for any rule."""
        strategy = strategy_for(self.settings)
        if strategy.has_other_weights:
            return NO_WEIGHTS_SHARE
        return usual if strategy.is_plain_mean else OTHER_SHARE

    def update(self, count: int) -> CodedSize:
        """Return encoding and size of an update of `count` values."""
        if code := lossy_code(self.settings):
            size = self._coded(code, count, self._lossy_share(LOSSY_SHARES))
            return CodedSize(LOSSY[self.settings.value_type], size, has_reference=True)
        return self._lossless(count, self._share(REFERENCE_SHARE))

    def base(self, count: int, *, holds_previous: bool) -> CodedSize:
        """Return encoding and size of a base for a client with or without the previous base."""
        if self.settings.downloads == "values":
            return self._values_themselves(count)
        if holds_previous:
            return self.update(count)
        return self._lossless(count, self._share(FIRST_SHARE))

    def _values_themselves(self, count: int) -> CodedSize:
        """Return encoding and size of values in the lossy code, where frozen ones cost the same."""
        code = lossy_code(self.settings)
        assert code is not None
        share = self._lossy_share(VALUES_SHARES)
        size = replace(self, num_frozen=0)._coded(code, count, share)
        return CodedSize(LOSSY[self.settings.value_type], size)

    def _lossless(self, count: int, share: tuple[float, float]) -> CodedSize:
        if self.reference:
            size = self._coded(reference.CODE, count, share)
            return CodedSize(transfer_pb2.ENCODING_REFERENCE, size, has_reference=True)
        plain = Size.fixed(values_only.encoded_bytes(count))
        return CodedSize(transfer_pb2.ENCODING_VALUES_ONLY, plain)

    def values(self, low: int, high: int, *, of_update: bool = False) -> Size:
        """Return the size of `low` to `high` values of a rule that moves masks."""
        sizes = [self._lossless(count, self._share(OTHER_SHARE)).size for count in (low, high)]
        if lossy_code(self.settings):
            lossy = [self.update(count).size for count in (low, high)]
            sizes = lossy if of_update else [*sizes, *lossy]
        return Size(
            min(size.low for size in sizes),
            max(size.high for size in sizes),
            max(size.most for size in sizes),
        )

    def change(self, count: int, fewest: int, most: int) -> Size:
        """Return the size of `count` values of which a round changed `fewest` to `most`.

        It is for a client that holds the previous values.
        """
        usual = self.update(count).size
        if not self.reference and not lossy_code(self.settings):
            return usual
        low, high = CHANGED_BYTES[self.settings.value_type]
        steps = 4 * -(-count // int8.GROUP)  # of int8, also where nothing changed
        expected = math.ceil(high * most) + steps
        return Size(int(low * fewest), min(usual.high, expected), usual.most)

    def vector(self, low: int, high: int) -> Size:
        """Return the size of a further vector of an update, which has no reference."""
        sizes = [self._lossless(count, self._share(OTHER_SHARE)).size for count in (low, high)]
        return sizes[0].union(sizes[1])

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

    def _lossy_share(self, shares: dict[str, tuple[float, float]]) -> tuple[float, float]:
        low, high = shares[self.settings.value_type]
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
