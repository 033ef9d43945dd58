"""A histogram with cumulative buckets, as Prometheus defines it."""

from bisect import bisect_left


class Histogram:
    """Counts measurements by upper bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Add a measurement."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[float, int]]:
        """Return each bound, the last one infinite, with the number of values at or below it.

        >>> histogram = Histogram((0.1, 1.0))
        >>> for seconds in (0.05, 0.1, 3.0):
        ...     histogram.observe(seconds)
        >>> histogram.buckets()
        [(0.1, 2), (1.0, 2), (inf, 3)]
        """
        cumulative, buckets = 0, []
        for bound, count in zip((*self.bounds, float("inf")), tuple(self._counts), strict=True):
            cumulative += count
            buckets.append((bound, cumulative))
        return buckets
