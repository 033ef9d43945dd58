"""Random numbers that depend only on the name of their stream.

Every random choice (client sampling, batch order, partitions, initial weights) draws from a
stream keyed by (seed, purpose, ...), so that choices are independent. Streams use numpy's Philox
counter generator, whose raw output is fixed across versions and machines. All numbers derive from
the raw 64-bit words by exact operations, so the same key gives the same bits everywhere.
"""

import hashlib

import numpy as np
import numpy.typing as npt


class Stream:
    """A named sequence of random 64-bit words, and numbers derived from them.

    >>> Stream(0, "cohort", 3).choose(5, 2).tolist() == Stream(0, "cohort", 3).choose(5, 2).tolist()
    True
    """

    def __init__(self, seed: int, purpose: str, *parts: int | str) -> None:
        name = "\0".join(["ssfl", str(seed), purpose, *(str(part) for part in parts)])
        key = hashlib.sha256(name.encode()).digest()[:16]
        self._philox = np.random.Philox(key=int.from_bytes(key, "little"))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return the next `count` words."""
        return np.asarray(self._philox.random_raw(count), dtype=np.uint64)

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """Return the next `count` numbers strictly inside (0, 1), on a grid of 2^-53."""
        words = self.words(count) >> np.uint64(12)  # 52 bits, so that adding 0.5 is exact
        return (words.astype(np.float64) + 0.5) * 2.0**-52

    def permutation(self, size: int) -> npt.NDArray[np.int64]:
        """Return 0 … size-1 in random order."""
        return np.argsort(self.words(size), kind="stable").astype(np.int64)

    def choose(self, size: int, count: int) -> npt.NDArray[np.int64]:
        """Return `count` different numbers from 0 … size-1, ascending."""
        return np.sort(self.permutation(size)[:count])
