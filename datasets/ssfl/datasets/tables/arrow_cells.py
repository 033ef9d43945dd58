"""Convert pyarrow columns to cells, and pyarrow exceptions to SourceError.

Only this module and the two file readers import pyarrow.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ssfl.datasets.errors import SourceError
from ssfl.datasets.tables.cells import Cells, ColumnType


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert exceptions of pyarrow and the system to SourceError with the file's name."""
    try:
        yield
    except PermissionError as error:
        raise SourceError(f"{path}: you have no permission to read this file") from error
    except (pa.ArrowException, OSError, UnicodeError) as error:
        reason = re.sub(r"\s+", " ", str(error).partition(" Detail: ")[0]).strip()
        raise SourceError(f"{path}: the file cannot be read: {reason[:300]}") from error


def column_type(arrow: Any) -> ColumnType:
    """Return the column type of a pyarrow type."""
    if pa.types.is_dictionary(arrow):
        return column_type(arrow.value_type)
    kinds = {
        "whole": pa.types.is_integer,
        "number": lambda kind: pa.types.is_floating(kind) or pa.types.is_decimal(kind),
        "flag": pa.types.is_boolean,
        "text": lambda kind: (
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_string_view(kind)
        ),
        "nothing": pa.types.is_null,
    }
    kind = next((kind for kind, matches in kinds.items() if matches(arrow)), "other")
    return ColumnType(kind, str(arrow))


def to_cells(column: Any, kind: str) -> Cells:
    """Return a pyarrow array as cells; raise ArrowInvalid if a value does not fit the kind."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    missing = pc.is_null(column, nan_is_null=kind == "number").to_numpy(zero_copy_only=False)
    if kind == "nothing":
        return Cells(np.zeros(len(column)), missing)
    if kind == "text":
        coded = pc.dictionary_encode(column.cast(pa.string()))
        codes = coded.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return Cells(codes, missing, tuple(coded.dictionary.to_pylist()))
    arrow = {"whole": pa.int64(), "number": pa.float64(), "flag": pa.bool_()}[kind]
    # safe=False: large integers may lose digits when they become doubles.
    values = column.cast(arrow, safe=kind == "whole").fill_null(False if kind == "flag" else 0)
    return Cells(values.to_numpy(zero_copy_only=False), missing)
