"""Parquet files as tables: types come from the file, rows are read in batches."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ssfl.datasets.data_set import Progress
from ssfl.datasets.errors import SourceError
from ssfl.datasets.tables.arrow_cells import column_type, reading, to_cells
from ssfl.datasets.tables.cells import Cells, ColumnType, TableContents, check_names, ignore_flag

_MAGIC = b"PAR1"  # at both ends of the file
_BATCH_ROWS = 65536
_INDEX = "__index_level_"  # prefix of the columns in which pandas stores an index


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """A Parquet file; rows come in the order of the file."""

    path: Path
    names: tuple[str, ...]
    notes: tuple[str, ...]
    arrow_types: dict[str, Any]
    rows: int

    def contents(
        self, columns: Collection[str], _as_text: Collection[str], _on_progress: Progress | None
    ) -> TableContents:
        """Return the types from the file's schema."""
        types = {name: column_type(self.arrow_types[name]) for name in columns}
        return TableContents(types, self.rows)

    def batches(self, types: dict[str, ColumnType]) -> Iterator[dict[str, Cells]]:
        """Yield the columns, a batch of rows at a time."""
        # pre_buffer would hold the whole file in memory.
        with reading(self.path), pq.ParquetFile(str(self.path), pre_buffer=False) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(types)):
                names = batch.schema.names
                yield {
                    name: _cells(self.path, name, batch.column(names.index(name)), type_.kind)
                    for name, type_ in types.items()
                }


def _cells(path: Path, name: str, column: Any, kind: str) -> Cells:
    try:
        return to_cells(column, kind)
    except pa.ArrowInvalid as error:
        if kind != "whole":
            raise
        raise SourceError(
            f"{path}: column {name} holds an integer beyond 9,223,372,036,854,775,807, the "
            f"maximum of int64; leave it out with {ignore_flag(name)}, or store it as float64"
        ) from error


def open_parquet(path: Path) -> ParquetTable:
    """Return the table; raise SourceError if the file is not a complete Parquet file."""
    with reading(path):
        _check_ends(path)
        with pq.ParquetFile(str(path)) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    if not rows:
        raise SourceError(f"{path}: the table has {len(schema.names)} columns but no rows")
    check_names(path, tuple(schema.names))
    index = tuple(name for name in schema.names if name.startswith(_INDEX))
    notes = tuple(f"column {name} ignored: it is the index of a pandas table" for name in index)
    return ParquetTable(
        path,
        tuple(name for name in schema.names if name not in index),
        notes,
        dict(zip(schema.names, schema.types, strict=True)),
        rows,
    )


def _check_ends(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(len(_MAGIC))
        file.seek(0, 2)
        file.seek(max(0, file.tell() - len(_MAGIC)))
        end = file.read()
    if not start:
        raise SourceError(f"{path}: the file is empty")
    if start != _MAGIC:
        raise SourceError(f"{path}: this is not a Parquet file, despite its name")
    if end != _MAGIC:
        raise SourceError(f"{path}: the Parquet file was cut short; copy or write it again")
