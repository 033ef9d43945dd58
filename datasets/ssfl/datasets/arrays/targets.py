"""Convert arrays of labels to targets: classes 0 … C-1, or numbers to predict.

Integers that repeat, text, booleans and one-hot rows are classes, numbered in sorted order. Floats
with a fraction are numbers to predict, one or more per sample. Integers that rarely repeat, and
floats without a fraction, could be either, so the user must choose with --target.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssfl.datasets.data_set import Array
from ssfl.datasets.errors import SourceError
from ssfl.datasets.guesses import ASK_FOR_TARGET, are_classes, class_name_notes
from ssfl.datasets.memory import first_not_finite
from ssfl.datasets.wording import class_name, join_names

Columns = list[tuple[str, Array]]  # the name of each array, for messages, and its labels
_KINDS = {"b": "truth", "i": "whole", "u": "whole", "f": "float", "U": "text"}


@dataclass(frozen=True)
class Targets:
    """The targets of each array, and the list of classes, which is the same for all arrays."""

    values: tuple[Array, ...]  # int64, or float32 if there are no classes
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_targets(arrays: Sequence[tuple[str, Array]], wanted: str) -> Targets:
    """Return the targets of (name, array) pairs of one data set; names appear in messages."""
    columns = [(name, _column(name, array)) for name, array in arrays]
    if columns[0][1].ndim == 2:
        return _rows(columns, wanted)
    kinds = {_kind(name, column) for name, column in columns}
    if len(kinds) > 1 or any(column.ndim != 1 for _, column in columns):
        shown = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in arrays)
        raise SourceError(f"the labels differ in type or shape: {shown}")
    kind = kinds.pop()
    if kind == "whole":
        columns = _signed(columns)
    if wanted == "number" or (kind == "float" and wanted == "auto" and not _all_whole(columns)):
        return _numbers(columns, kind)
    if kind == "float":
        columns = _whole(columns, wanted)
    if kind == "whole" and wanted == "auto":
        _ask_if_many(columns)
    return _classes([column for _, column in columns], kind)


def _column(name: str, array: Array) -> Array:
    """Return labels (N,), or (N, C) if there are several numbers per sample."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if not 1 <= array.ndim <= 2 or 0 in array.shape[1:]:
        raise SourceError(f"{name} has shape {array.shape}; there must be one label per sample")
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(f"{name} holds text that is not UTF-8: {error.reason}") from error
    broken = first_not_finite(array)
    if broken is not None:
        raise SourceError(f"{name} holds NaN or infinity, first in sample {broken}")
    return array


def _signed(columns: Columns) -> Columns:
    """Return integers as int64, because numpy joins int64 and uint64 to floats."""
    for name, column in columns:
        if column.dtype == np.uint64 and (column > np.iinfo(np.int64).max).any():
            raise SourceError(f"{name} holds {column.max()}, which is too large for a label")
    return [(name, column.astype(np.int64)) for name, column in columns]


def _kind(name: str, column: Array) -> str:
    kind = _KINDS.get(column.dtype.kind)
    if kind is None:
        raise SourceError(f"{name} holds {column.dtype}; labels are numbers or text")
    if kind == "text" and (column == "").any():
        raise SourceError(f"{name}: the label of sample {int(np.argmax(column == ''))} is empty")
    return kind


def _rows(columns: Columns, wanted: str) -> Targets:
    """Return the classes of one-hot rows, or several numbers per sample."""
    first_name, first = columns[0]
    wrong = ""
    for name, rows in columns:
        if rows.dtype.kind not in "biuf":
            raise SourceError(f"{name} holds {rows.dtype}: several labels a sample must be numbers")
        if rows.ndim != 2 or rows.shape[1] != first.shape[1]:
            raise SourceError(f"{name} has shape {rows.shape}, but {first_name} has {first.shape}")
        is_good = ((rows == 0) | (rows == 1)).all(axis=1) & ((rows == 1).sum(axis=1) == 1)
        if not is_good.all():
            wrong = wrong or (
                f"{name} has shape {rows.shape} and is not one-hot (sample "
                f"{int(np.argmin(is_good))}); there must be one label per sample, or numbers to "
                "predict: --target number"
            )
    if wrong and (wanted == "number" or (wanted == "auto" and not _all_whole(columns))):
        return _numbers(columns, "float")
    if wrong:
        raise SourceError(wrong)
    if wanted == "number":
        raise SourceError(f"--target number: {first_name} holds one-hot rows, which are classes")
    values = tuple(rows.argmax(axis=1).astype(np.int64) for _, rows in columns)
    class_names = tuple(map(str, range(first.shape[1])))
    return Targets(values, class_names, ("one-hot labels became class numbers",))


def _numbers(columns: Columns, kind: str) -> Targets:
    values = []
    for name, column in columns:
        if kind == "text":
            shown = str(column[0]) if len(column) else ""
            raise SourceError(f"--target number: {name} holds text, such as {shown!r}")
        with np.errstate(over="ignore"):
            numbers = column.astype(np.float32)
        sample = first_not_finite(numbers)
        if sample is not None:
            raise SourceError(f"{name}: {column[sample]} of sample {sample} is too large")
        values.append(numbers)
    return Targets(tuple(values), (), ("labels are numbers to predict; they are not scaled",))


def _all_whole(columns: Columns) -> bool:
    return all(bool((column == np.floor(column)).all()) for _, column in columns)


def _whole(columns: Columns, wanted: str) -> Columns:
    """Return floats as integers; raise SourceError unless all are whole and classes are wanted."""
    if wanted == "auto":
        raise SourceError(f"{columns[0][0]} holds floats that are whole numbers: {ASK_FOR_TARGET}")
    for name, column in columns:
        is_good = (column == np.floor(column)) & (np.abs(column) < 2.0**53)
        if not is_good.all():
            sample = int(np.argmin(is_good))
            raise SourceError(
                f"--target class: {name} holds {column[sample]} in sample {sample}, "
                "which is not a class; use --target number"
            )
    return [(name, column.astype(np.int64)) for name, column in columns]


def _ask_if_many(columns: Columns) -> None:
    together = np.concatenate([column for _, column in columns])
    different = len(np.unique(together))
    if not are_classes(different, len(together)):
        raise SourceError(
            f"{columns[0][0]} holds {different:,} different integers in {len(together):,} "
            f"samples: {ASK_FOR_TARGET}"
        )


def _classes(columns: list[Array], kind: str) -> Targets:
    found, places = np.unique(np.concatenate(columns), return_inverse=True)
    labels = places.reshape(-1).astype(np.int64)
    ends = np.cumsum([len(column) for column in columns])[:-1]
    names = tuple(class_name(label) for label in found.tolist())
    notes = []
    if kind in ("whole", "float") and names != tuple(map(str, range(len(found)))):
        many = f"labels {join_names(names)} became classes 0 … {len(names) - 1}"
        notes.append(many if len(names) > 1 else f"label {names[0]} became class 0, the only class")
    notes += class_name_notes(names)
    return Targets(tuple(np.split(labels, ends)), names, tuple(notes))
