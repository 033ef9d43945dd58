"""Measurements counted by size."""

from bisect import bisect_left


class Histogram:
    """How many measurements were at most so large."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Add a measurement."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[float, int]]:
        """Return every bound with the number of measurements at or below it; the last is inf.

        >>> one = Histogram((0.1, 1.0))
        >>> for seconds in (0.05, 0.1, 3.0):
        ...     one.observe(seconds)
        >>> one.buckets()
        [(0.1, 2), (1.0, 2), (inf, 3)]
        """
        so_far, found = 0, []
        for bound, count in zip((*self.bounds, float("inf")), tuple(self._counts), strict=True):
            so_far += count
            found.append((bound, so_far))
        return found
