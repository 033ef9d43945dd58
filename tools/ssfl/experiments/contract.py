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

    def outcomes(self, name: str, measure: str) -> list[Any]:
        """Return a part of the outcome that is not a number, one per seed."""
        return [run.outcome[measure] for run in self._by_name[name]]

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
    # `rows` of differences, sentences in `found`, and `table`: its columns and rows of texts
    conclude: Callable[[Recipe, Runs], Result]
    draw: Callable[[Result, Path], None]

    @property
    def is_measured(self) -> bool:
        """True if it measures the data and the initial model, without runs."""
        return self.specs is no_runs

    def document(self, recipe: Recipe, runs: Runs) -> Result:
        """Return the result with what it is about, in types that JSON has."""
        found: Result = {
            "experiment": self.name,
            "title": self.title,
            "paper": self.claim,
            "data": recipe.data.source,
            "clients": recipe.data.clients,
            "seeds": list(recipe.seeds),
            **self.conclude(recipe, runs),
        }
        return {key: _rounded(value) for key, value in found.items()}


def no_runs(_recipe: Recipe) -> Iterable[RunSpec]:
    """Return the runs of an experiment that needs none."""
    return ()


def _rounded(value: Any) -> Any:
    """Return the value with numbers rounded to six digits after the point."""
    if isinstance(value, float):
        return round(float(value), 6) if value == value else None  # nan: the interval of one seed
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
