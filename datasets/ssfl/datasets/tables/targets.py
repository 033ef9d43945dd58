"""Convert the label column to targets: classes 0 … C-1, or numbers to predict."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import SourceError
from ssfl.datasets.guesses import ASK_FOR_TARGET, FEW, are_classes, class_name_notes
from ssfl.datasets.tables.cells import Cells
from ssfl.datasets.tables.columns import MAX_LABELS, ColumnSurvey
from ssfl.datasets.wording import class_name, plural

_LARGE = 1000  # training on larger targets tends to diverge


@dataclass(frozen=True)
class Target:
    """The conversion of labels to targets."""

    name: str
    kind: str
    classes: tuple[Any, ...] = ()  # values in the table, sorted; empty for numbers
    mean: float = 0.0  # numbers: subtracted first
    scale: float = 1.0  # numbers: divisor

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class."""
        return tuple(class_name(value) for value in self.classes)

    @property
    def dtype(self) -> type[np.int64] | type[np.float32]:
        """Type of the targets."""
        return np.int64 if self.classes else np.float32

    def encode(self, path: Path, cells: Cells, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the targets of cells without gaps; `rows` are their row numbers, for messages."""
        if not self.classes:
            with np.errstate(over="ignore"):
                scaled = (cells.values.astype(np.float64) - self.mean) / self.scale
                numbers = scaled.astype(np.float32)
            self._check(path, cells, rows, ~np.isfinite(numbers), "too large for float32")
            return numbers
        if self.kind == "text":
            found = cells.places_in(self.classes)
        else:
            values = np.array(self.classes)
            found = np.searchsorted(values, cells.values).clip(max=len(values) - 1).astype(np.int64)
            found[values[found] != cells.values] = -1
        self._check(path, cells, rows, found < 0, "which no training row has")
        return found

    def _check(
        self,
        path: Path,
        cells: Cells,
        rows: npt.NDArray[np.int64],
        is_wrong: npt.NDArray[np.bool_],
        reason: str,
    ) -> None:
        wrong = np.flatnonzero(is_wrong)
        if wrong.size:
            value = cells.values[wrong[0]].item()
            name = class_name(cells.words[value] if self.kind == "text" else value)
            raise SourceError(
                f"{path}: column {self.name} holds {name} in row {rows[wrong[0]]}, {reason}"
            )


def make_target(survey: ColumnSurvey, wanted: str, *, standardize: bool) -> Target:
    """Return the conversion to classes or numbers; `wanted` is auto, class or number."""
    kind, name = survey.type.kind, survey.name
    if not survey.count:
        raise SourceError(f"{survey.path}: the column to predict, {name}, is empty in every row")
    if wanted == "auto":
        wanted = _guess(survey)
    if wanted == "class":
        if kind == "text":
            survey.refuse_many_words()
        if survey.has_more_values:
            raise survey.error(
                f"has more than {MAX_LABELS:,} different values: too many for classes; predict "
                "numbers with --target number"
            )
        return Target(name, kind, tuple(sorted(survey.values)))
    if kind == "text":
        why = f" ({survey.type.why})" if survey.type.why else ""
        raise SourceError(
            f"{survey.path}: --target number: column {name} holds text, such as "
            f"{min(survey.values)!r}{why}; repair it, or use --target class"
        )
    if standardize and kind != "flag":
        return Target(name, kind, mean=survey.mean, scale=survey.deviation or 1.0)
    return Target(name, kind)


def target_notes(survey: ColumnSurvey, target: Target) -> list[str]:
    """Return notes about the targets for the user."""
    if target.classes:
        why = survey.type.why
        notes = [f"column {target.name} is read as text: {why}"] if why else []
        return notes + class_name_notes(target.class_names)
    if target.kind == "flag":
        return [f"{target.name} is predicted as a number, 0 or 1"]
    if (target.mean, target.scale) != (0.0, 1.0):
        return [
            f"{target.name} is predicted as a number, minus {target.mean:.9g} and divided by "
            f"{target.scale:.9g}: losses and errors are in these units (see --no-standardize)"
        ]
    notes = [
        f"{target.name} is predicted as a number: mean {survey.mean:.6g}, "
        f"standard deviation {survey.deviation:.6g}, not scaled"
    ]
    largest = max(abs(survey.low), abs(survey.high))
    if largest > _LARGE:
        notes.append(
            f"{target.name} reaches {largest:.6g}: the loss may diverge; divide it first, "
            f"for example by {survey.deviation or largest:.4g}"
        )
    return notes


def _guess(survey: ColumnSurvey) -> str:
    kind, different = survey.type.kind, len(survey.values)
    if kind in ("text", "flag"):
        return "class"
    if kind == "whole" and are_classes(different, survey.count):
        return "class"
    if kind == "number" and not (survey.are_whole and different <= FEW):
        return "number"
    count = f"more than {MAX_LABELS:,}" if survey.has_more_values else f"{different:,}"
    values = "value" if different == 1 else "different values"
    raise survey.error(
        f"holds integers, {count} {values} from {survey.low:g} to {survey.high:g} in "
        f"{plural(survey.count, 'row')}: {ASK_FOR_TARGET}"
    )
