"""Prepare new rows of a table in the same way as the rows a network was trained on."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import SourceError
from ssfl.datasets.shards.shard_file import SUMMARY

_FLAGS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}


def prepare_rows(folder: Path, rows: Iterable[Mapping[str, Any]]) -> npt.NDArray[np.float32]:
    """Return rows as (N, inputs), scaled and filled like the shards in `folder`.

    A row maps column names to cells, as from `csv.DictReader`. Other columns are ignored. Cells
    that are missing, empty or None are filled. Raise SourceError naming a cell that is invalid.
    """
    columns = _columns(folder)
    inputs = [[value for column in columns for value in _inputs(column, row)] for row in rows]
    width = sum(column["inputs"] for column in columns)
    return np.array(inputs, dtype=np.float32).reshape(len(inputs), width)


def _columns(folder: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads((folder / SUMMARY).read_bytes())
        columns: list[dict[str, Any]] = document["columns"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{folder / SUMMARY} does not say how a table was prepared") from error
    if not columns:
        raise SourceError(f"the shards in {folder} were not made from a table")
    return columns


def _inputs(column: Mapping[str, Any], row: Mapping[str, Any]) -> list[float]:
    cell, name = row.get(column["name"]), column["name"]
    is_missing = cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))
    if column["kind"] == "text":
        text = column["texts"][int(column["fill"])] if is_missing else str(cell)
        return [float(text == known) for known in column["texts"]]
    if not column["deviation"]:
        return [0.0]
    try:
        flag = _FLAGS.get(str(cell).lower()) if column["kind"] == "flag" else None
        value: Any = column["fill"] if is_missing else cell
        number = float(value) if flag is None else flag
    except (TypeError, ValueError):
        raise SourceError(f"column {name} of a new row holds {cell!r}, not a number") from None
    return [(number - column["mean"]) / column["deviation"]]
