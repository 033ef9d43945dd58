"""The mask of kept coordinates, and the exact Top-k that chooses them."""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.method.manifest import Manifest

_BLOCK = 1 << 17  # scores at a time, to stay in cache; a multiple of 8 for packed bits
_GOLDEN = 0.6180339887498949  # its multiples modulo 1 are spread evenly

Vector = npt.NDArray[np.float32]
Scores = Vector
Bools = npt.NDArray[np.bool_]
Packed = npt.NDArray[np.uint8]  # a bit per coordinate


@dataclass(frozen=True)
class Mask:
    """Kept coordinates, packed: coordinate i is bit i % 8 of byte i // 8, spare bits zero."""

    bits: bytes
    size: int  # W, the number of masked coordinates of the manifest

    def __post_init__(self) -> None:
        if len(self.bits) != (self.size + 7) // 8:
            raise ValueError(f"{len(self.bits)} bytes do not hold {self.size} bits")
        if self.size % 8 and self.bits[-1] >> (self.size % 8):
            raise ValueError("spare bits behind the last coordinate are set")

    @classmethod
    def full(cls, size: int) -> "Mask":
        """Return a mask that keeps everything, so that dense training uses the same code."""
        return cls.from_bools(np.ones(size, dtype=np.bool_))

    @classmethod
    def from_bools(cls, kept: Bools) -> "Mask":
        return cls(np.packbits(kept, bitorder="little").tobytes(), kept.size)

    def bools(self) -> Bools:
        """Return one bool per masked coordinate."""
        packed = np.frombuffer(self.bits, dtype=np.uint8)
        return np.unpackbits(packed, count=self.size, bitorder="little").view(np.bool_)

    @cached_property
    def num_kept(self) -> int:
        return int(np.bitwise_count(np.frombuffer(self.bits, dtype=np.uint8)).sum())

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the size (8 bytes, little-endian) and the packed bits."""
        return hashlib.sha256(self.size.to_bytes(8, "little") + self.bits).digest()

    def gather(self, vector: Vector) -> Vector:
        """Return the kept values of a flat vector, then its dense and buffer values."""
        kept = self.bools()
        return np.concatenate([vector[: self.size][kept], vector[self.size :]])

    def scatter(self, values: Vector, onto: Vector | None = None) -> Vector:
        """Return the flat vector of kept values; off the mask it has zeros, or those of `onto`."""
        if onto is not None:
            return self.put(values, onto.copy())
        size = self.size + values.size - self.num_kept
        return self.put(values, np.zeros(size, dtype=np.float32))

    def put(self, values: Vector, vector: Vector) -> Vector:
        """Write kept values to their places in a flat vector; return the vector."""
        num_kept = self.num_kept
        vector[: self.size][self.bools()] = values[:num_kept]
        vector[self.size :] = values[num_kept:]
        return vector

    def kept_by_tensor(self, manifest: Manifest) -> dict[str, tuple[int, int]]:
        """Return (kept, size) of every masked tensor, by name."""
        kept = self.bools()
        return {t.name: (int(np.count_nonzero(kept[s])), t.size) for t, s in manifest.masked()}


def top_k(scores: Scores, k: int) -> Mask:
    """Return the mask of the k largest scores; of equal scores, the lowest coordinates win.

    Scores must be non-negative and not NaN. A sample gives a low and a high score that should
    enclose the k-th largest. One pass packs the scores above and collects the few between, which
    are then ranked. Extra memory: one bit per coordinate, the sample and the collected scores.

    >>> top_k(np.array([3, 1, 3, 3], dtype=np.float32), 2).bools().tolist()
    [True, False, True, False]
    """
    if not 0 <= k <= scores.size:
        raise ValueError(f"cannot keep {k} of {scores.size}")
    packed = np.zeros((scores.size + 7) // 8, dtype=np.uint8)
    if k:
        low, high = _bracket(scores, k)
        num_high, places, between = _split(scores, low, high, packed)
        missing = k - num_high
        if 0 <= missing <= between.size:
            chosen = places[largest(between, missing)]
            np.bitwise_or.at(packed, chosen // 8, np.uint8(1) << (chosen % 8).astype(np.uint8))
        else:  # many scores equal low or high, or the sample was not representative
            _pack_slowly(scores, k, _bisect(scores, k, low, high), packed)
    return Mask(packed.tobytes(), scores.size)


def _blocks(scores: Scores) -> list[tuple[int, Scores]]:
    return [(start, scores[start : start + _BLOCK]) for start in range(0, scores.size, _BLOCK)]


def _split(
    scores: Scores, low: np.float32, high: np.float32, packed: Packed
) -> tuple[int, npt.NDArray[np.int64], Scores]:
    """Pack the mask of scores of at least `high`.

    Return their number, and the coordinates and scores between `low` and `high`.
    """
    num_high, places, between = 0, [], []
    scratch = np.empty((2, min(_BLOCK, scores.size)), dtype=np.bool_)
    for start, block in _blocks(scores):
        from_high, inside = scratch[:, : block.size]
        np.greater_equal(block, high, out=from_high)
        np.greater(block, low, out=inside)
        np.greater(inside, from_high, out=inside)  # inside and not from_high
        num_high += int(np.count_nonzero(from_high))
        _pack(packed, start, from_high)
        at = np.flatnonzero(inside)
        between.append(block[at])
        at += start
        places.append(at)
    return num_high, np.concatenate(places), np.concatenate(between)


def _pack(packed: Packed, start: int, kept: Bools) -> None:
    bits = np.packbits(kept, bitorder="little")
    packed[start // 8 : start // 8 + bits.size] = bits


def largest(scores: npt.NDArray[np.floating[Any]], k: int) -> Bools:
    """Return a mask of the k largest scores, by partitioning all; ties as in `top_k`."""
    if k == 0:
        return np.zeros(scores.size, dtype=np.bool_)
    threshold = np.partition(scores, scores.size - k)[scores.size - k]
    kept: Bools = scores > threshold
    kept[np.flatnonzero(scores == threshold)[: k - int(np.count_nonzero(kept))]] = True
    return kept


def _pack_slowly(scores: Scores, k: int, threshold: np.float32, packed: Packed) -> None:
    """Pack the mask of the k largest scores, given the k-th largest, in one or two passes."""
    surplus = -k
    for start, block in _blocks(scores):
        kept = block >= threshold
        surplus += int(np.count_nonzero(kept))
        _pack(packed, start, kept)
    if surplus < 0:
        raise ValueError("scores must be non-negative and not NaN")
    for start, block in reversed(_blocks(scores)):
        if not surplus:  # of scores equal to the k-th, the last are dropped
            break
        kept = block >= threshold
        too_many = np.flatnonzero(block == threshold)[-surplus:]
        kept[too_many] = False
        surplus -= too_many.size
        _pack(packed, start, kept)


def _bracket(scores: Scores, k: int) -> tuple[np.float32, np.float32]:
    """Return two scores around the k-th largest, six standard deviations of a sampled rank apart.

    The sample has size^(2/3) scores; a larger one would not save time. It takes one score of
    every stride at a varying place, since layers are periodic.
    """
    stride = int(math.cbrt(scores.size))
    number = np.arange(scores.size // stride)
    turns = number * _GOLDEN
    turns -= np.floor(turns)
    sample = np.sort(scores[((number + turns) * stride).astype(np.int64)])
    share = 1 - k / scores.size  # of scores below the k-th largest
    slack = 6 * math.sqrt(sample.size * share * (1 - share)) + 1
    ends = (math.floor(share * sample.size - slack), math.ceil(share * sample.size + slack))
    low = sample[ends[0]] if ends[0] >= 0 else np.float32(-np.inf)
    high = sample[ends[1]] if ends[1] < sample.size else np.float32(np.inf)
    return low, high


def _bisect(scores: Scores, k: int, low: np.float32, high: np.float32) -> np.float32:
    """Return the k-th largest score, by bisecting the bits, which are ordered as the floats are.

    This takes a pass per bit, at most 32, or two or three passes if the result is `low` or `high`.
    """
    reached, missed = 0, 0x7F800001  # the bits of zero, and the successor of infinity's
    ends = [int(abs(end).view(np.uint32)) for end in (high, low) if end >= 0]  # abs for -0.0
    guesses = [bits + up for bits in ends for up in (0, 1)]
    while missed - reached > 1:
        guess = guesses.pop(0) if guesses else (reached + missed) // 2
        if reached < guess < missed:
            number = np.uint32(guess).view(np.float32)
            count = sum(int(np.count_nonzero(block >= number)) for _, block in _blocks(scores))
            reached, missed = (guess, missed) if count >= k else (reached, guess)
    return np.float32(np.uint32(reached).view(np.float32))
