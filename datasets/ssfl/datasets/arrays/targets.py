"""Convert arrays of labels to targets: classes 0 … C-1, or numbers to predict.

Integers, text, booleans and one-hot rows are classes, numbered in sorted order. Floats with a
fraction are numbers to predict, one or more per sample. Floats without a fraction and integers
that rarely repeat could be either, so the user must choose with --target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.class_or_number import ASK_FOR_TARGET, are_classes
from ssfl.datasets.errors import SourceError
from ssfl.datasets.text_columns import EQUAL_WHEN_STRIPPED, equal_when_stripped
from ssfl.datasets.wording import class_name, join_names

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Targets:
    """The targets of each array and the classes they have in common."""

    values: tuple[Array, ...]  # int64, or float32 if there are no classes
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_targets(arrays: Sequence[tuple[str, Array]], wanted: str) -> Targets:
    """Return the targets of (name, array) pairs of one data set; names appear in messages."""
    columns = [_column(name, array) for name, array in arrays]
    if columns[0].ndim == 2:
        return _rows(arrays, columns, wanted)
    kinds = {_kind(name, column) for (name, _), column in zip(arrays, columns, strict=True)}
    if len(kinds) > 1 or any(column.ndim != 1 for column in columns):
        shown = ", ".join(f"{name} {array.dtype}" for name, array in arrays)
        raise SourceError(f"the labels have different types: {shown}")
    kind = kinds.pop()
    if kind == "whole":
        columns = _signed(arrays, columns)
    if wanted == "number" or (kind == "float" and wanted == "auto" and not _all_whole(columns)):
        return _numbers(arrays, columns, kind)
    if kind == "float":
        columns = _whole(arrays, columns, wanted)
    if kind == "whole" and wanted == "auto":
        _ask_if_many(arrays, columns)
    return _classes(columns, kind)


def _column(name: str, array: Array) -> Array:
    """Return labels (N,), or (N, C) if there are several numbers per sample."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if not 1 <= array.ndim <= 2 or 0 in array.shape[1:]:
        raise SourceError(f"{name} has shape {array.shape}; there must be one label per sample")
    if array.dtype.kind == "S":
        return _decode(name, array)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        rows = np.isfinite(array).reshape(len(array), -1).all(axis=1)
        raise SourceError(f"{name} holds NaN or infinity, first in sample {int(np.argmin(rows))}")
    return array


def _signed(arrays: Sequence[tuple[str, Array]], columns: list[Array]) -> list[Array]:
    """Return integers as int64, because numpy joins int64 and uint64 to floats."""
    for (name, _), column in zip(arrays, columns, strict=True):
        if column.dtype == np.uint64 and (column > np.iinfo(np.int64).max).any():
            raise SourceError(f"{name} holds {column.max()}, which is too large for a label")
    return [column.astype(np.int64) for column in columns]


def _decode(name: str, array: Array) -> Array:
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"{name} holds text that is not UTF-8: {error.reason}") from error


def _kind(name: str, column: Array) -> str:
    kinds = {"b": "truth", "i": "whole", "u": "whole", "f": "float", "U": "text"}
    kind = kinds.get(column.dtype.kind)
    if kind is None:
        raise SourceError(f"{name} holds {column.dtype}; labels are numbers or text")
    if kind == "text" and (column == "").any():
        raise SourceError(f"{name}: the label of sample {int(np.argmax(column == ''))} is empty")
    return kind


def _rows(arrays: Sequence[tuple[str, Array]], columns: list[Array], wanted: str) -> Targets:
    """Return the classes of one-hot rows, or several numbers per sample."""
    width = columns[0].shape[-1]
    wrong = ""
    for (name, _), rows in zip(arrays, columns, strict=True):
        if rows.ndim != 2 or rows.shape[1] != width or rows.dtype.kind not in "biuf":
            raise SourceError(f"{name} has shape {rows.shape}, {arrays[0][0]} {columns[0].shape}")
        is_good = ((rows == 0) | (rows == 1)).all(axis=1) & ((rows == 1).sum(axis=1) == 1)
        if not is_good.all():
            wrong = wrong or (
                f"{name} has shape {rows.shape} and is not one-hot (sample "
                f"{int(np.argmin(is_good))}); there must be one label per sample, or numbers to "
                "predict: --target number"
            )
    if wrong and (wanted == "number" or (wanted == "auto" and not _all_whole(columns))):
        return _numbers(arrays, columns, "float")
    if wrong:
        raise SourceError(wrong)
    if wanted == "number":
        raise SourceError(f"--target number: {arrays[0][0]} holds one-hot rows, which are classes")
    values = tuple(rows.argmax(axis=1).astype(np.int64) for rows in columns)
    return Targets(values, tuple(map(str, range(width))), ("one-hot labels became class numbers",))


def _numbers(arrays: Sequence[tuple[str, Array]], columns: list[Array], kind: str) -> Targets:
    values = []
    for (name, _), column in zip(arrays, columns, strict=True):
        if kind == "text":
            shown = str(column[0]) if len(column) else ""
            raise SourceError(f"--target number: {name} holds text, such as {shown!r}")
        with np.errstate(over="ignore"):
            numbers = column.astype(np.float32)
        is_good = np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)
        if not is_good.all():
            sample = int(np.argmin(is_good))
            raise SourceError(f"{name}: {column[sample]} of sample {sample} is too large")
        values.append(numbers)
    return Targets(tuple(values), (), ("labels are numbers to predict, as they are",))


def _all_whole(columns: list[Array]) -> bool:
    return all(bool((column == np.floor(column)).all()) for column in columns)


def _whole(arrays: Sequence[tuple[str, Array]], columns: list[Array], wanted: str) -> list[Array]:
    """Return floats as integers; raise SourceError unless all are whole and classes are wanted."""
    if wanted == "auto":
        raise SourceError(f"{arrays[0][0]} holds floats that are whole numbers: {ASK_FOR_TARGET}")
    for (name, _), column in zip(arrays, columns, strict=True):
        is_good = (column == np.floor(column)) & (np.abs(column) < 2.0**53)
        if not is_good.all():
            sample = int(np.argmin(is_good))
            raise SourceError(
                f"--target class: {name} holds {column[sample]} in sample {sample}, "
                "which is not a class; use --target number"
            )
    return [column.astype(np.int64) for column in columns]


def _ask_if_many(arrays: Sequence[tuple[str, Array]], columns: list[Array]) -> None:
    together = np.concatenate(columns)
    different = len(np.unique(together))
    if not are_classes(different, len(together)):
        raise SourceError(
            f"{arrays[0][0]} holds {different:,} different integers in {len(together):,} "
            f"samples: {ASK_FOR_TARGET}"
        )


def _classes(columns: list[Array], kind: str) -> Targets:
    found, places = np.unique(np.concatenate(columns), return_inverse=True)
    labels = places.reshape(-1).astype(np.int64)
    ends = np.cumsum([len(column) for column in columns])[:-1]
    names = tuple(class_name(label) for label in found.tolist())
    is_renumbered = kind in ("whole", "float") and names != tuple(map(str, range(len(found))))
    note = f"labels {join_names(names)} became classes 0 … {len(names) - 1}"
    if len(names) == 1:
        note = f"label {names[0]} became class 0, the only class"
    notes = [note] if is_renumbered else []
    same = equal_when_stripped(names)
    if same:
        notes.append(f"{EQUAL_WHEN_STRIPPED}: {join_names(same)}")
    return Targets(tuple(np.split(labels, ends)), names, tuple(notes))
