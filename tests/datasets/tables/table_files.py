"""Helpers that write a table and read it back."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.source import SourceOptions
from ssfl.datasets.tables.table import read_table


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path, **options: Any) -> DataSet:
    return read_table(path, SourceOptions(source=str(path), **options))


def csv(tmp_path: Path, content: str | bytes, **options: Any) -> DataSet:
    return read(write(tmp_path / "t.csv", content), **options)


def parquet(tmp_path: Path, columns: dict[str, Any], **options: Any) -> DataSet:
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    return read(tmp_path / "t.parquet", **options)
