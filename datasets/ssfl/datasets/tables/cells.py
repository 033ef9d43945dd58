"""The cells of a table in batches of rows, as `CsvTable` and `ParquetTable` return them.

Cells are numpy arrays, independent of the file format. A column has one of five kinds:

    whole    int64              number   float64            flag    bool
    text     int64 codes into the words of the batch        nothing  all cells are empty

Anything else (dates, lists, …) has the kind `other` and cannot be read.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import SourceError
from ssfl.datasets.wording import join_names

NUMBERS = ("whole", "number")


@dataclass(frozen=True)
class ColumnType:
    """The type of a column."""

    kind: str  # whole, number, flag, text, nothing or other
    type_name: str  # for messages: "int64", "timestamp[us]", "dates"
    why: str = ""  # why it is text although most cells are numbers: "row 17 holds '?'"


@dataclass(frozen=True)
class TableContents:
    """The types of a table's columns, and its number of rows."""

    types: dict[str, ColumnType]
    rows: int


@dataclass(frozen=True, eq=False)
class Cells:
    """One column of one batch."""

    values: npt.NDArray[Any]  # (rows,); undefined for missing cells
    missing: npt.NDArray[np.bool_]  # (rows,)
    words: tuple[str, ...] = ()  # text: the word of each code

    def __len__(self) -> int:
        return len(self.values)

    def places_in(self, words: tuple[str, ...]) -> npt.NDArray[np.int64]:
        """Return the place of each text cell in `words`, -1 if it is not there."""
        places = {word: place for place, word in enumerate(words)}
        known = np.array([places.get(word, -1) for word in self.words] or [-1], dtype=np.int64)
        found: npt.NDArray[np.int64] = known[self.values]
        return found

    def select(self, rows: npt.NDArray[np.bool_]) -> "Cells":
        """Return the cells of the selected rows."""
        return Cells(self.values[rows], self.missing[rows], self.words)


def ignore_flag(name: str) -> str:
    """Return the flag that leaves a column out, quoted for a shell."""
    # Commas separate column names, so a name with a comma needs double quotes.
    return "--ignore " + shlex.quote(f'"{name}"' if "," in name else name)


def check_names(path: Path, names: tuple[str, ...]) -> None:
    """Raise SourceError if two columns have the same name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SourceError(
            f"{path}: more than one column is called {join_names(twice)}; rename them"
        )
