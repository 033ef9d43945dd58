"""What an experiment is: a claim of the paper, the runs that try it, and what they came to."""

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
        """Return what a configuration came to, one number per seed."""
        return list(by_seed(self._results, name, measure).values())

    def by_seed(self, name: str, measure: str = MEAN) -> dict[int, float]:
        return by_seed(self._results, name, measure)

    def documents(self, name: str) -> list[dict[str, Any]]:
        """Return the histories of a configuration, one per seed."""
        return [run.document for run in self._by_name[name]]

    def difference(
        self,
        label: str,
        ours: str,
        theirs: str,
        bar: float | None = None,
        measure: str = MEAN,
    ) -> dict[str, Any]:
        """Return a paired difference, in shares, with its interval and whether it meets a bar."""
        return difference(label, self.by_seed(ours, measure), self.by_seed(theirs, measure), bar)


def difference(
    label: str, ours: Mapping[int, float], theirs: Mapping[int, float], bar: float | None = None
) -> dict[str, Any]:
    """Return ours - theirs, seed by seed, as a row for tables and pictures."""
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
    """One of the paper's claims."""

    name: str
    title: str
    claim: str  # what the paper says, in its own numbers
    specs: Callable[[Recipe], Iterable[RunSpec]]
    conclude: Callable[[Recipe, Runs], Result]  # `rows` are differences, `found` sentences
    draw: Callable[[Result, Path], None]
