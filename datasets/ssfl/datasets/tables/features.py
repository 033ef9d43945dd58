"""Convert the cells of a table to inputs of a network.

A number becomes one input, standardised by the training mean and deviation in double precision
before it is converted to float32. A flag becomes 0 or 1. A text is one-hot encoded over the texts
of the training rows.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.guesses import are_local_numbers
from ssfl.datasets.tables.cells import NUMBERS, Cells, ignore_flag
from ssfl.datasets.tables.columns import ColumnSurvey
from ssfl.datasets.wording import join_names, plural

_EXACT = 1 << 24  # integers up to this are exact in float32
_EXACT_DOUBLE = 1 << 53  # integers up to this are exact in float64

Inputs = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Feature:
    """The conversion of one column to `width` inputs."""

    name: str
    kind: str
    place: int  # index of the first input
    words: tuple[str, ...] = ()  # text: the word of each input
    fill: float = 0.0  # for missing cells: a number, or an index into words
    mean: float = 0.0
    scale: float = 1.0  # 0 if all inputs are 0

    @property
    def width(self) -> int:
        """Number of inputs."""
        return len(self.words) if self.kind == "text" else 1

    def to_json(self) -> dict[str, Any]:
        """Return the conversion for `shards.json`, so that new rows can be prepared."""
        texts = {"texts": list(self.words)} if self.kind == "text" else {}
        numbers = {"mean": self.mean, "deviation": self.scale}
        head = {"name": self.name, "kind": self.kind, "inputs": self.width, "fill": self.fill}
        return head | (texts or numbers)

    def write(self, cells: Cells, out: Inputs) -> npt.NDArray[np.bool_]:
        """Write the column's inputs into `out`, (rows, all inputs); return a mask of bad rows.

        A row is bad if its number exceeds float32 or its text is not in the training rows.
        """
        if self.kind == "text":
            return self._write_words(cells, out)
        values = np.where(cells.missing, self.fill, cells.values.astype(np.float64))
        if not self.scale:
            values = np.zeros(len(cells))
        with np.errstate(over="ignore"):
            inputs = ((values - self.mean) / (self.scale or 1)).astype(np.float32)
        out[:, self.place] = inputs
        unusable: npt.NDArray[np.bool_] = ~np.isfinite(inputs)
        return unusable

    def _write_words(self, cells: Cells, out: Inputs) -> npt.NDArray[np.bool_]:
        chosen = np.where(cells.missing, int(self.fill), cells.places_in(self.words))
        block = out[:, self.place : self.place + self.width]
        block[:] = 0
        rows = np.flatnonzero(chosen >= 0)
        block[rows, chosen[rows]] = 1
        unusable: npt.NDArray[np.bool_] = chosen < 0
        return unusable


def make_features(surveys: list[ColumnSurvey], standardize: bool) -> tuple[Feature, ...]:
    """Return the conversion of each column, in the order of the table."""
    features: list[Feature] = []
    place = 0
    for survey in surveys:
        if not survey.count:
            raise survey.error(
                f"is empty in every row that is used; leave it out with {ignore_flag(survey.name)}"
            )
        features.append(_feature(survey, place, standardize))
        place += features[-1].width
    return tuple(features)


def _feature(survey: ColumnSurvey, place: int, standardize: bool) -> Feature:
    kind = survey.type.kind
    if kind == "text":
        survey.refuse_many_words()
        words = tuple(sorted(survey.values))
        return Feature(survey.name, kind, place, words, fill=words.index(survey.most_frequent))
    if kind == "flag":
        return Feature(survey.name, kind, place, fill=float(survey.most_frequent))
    if not standardize:
        return Feature(survey.name, kind, place, fill=survey.mean)
    if survey.is_constant:
        return Feature(survey.name, kind, place, fill=survey.low, scale=0)
    if not 0 < survey.deviation < math.inf:
        raise survey.error(
            f"spans {survey.low:g} … {survey.high:g}, which cannot be standardised; scale it, or "
            f"leave it out with {ignore_flag(survey.name)}"
        )
    mean, scale = survey.mean, survey.deviation
    return Feature(survey.name, kind, place, fill=mean, mean=mean, scale=scale)


def feature_notes(
    surveys: list[ColumnSurvey], features: tuple[Feature, ...], standardize: bool
) -> list[str]:
    """Return notes about the inputs for the user."""
    notes = []
    numbers = [survey for survey in surveys if survey.type.kind in NUMBERS]
    same = [survey for survey in numbers if survey.is_constant]
    constant = [survey.name for survey in same if abs(survey.low) < _EXACT_DOUBLE]
    inexact = [survey.name for survey in same if abs(survey.low) >= _EXACT_DOUBLE]
    if standardize and numbers:
        notes.append(
            f"{plural(len(numbers), 'column')} of numbers standardised by the training rows"
        )
    if standardize and constant:
        notes.append(f"the same number in every row, so 0 in every sample: {join_names(constant)}")
    if standardize and inexact:
        notes.append(
            "too large for float64 to distinguish the rows, so 0 in every sample; "
            f"if they differ, subtract an offset first: {join_names(inexact)}"
        )
    ids = [survey.name for survey in numbers if survey.looks_like_ids]
    if ids:
        notes.append(
            f"integers, different in every row: {join_names(ids)}; if these are ids, leave them "
            f"out with {ignore_flag(ids[0])}"
        )
    large = [survey.name for survey in numbers if max(abs(survey.low), abs(survey.high)) > _EXACT]
    if large and not standardize:
        notes.append(f"beyond 16,777,216, where float32 loses digits: {join_names(large)}")
    texts = [feature for feature in features if feature.kind == "text"]
    if texts:
        inputs = sum(feature.width for feature in texts)
        notes.append(f"{plural(len(texts), 'column')} of text became inputs of 0 or 1: {inputs}")
    for survey in surveys:
        if survey.type.kind == "text" and are_local_numbers(survey.values):
            notes.append(
                f"column {survey.name} is read as text, one input per value, but looks like "
                f"numbers, such as {min(survey.values)!r}: if so, write them as plain numbers"
            )
        elif survey.type.why:
            notes.append(f"column {survey.name} is read as text: {survey.type.why}")
    return notes
