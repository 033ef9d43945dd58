"""From the cells of a table to the inputs of a network.

A number becomes one input: minus the training mean, over the training deviation, worked in double
precision before it is narrowed to float32. A flag becomes 0 or 1. A text becomes one input for
each text of the training rows: 1 for the one that is there, 0 for the others.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import SourceError
from ssfl.datasets.tables.cells import NUMBERS, Cells, ignore_flag
from ssfl.datasets.tables.columns import ColumnSurvey
from ssfl.datasets.text_columns import are_local_numbers
from ssfl.datasets.wording import join_names

_EXACT = 1 << 24  # whole numbers up to here are exact in float32
_EXACT_DOUBLE = 1 << 53  # and up to here in float64

Inputs = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Feature:
    """How one column becomes `width` inputs."""

    name: str
    kind: str
    place: int  # of its first input
    words: tuple[str, ...] = ()  # text: what each input stands for
    fill: float = 0.0  # what takes the place of a missing cell: a number, or a place in words
    mean: float = 0.0
    scale: float = 1.0  # 0: all inputs are 0

    @property
    def width(self) -> int:
        """How many inputs."""
        return len(self.words) if self.kind == "text" else 1

    def to_json(self) -> dict[str, Any]:
        """Return how new rows are to be prepared, for `shards.json`."""
        texts = {"texts": list(self.words)} if self.kind == "text" else {}
        numbers = {"mean": self.mean, "deviation": self.scale}
        head = {"name": self.name, "kind": self.kind, "inputs": self.width, "fill": self.fill}
        return head | (texts or numbers)

    def write(self, cells: Cells, out: Inputs) -> npt.NDArray[np.bool_]:
        """Write the column's inputs into `out`, (rows, all inputs); return which are unusable.

        Unusable: a number that float32 cannot hold, a text that training rows do not have.
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
        places = {word: place for place, word in enumerate(self.words)}
        known = np.array([places.get(word, -1) for word in cells.words] or [-1])
        chosen = np.where(cells.missing, int(self.fill), known[cells.values])
        block = out[:, self.place : self.place + self.width]
        block[:] = 0
        rows = np.flatnonzero(chosen >= 0)
        block[rows, chosen[rows]] = 1
        unusable: npt.NDArray[np.bool_] = chosen < 0
        return unusable


def make_features(surveys: list[ColumnSurvey], standardize: bool) -> tuple[Feature, ...]:
    """Return how each column is turned into inputs, in the order of the table."""
    features: list[Feature] = []
    place = 0
    for survey in surveys:
        if not survey.count:
            raise SourceError(
                f"{survey.path}: column {survey.name} is empty in every row that is used; "
                f"leave it out with {ignore_flag(survey.name)}"
            )
        feature = _feature(survey, place, standardize)
        features.append(feature)
        place += feature.width
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
        raise SourceError(
            f"{survey.path}: column {survey.name} spans {survey.low:g} … {survey.high:g}, which "
            f"cannot be standardised; scale it, or leave it out with {ignore_flag(survey.name)}"
        )
    mean, scale = survey.mean, survey.deviation
    return Feature(survey.name, kind, place, fill=mean, mean=mean, scale=scale)


def feature_notes(
    surveys: list[ColumnSurvey], features: tuple[Feature, ...], standardize: bool
) -> list[str]:
    """Return what a person should know of the inputs."""
    notes = []
    numbers = [survey for survey in surveys if survey.type.kind in NUMBERS]
    alike = [survey for survey in numbers if survey.is_constant]
    constant = [one.name for one in alike if abs(one.low) < _EXACT_DOUBLE]
    blurred = [one.name for one in alike if abs(one.low) >= _EXACT_DOUBLE]
    if standardize and numbers:
        notes.append(f"{_columns(len(numbers))} of numbers standardised by the training rows")
    if standardize and constant:
        notes.append(f"the same number in every row, so 0 in every sample: {join_names(constant)}")
    if standardize and blurred:
        notes.append(
            "so large that float64 sees the same number in every row, so 0 in every sample; "
            f"if they differ, subtract something first: {join_names(blurred)}"
        )
    ids = [survey.name for survey in numbers if survey.looks_like_ids]
    if ids:
        notes.append(
            f"whole numbers, different in every row: {join_names(ids)}; if these are ids, leave them "
            f"out with {ignore_flag(ids[0])}"
        )
    large = [one.name for one in numbers if max(abs(one.low), abs(one.high)) > _EXACT]
    if large and not standardize:
        notes.append(f"beyond 16,777,216, where float32 drops digits: {join_names(large)}")
    texts = [feature for feature in features if feature.kind == "text"]
    if texts:
        inputs = sum(feature.width for feature in texts)
        notes.append(f"{_columns(len(texts))} of text became inputs of 0 or 1: {inputs}")
    for survey in surveys:
        if survey.type.kind == "text" and are_local_numbers(survey.values):
            notes.append(
                f"column {survey.name} is read as text, an input for each, but looks like numbers, "
                f"such as {min(survey.values)!r}: if so, write them plainly"
            )
        elif survey.type.why:
            notes.append(f"column {survey.name} is read as text: {survey.type.why}")
    return notes


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def refuse_overflow(path: Path, feature: Feature, row: int) -> None:
    """Raise because a number is beyond what float32 holds."""
    raise SourceError(
        f"{path}: column {feature.name} holds a number in row {row} that is too large for float32; "
        f"repair it, or leave the column out with {ignore_flag(feature.name)}"
    )
