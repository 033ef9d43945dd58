"""Means over seeds, and differences paired by seed with their 95 % interval (Student's t).

Runs of one seed share their data and their sampled clients. A difference is taken seed by seed, so
that the effect of the seed on both sides cancels out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssfl.study.errors import StudyError

ACCURACIES = ("pooled", "mean", "personal", "validation_pooled", "validation_mean")
_HALVINGS = 200  # more than the bits of a float64, so that the quantile is exact


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds; for a single seed, `sd` (n - 1) and the interval are nan."""

    mean: float
    sd: float
    low: float
    high: float
    count: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample's standard deviation (n - 1); nan if unknown."""
    if not values:
        return math.nan, math.nan
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1))


def spread(values: Sequence[float]) -> Spread:
    """Return the mean of `values` and its 95 % confidence interval.

    Examples:
        >>> five = spread([1.0, 2.0, 3.0, 4.0, 5.0])
        >>> five.mean, round(five.low, 3), round(five.high, 3)
        (3.0, 1.037, 4.963)
    """
    mean, sd = mean_and_sd(values)
    half = math.nan
    if len(values) > 1:
        half = t_quantile(0.975, len(values) - 1) * sd / math.sqrt(len(values))
    return Spread(mean, sd, mean - half, mean + half, len(values))


def percent_text(values: Sequence[float]) -> str:
    """Return shares as mean ± standard deviation in per cent; one value has no deviation.

    Examples:
        >>> percent_text([0.5, 0.6]), percent_text([0.5])
        ('55.0 ± 7.1', '50.0')
    """
    mean, sd = mean_and_sd([100 * value for value in values])
    return f"{mean:.1f}" + (f" ± {sd:.1f}" if len(values) > 1 else "")


def interval_text(low: float | None, high: float | None) -> str:
    """Return an interval of shares in points; empty for a single seed, which has none.

    Examples:
        >>> interval_text(-0.012, 0.034)
        '-1.2 … +3.4'
    """
    return "" if low is None or high is None else f"{100 * low:+.1f} … {100 * high:+.1f}"


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Spread:
    """Return the mean of ours - theirs, seed by seed, with its interval.

    Raises StudyError unless both have the same seeds.

    Examples:
        >>> difference = paired_difference({0: 91.0, 1: 93.0, 2: 89.0}, {0: 90.0, 1: 91.0, 2: 89.0})
        >>> difference.mean, round(difference.half_width, 3)
        (1.0, 2.484)
    """
    if set(ours) != set(theirs):
        alone = sorted(set(ours) ^ set(theirs))
        raise StudyError(
            f"a paired difference needs the same seeds on both sides; only one side has "
            f"{', '.join(map(str, alone))}"
        )
    return spread([ours[seed] - theirs[seed] for seed in sorted(ours)])


def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t with `freedom` degrees of freedom."""
    if not 0.5 <= probability < 1 or freedom < 1:
        raise StudyError(
            f"no quantile of Student's t for probability {probability} and {freedom} degrees "
            "of freedom: it needs a probability from 0.5 to below 1, and 1 degree or more"
        )
    low, high = 0.0, math.pi / 2  # the angle whose tangent is t / sqrt(freedom)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _inside(middle, freedom) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _inside(angle: float, freedom: int) -> float:
    """Return P(-t < T < t), a finite sum for whole degrees of freedom."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = (cosine if odd else 1.0) if freedom > 1 else 0.0
    for power in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def last_rounds_mean(
    document: Mapping[str, Any], count: int = 10, accuracy: str = "mean"
) -> float | None:
    """Return the mean accuracy of the models that the last `count` rounds ended with.

    `pooled` and `mean` belong to the global model, from every evaluation by all clients in these
    rounds (`evaluate_last` makes one after each). They are measured on test samples, or on
    validation samples with the prefix `validation_`. `personal` belongs to the clients' own models
    after training in these rounds. None if nothing was measured.
    """
    found = last_accuracies(document, count, accuracy)
    return math.fsum(found) / len(found) if found else None


def last_accuracies(
    document: Mapping[str, Any], count: int = 10, accuracy: str = "mean"
) -> list[float]:
    """Return the accuracies that `last_rounds_mean` averages."""
    if accuracy not in ACCURACIES:
        raise StudyError(f"an accuracy is one of {', '.join(ACCURACIES)}, not {accuracy!r}")
    first = document["rounds_done"] - count
    if accuracy == "personal":
        found = [entry["personal"] for entry in document["rounds"] if entry["round"] >= first]
    else:
        kind = accuracy.removeprefix("validation_")
        tests = [test for test in document["evaluations"] if test["rounds_done"] > first]
        if kind != accuracy:
            tests = [test["validation"] for test in tests if test.get("validation")]
        found = [test[kind] for test in tests]
    return [value for value in found if value is not None]
