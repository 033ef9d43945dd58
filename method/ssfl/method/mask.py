"""The mask: which masked coordinates are kept, and the exact Top-k that finds it."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ssfl.method.manifest import Manifest

_BLOCK = 1 << 20  # coordinates at a time; a multiple of 8, so that packed blocks join
_SAMPLE = 1 << 18


@dataclass(frozen=True)
class Mask:
    """Kept coordinates, packed: coordinate i is bit i % 8 of byte i // 8, spare bits zero."""

    bits: bytes
    size: int  # W, the masked coordinates of the manifest

    def __post_init__(self) -> None:
        if len(self.bits) != (self.size + 7) // 8:
            raise ValueError(f"{len(self.bits)} bytes do not hold {self.size} bits")
        if self.size % 8 and self.bits[-1] >> (self.size % 8):
            raise ValueError("spare bits behind the last coordinate are set")

    @classmethod
    def full(cls, size: int) -> "Mask":
        """Return the mask that keeps everything: dense training in the same code path."""
        return cls.from_bools(np.ones(size, dtype=np.bool_))

    @classmethod
    def from_bools(cls, kept: npt.NDArray[np.bool_]) -> "Mask":
        return cls(np.packbits(kept, bitorder="little").tobytes(), kept.size)

    def bools(self) -> npt.NDArray[np.bool_]:
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

    def gather(self, vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the kept values of a flat vector, then its dense and buffer values."""
        kept = self.bools()
        return np.concatenate([vector[: self.size][kept], vector[self.size :]])

    def scatter(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the flat vector of kept values: zero off the mask."""
        num_kept = self.num_kept
        vector = np.zeros(self.size + values.size - num_kept, dtype=np.float32)
        vector[: self.size][self.bools()] = values[:num_kept]
        vector[self.size :] = values[num_kept:]
        return vector

    def kept_by_tensor(self, manifest: Manifest) -> dict[str, tuple[int, int]]:
        """Return (kept, size) of every masked tensor."""
        kept = self.bools()
        return {t.name: (int(np.count_nonzero(kept[s])), t.size) for t, s in manifest.masked()}


def top_k(scores: npt.NDArray[np.float32], k: int) -> Mask:
    """Return the mask of the k largest scores; equal scores go to the lowest coordinate.

    Scores must be non-negative and not NaN. Memory beyond the scores is one bit per coordinate
    and a sample: a sorted sample brackets the k-th score, one pass collects what lies inside.

    >>> top_k(np.array([3, 1, 3, 3], dtype=np.float32), 2).bools().tolist()
    [True, False, True, False]
    """
    if not 0 <= k <= scores.size:
        raise ValueError(f"cannot keep {k} of {scores.size}")
    if k == 0:
        return Mask(bytes((scores.size + 7) // 8), scores.size)
    threshold = _kth_largest(scores, k)
    ties_kept = k - sum(int(np.count_nonzero(block > threshold)) for block in _blocks(scores))
    packed = bytearray()
    for block in _blocks(scores):
        kept = block > threshold
        if ties_kept:
            ties = np.flatnonzero(block == threshold)[:ties_kept]
            kept[ties] = True
            ties_kept -= ties.size
        packed += np.packbits(kept, bitorder="little").tobytes()
    return Mask(bytes(packed), scores.size)


def _blocks(scores: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
    return [scores[start : start + _BLOCK] for start in range(0, scores.size, _BLOCK)]


def _kth_largest(scores: npt.NDArray[np.float32], k: int) -> np.float32:
    """Return the k-th largest score, exactly."""
    stride = max(1, scores.size // _SAMPLE)
    sample = np.sort(scores[::stride])
    place = (scores.size - k) / scores.size * sample.size  # where the threshold should stand
    slack = 6.0 * np.sqrt(sample.size) / 2 + 1  # six standard deviations of a sampled rank
    low = sample[max(0, int(place - slack))]
    high = sample[min(sample.size - 1, int(place + slack))]
    above, inside = 0, []
    for block in _blocks(scores):
        above += int(np.count_nonzero(block > high))
        inside.append(block[(block >= low) & (block <= high)])
    candidates = np.concatenate(inside)
    rank = k - above  # the threshold is the rank-th largest candidate
    if not 1 <= rank <= candidates.size:  # the sample misled us: periodic data can
        candidates, rank = scores, k
    return np.float32(np.partition(candidates, candidates.size - rank)[candidates.size - rank])
