"""The columns of a table: which one is to be predicted, which are left out, what each one holds.

A survey walks over all training rows once, in double precision, and keeps what is needed to turn
cells into numbers: counts, mean, spread, range, and the different values where they matter.
"""

import difflib
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import SourceError
from ssfl.datasets.tables.cells import NUMBERS, Cells, ColumnType, Table, ignore_flag
from ssfl.datasets.text_columns import are_dates, are_local_numbers
from ssfl.datasets.wording import join_names

LABELS = ("label", "target", "class", "y", "outcome")
MAX_WORDS = 100  # different texts of one column: each becomes an input
_MANY_ROWS = 20  # in fewer, numbers may all differ by chance
_FOLLOWED = 100_000  # rows in which whole numbers are compared with each other
MAX_LABELS = 10_000  # different values of a column of labels
_ID_ROWS = 5  # that so few texts are all different says nothing


@dataclass(frozen=True)
class ColumnChoice:
    """What is read of a table."""

    label: str
    features: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them, the label last."""
        return (*self.features, self.label)


def choose(table: Table, label: str, ignore: Collection[str]) -> ColumnChoice:
    """Return which columns are read; raise SourceError where the wish and the table disagree."""
    ignored = {_find(table, name, "--ignore") for name in ignore}
    left = [name for name in table.names if name not in ignored]
    chosen = _find(table, label, "--label") if label else _only_label(table.path, left)
    if chosen in ignored:
        raise SourceError(f"{table.path}: column {chosen} cannot be both --label and --ignore")
    features = tuple(name for name in left if name != chosen)
    if not features:
        raise SourceError(f"{table.path}: no column is left to predict {chosen} from")
    return ColumnChoice(chosen, features)


def _find(table: Table, name: str, flag: str) -> str:
    """Return the column of that name; spaces around it do not matter."""
    by_name = {one.strip(): one for one in table.names} | {one: one for one in table.names}
    if name in by_name:
        return by_name[name]
    close = difflib.get_close_matches(name, by_name, n=3)
    hint = (
        f"did you mean {' or '.join(close)}?" if close else f"there are: {join_names(table.names)}"
    )
    raise SourceError(f"{table.path}: {flag} {name}: there is no such column; {hint}")


def _only_label(path: Path, names: list[str]) -> str:
    found = [name for name in names if name.strip().lower() in LABELS]
    if len(found) == 1:
        return found[0]
    wrong = f"{' and '.join(found)} could each be it" if found else f"none is called {LABELS[0]}"
    raise SourceError(
        f"{path}: which column is to be predicted? Name it with --label ({wrong}). "
        f"The columns are: {join_names(names)}"
    )


def check_types(path: Path, types: dict[str, ColumnType], label: str) -> None:
    """Refuse columns that cannot be turned into numbers, by name and type."""
    for name, one in types.items():
        if one.kind == "other":
            advice = (
                "choose another column with --label"
                if name == label
                else f"leave it out with {ignore_flag(name)}, or turn it into numbers first"
            )
            raise SourceError(f"{path}: column {name} holds {one.type_name}, no numbers; {advice}")


class ColumnSurvey:
    """What is known of one column after the rows seen so far."""

    def __init__(self, path: Path, name: str, type_: ColumnType, is_label: bool) -> None:
        self.path = path
        self.name = name
        self.type = type_
        self.is_label = is_label
        self.rows = 0  # all of them, read or dropped
        self.missing = 0
        self.first_missing = 0  # row, from 1
        self.count = 0  # cells that the following are about
        self.mean = 0.0
        self.squares = 0.0  # sum of squared distances from the mean
        self.low = math.inf
        self.high = -math.inf
        self.are_whole = True
        self.values: dict[Any, int] = {}  # how often each value occurs
        self.has_more_values = False  # than are followed
        self._seen: set[int] | None = set()  # whole numbers so far, while none came twice

    def add(self, cells: Cells, kept: npt.NDArray[np.bool_]) -> None:
        """Take in a batch, of which only some rows are kept."""
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
        if self.type.kind == "whole" and self._seen is not None and self.count <= _FOLLOWED:
            self._seen.update(cells.values[used].tolist())
            self._seen = self._seen if len(self._seen) == self.count else None
        if self.is_label or self.type.kind in ("text", "flag"):
            self._add_values(cells.values[used], cells.words)

    @property
    def looks_like_ids(self) -> bool:
        """Whether whole numbers all differ, as far as they were followed."""
        many = self.type.kind == "whole" and self.count >= _MANY_ROWS
        return many and bool(self._seen)

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def most_frequent(self) -> Any:
        """The most frequent value; of equals the first."""
        return min(sorted(self.values), key=lambda value: -self.values[value])

    @property
    def is_constant(self) -> bool:
        """Whether all cells hold the same number."""
        return self.low == self.high

    def _refuse_infinity(self, cells: Cells) -> None:
        endless = np.flatnonzero(np.isinf(cells.values) & ~cells.missing)
        if endless.size:
            raise SourceError(
                f"{self.path}: column {self.name} holds infinity in row "
                f"{self.rows + int(endless[0]) + 1}; repair it, or leave the column out "
                f"with {ignore_flag(self.name)}"
            )

    def _add_moments(self, values: npt.NDArray[np.float64]) -> None:
        """Join the batch's mean and squares to the former (Chan, Golub and LeVeque 1979)."""
        if not values.size:
            return
        with np.errstate(over="ignore", invalid="ignore"):  # looked at when all rows are seen
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
        """Raise if the texts are dates, too many, or look like names of rows, for learning."""
        most = MAX_LABELS if self.is_label else MAX_WORDS
        seen = len(self.values)
        if self.is_label:
            is_id, advice = seen > MAX_WORDS, "choose another column with --label"
        else:
            is_id, advice = seen >= _ID_ROWS, f"leave it out with {ignore_flag(self.name)}"
        looks_like_id = seen == self.count and is_id
        if self.values and are_dates(self.values):
            raise SourceError(
                f"{self.path}: column {self.name} holds dates, such as {min(self.values)!r}, no "
                f"numbers; {advice}, or turn it into numbers first"
            )
        if (looks_like_id or seen > most) and are_local_numbers(self.values):
            raise SourceError(
                f"{self.path}: column {self.name} holds texts that look like numbers, such as "
                f"{min(self.values)!r}; write them without %, currency and separators of "
                f"thousands, or {advice}"
            )
        if (looks_like_id or seen > most) and self.type.why:
            raise SourceError(
                f"{self.path}: column {self.name} is read as text: {self.type.why}; repair it "
                f"(an empty cell is a missing one: --missing), or {advice}"
            )
        if looks_like_id:
            raise SourceError(
                f"{self.path}: column {self.name} looks like an id: all {seen:,} texts in it are "
                f"different; {advice}"
            )
        if seen > most:
            raise SourceError(
                f"{self.path}: column {self.name} is text with more than {most:,} different "
                f"values; {advice}"
            )
