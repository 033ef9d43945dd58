"""An experiment: a claim of the paper, the runs that test it, and their result."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssfl.experiments.recipe import MEAN, Recipe
from ssfl.study.intervals import paired_difference
from ssfl.study.summary import by_name, by_seed
from ssfl.study.sweep import RunResult, RunSpec

Result = dict[str, Any]


class Runs:
    """The finished runs of all experiments, by configuration."""

    def __init__(self, results: Sequence[RunResult]) -> None:
        self._results = results
        self._by_name = by_name(results)

    def values(self, name: str, measure: str = MEAN) -> list[float]:
        """Return a measure of a configuration, one number per seed."""
        return list(by_seed(self._results, name, measure).values())

    def documents(self, name: str) -> list[dict[str, Any]]:
        """Return the histories of a configuration, one per seed."""
        return [run.document for run in self._by_name[name]]

    def difference(
        self, label: str, ours: str, theirs: str, bar: float | None = None, measure: str = MEAN
    ) -> dict[str, Any]:
        """Return a paired difference of shares as a row; `bar` is the required minimum."""
        first, second = (by_seed(self._results, name, measure) for name in (ours, theirs))
        return difference(label, first, second, bar)


def difference(
    label: str, ours: Mapping[int, float], theirs: Mapping[int, float], bar: float | None = None
) -> dict[str, Any]:
    """Return ours - theirs, seed by seed, as a row for tables and charts."""
    found = paired_difference(ours, theirs)
    row: dict[str, Any] = {
        "label": label,
        "values": [ours[seed] - theirs[seed] for seed in sorted(ours)],
        "mean": found.mean,
        "low": found.low,
        "high": found.high,
    }
    if bar is not None:
        row |= {"bar": bar, "met": found.mean >= bar}
    return row


@dataclass(frozen=True, slots=True)
class Experiment:
    """A claim of the paper and its test."""

    name: str
    title: str
    claim: str  # with the numbers of the paper
    specs: Callable[[Recipe], Iterable[RunSpec]]
    conclude: Callable[[Recipe, Runs], Result]  # `rows` of differences, sentences in `found`
    draw: Callable[[Result, Path], None]
