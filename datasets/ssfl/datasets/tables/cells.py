"""The cells of a table, a batch of rows at a time: what every reader of a file hands on.

A reader knows the file; whoever takes its cells knows numpy only. A column is one of five kinds:

    whole    int64              number   float64            flag    bool
    text     int64 codes into the batch's own words         nothing  no cell holds anything

Anything else (dates, lists, …) has the kind `other` and cannot be read.
"""

import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import SourceError
from ssfl.datasets.source import Progress
from ssfl.datasets.wording import join_names

NUMBERS = ("whole", "number")


@dataclass(frozen=True)
class ColumnType:
    """What a column holds."""

    kind: str  # whole, number, flag, text, nothing or other
    type_name: str  # what a person calls it: "int64", "timestamp[us]", "dates"
    why: str = ""  # why it is text although most cells are numbers: "row 17 holds '?'"


@dataclass(frozen=True)
class TableContents:
    """What the columns of a table hold, in all of its rows."""

    types: dict[str, ColumnType]
    rows: int


@dataclass(frozen=True, eq=False)
class Cells:
    """One column of one batch."""

    values: npt.NDArray[Any]  # (rows,); where nothing is: any value
    missing: npt.NDArray[np.bool_]  # (rows,)
    words: tuple[str, ...] = ()  # text: what the codes stand for

    def __len__(self) -> int:
        return len(self.values)

    def select(self, rows: npt.NDArray[np.bool_]) -> "Cells":
        """Return the chosen rows."""
        return Cells(self.values[rows], self.missing[rows], self.words)


class Table(Protocol):
    """A file with named columns; rows come in the order of the file."""

    @property
    def path(self) -> Path:
        """Where it is."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns, all different."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of the file."""

    def contents(
        self, columns: Collection[str], as_text: Collection[str], on_progress: Progress | None
    ) -> TableContents:
        """Return what the columns hold; `as_text` are text if a file leaves that open."""

    def batches(self, types: dict[str, ColumnType]) -> Iterator[dict[str, Cells]]:
        """Yield the columns that `types` names, some tens of thousands of rows at a time."""


def ignore_flag(name: str) -> str:
    """Return how a person leaves a column out, ready for a shell."""
    # Commas part the names of columns; double quotes keep one together.
    return "--ignore " + shlex.quote(f'"{name}"' if "," in name else name)


def check_names(path: Path, names: tuple[str, ...]) -> None:
    """Refuse columns that cannot be told apart."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SourceError(
            f"{path}: more than one column is called {join_names(twice)}; rename them"
        )
