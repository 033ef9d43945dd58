"""Choose the columns of a table and survey their values.

A survey passes over all training rows once, in double precision. It collects what is needed to
convert cells to numbers: counts, mean, deviation, range, and the distinct values where needed.
"""

import difflib
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import SourceError, errors_of
from ssfl.datasets.guesses import are_dates, are_local_numbers
from ssfl.datasets.tables.cells import NUMBERS, Cells, ColumnType, ignore_flag
from ssfl.datasets.wording import join_names

LABELS = ("label", "target", "class", "y", "outcome")
MAX_WORDS = 100  # distinct texts of a column; each becomes an input
_MANY_ROWS = 20  # in fewer rows, numbers may all differ by chance
_MAX_TRACKED = 100_000  # cells that are searched for duplicate integers
MAX_LABELS = 10_000  # distinct values of the label column
_ID_ROWS = 5  # in fewer rows, texts may all differ by chance


@dataclass(frozen=True)
class ColumnChoice:
    """The columns of a table that are read."""

    label: str
    features: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read, the label last."""
        return (*self.features, self.label)


def choose(path: Path, names: tuple[str, ...], label: str, ignore: Collection[str]) -> ColumnChoice:
    """Return the columns to read; raise SourceError if the table lacks a requested column."""
    with errors_of(path):
        ignored = {_find(names, name, "--ignore") for name in ignore}
        left = [name for name in names if name not in ignored]
        chosen = _find(names, label, "--label") if label else _only_label(left)
        if chosen in ignored:
            raise SourceError(f"column {chosen} cannot be both --label and --ignore")
        features = tuple(name for name in left if name != chosen)
        if not features:
            raise SourceError(f"no column is left to predict {chosen} from")
        return ColumnChoice(chosen, features)


def _find(columns: tuple[str, ...], name: str, flag: str) -> str:
    """Return the column with this name, with or without surrounding spaces."""
    by_name = {column.strip(): column for column in columns}
    by_name |= {column: column for column in columns}
    if name in by_name:
        return by_name[name]
    close = difflib.get_close_matches(name, by_name, n=3)
    names = f"there are: {join_names(columns)}"
    hint = f"did you mean {' or '.join(close)}?" if close else names
    raise SourceError(f"{flag} {name}: there is no such column; {hint}")


def _only_label(names: list[str]) -> str:
    found = [name for name in names if name.strip().lower() in LABELS]
    if len(found) == 1:
        return found[0]
    wrong = f"{' and '.join(found)} are possible" if found else f"none is called {LABELS[0]}"
    raise SourceError(
        f"set the column to predict with --label ({wrong}). The columns are: {join_names(names)}"
    )


def check_types(path: Path, types: dict[str, ColumnType], label: str) -> None:
    """Raise SourceError if a column cannot be converted to numbers."""
    for name, column_type in types.items():
        if column_type.kind == "other":
            advice = (
                "choose another column with --label"
                if name == label
                else f"leave it out with {ignore_flag(name)}, or convert it to numbers first"
            )
            raise SourceError(
                f"{path}: column {name} holds {column_type.type_name}, not numbers; {advice}"
            )


class ColumnSurvey:
    """Statistics of one column over the rows added so far."""

    def __init__(self, path: Path, name: str, type_: ColumnType, is_label: bool) -> None:
        self.path = path
        self.name = name
        self.type = type_
        self.is_label = is_label
        self.rows = 0  # including dropped rows
        self.missing = 0
        self.first_missing = 0  # row, from 1
        self.count = 0  # cells that the statistics below include
        self.mean = 0.0
        self.squares = 0.0  # sum of squared deviations from the mean
        self.low = math.inf
        self.high = -math.inf
        self.are_whole = True
        self.values: dict[Any, int] = {}  # number of occurrences of each value
        self.has_more_values = False  # True if `values` is incomplete
        self._seen: set[int] | None = set()  # integers so far; None after a duplicate

    def add(self, cells: Cells, kept: npt.NDArray[np.bool_]) -> None:
        """Add a batch; rows outside the mask `kept` do not enter the statistics."""
        empty = np.flatnonzero(cells.missing)
        if empty.size and not self.missing:
            self.first_missing = self.rows + int(empty[0]) + 1
        self.missing += empty.size
        used = kept & ~cells.missing
        if self.type.kind in NUMBERS:
            self._refuse_infinity(cells)
            self._add_moments(cells.values[used].astype(np.float64))
        self.rows += len(cells)
        self.count += int(used.sum())
        if self.type.kind == "whole" and self._seen is not None and self.count <= _MAX_TRACKED:
            self._seen.update(cells.values[used].tolist())
            self._seen = self._seen if len(self._seen) == self.count else None
        if self.is_label or self.type.kind in ("text", "flag"):
            self._add_values(cells.values[used], cells.words)

    @property
    def looks_like_ids(self) -> bool:
        """True if all integers checked are different."""
        many = self.type.kind == "whole" and self.count >= _MANY_ROWS
        return many and bool(self._seen)

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def most_frequent(self) -> Any:
        """The most frequent value; the smallest one if several are equally frequent."""
        return min(sorted(self.values), key=lambda value: -self.values[value])

    @property
    def is_constant(self) -> bool:
        """True if all cells hold the same number."""
        return self.low == self.high

    def error(self, problem: str) -> SourceError:
        """Return an error of this column; the problem begins with a verb."""
        return SourceError(f"{self.path}: column {self.name} {problem}")

    def _refuse_infinity(self, cells: Cells) -> None:
        infinite = np.flatnonzero(np.isinf(cells.values) & ~cells.missing)
        if infinite.size:
            raise self.error(
                f"holds infinity in row {self.rows + int(infinite[0]) + 1}; repair it, or leave "
                f"the column out with {ignore_flag(self.name)}"
            )

    def _add_moments(self, values: npt.NDArray[np.float64]) -> None:
        """Merge the batch's mean and squares (Chan, Golub and LeVeque 1979)."""
        if not values.size:
            return
        with np.errstate(over="ignore", invalid="ignore"):  # `_feature` checks the result
            mean = float(values.mean())
            squares = float(np.square(values - mean).sum())
            both = self.count + values.size
            distance = np.float64(mean - self.mean)
            self.mean += float(distance * (values.size / both))
            self.squares += squares + float(distance**2 * (self.count * values.size / both))
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))
        self.are_whole = self.are_whole and bool((values == np.floor(values)).all())

    def _add_values(self, values: npt.NDArray[Any], words: tuple[str, ...]) -> None:
        if self.has_more_values:
            return
        different, counts = np.unique(values, return_counts=True)
        for value, count in zip(different.tolist(), counts.tolist(), strict=True):
            key = words[value] if self.type.kind == "text" else value
            self.values[key] = self.values.get(key, 0) + count
        if len(self.values) > (MAX_LABELS if self.is_label else MAX_WORDS):
            self.has_more_values = True
            if self.type.kind == "text":
                self.refuse_many_words()

    def refuse_many_words(self) -> None:
        """Raise SourceError if the texts are dates, too many, or look like ids."""
        limit = MAX_LABELS if self.is_label else MAX_WORDS
        distinct = len(self.values)
        if self.is_label:
            is_id, advice = distinct > MAX_WORDS, "choose another column with --label"
        else:
            is_id, advice = distinct >= _ID_ROWS, f"leave it out with {ignore_flag(self.name)}"
        looks_like_id = distinct == self.count and is_id
        example = f"such as {min(self.values, default='')!r}"
        if self.values and are_dates(self.values):
            advice = f"{advice}, or convert it to numbers first"
            raise self.error(f"holds dates, {example}, not numbers; {advice}")
        if not looks_like_id and distinct <= limit:
            return
        if are_local_numbers(self.values):
            raise self.error(
                f"holds texts that look like numbers, {example}; write them without %, currency "
                f"symbols and thousands separators, or {advice}"
            )
        if self.type.why:
            raise self.error(
                f"is read as text: {self.type.why}; repair it (an empty cell counts as missing, "
                f"see --missing), or {advice}"
            )
        if looks_like_id:
            raise self.error(
                f"looks like an id: all {distinct:,} texts in it are different; {advice}"
            )
        raise self.error(f"is text with more than {limit:,} different values; {advice}")
