"""Read the head of a CSV file: its actual format, delimiter and column names."""

import codecs
import csv
import gzip
import io
import zlib
from pathlib import Path
from typing import IO

from ssfl.datasets.errors import SourceError
from ssfl.datasets.tables.cells import check_names

_HEAD_BYTES = 1 << 20  # longer than any header
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}

# Other formats that often have a wrong extension, by their first bytes, with advice.
_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive or an Excel workbook (.xlsx); unpack it, or save it as CSV UTF-8",
    b"\xd0\xcf\x11\xe0": "an Excel workbook (.xls); save it as CSV UTF-8",
    b"\x1f\x8b": "gzipped; rename it to .csv.gz",
    b"PAR1": "a Parquet file; rename it to .parquet",
    b"\x93NUMPY": "a numpy array; save it as .npz with numpy.savez",
    codecs.BOM_UTF16_LE: "UTF-16 text; save it as UTF-8 (in Excel: CSV UTF-8)",
    codecs.BOM_UTF16_BE: "UTF-16 text; save it as UTF-8 (in Excel: CSV UTF-8)",
}


def read_head(path: Path) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Return the column names, the delimiter and notes; raise SourceError if it is not CSV."""
    text = _text(path, _first_bytes(path))
    usual = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    by_delimiter = {mark: _header(path, text, mark) for mark in (usual, *DELIMITERS)}
    delimiter = usual
    if len(by_delimiter[usual]) == 1:
        delimiter = max(by_delimiter, key=lambda mark: len(by_delimiter[mark]))
    names = by_delimiter[delimiter]
    if len(names) == 1:
        raise SourceError(
            f"{path}: there is only one column, {names[0]!r}; a table needs the column to predict "
            f"and at least one other. Supported delimiters: {', '.join(DELIMITERS.values())}"
        )
    _check_header(path, names)
    note = f"delimiter of {path.name}: {DELIMITERS[delimiter]}"
    return names, delimiter, (note,) if delimiter != usual else ()


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file that is gzipped if its name ends in .gz."""
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]  # close enough to IO
    return path.open("rb")


def _first_bytes(path: Path) -> bytes:
    try:
        with open_bytes(path) as file:
            return file.read(_HEAD_BYTES)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SourceError(f"{path}: this is not a complete gzip file: {error}") from error


def _text(path: Path, head: bytes) -> str:
    if not head.strip():
        raise SourceError(f"{path}: the file is empty")
    for start, actual in _OTHER_FORMATS.items():
        if head.startswith(start):
            raise SourceError(f"{path}: this is not CSV but {actual}")
    if b"\0" in head:
        raise SourceError(f"{path}: this is not CSV: it holds zero bytes, as binary files do")
    try:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        return decoder.decode(head)  # not final, because the last character may be incomplete
    except UnicodeDecodeError as error:
        line = head[: error.start].count(b"\n") + 1
        raise SourceError(
            f"{path}: line {line} is not UTF-8 text; save the file as UTF-8 (in Excel: CSV UTF-8)"
        ) from error


def _header(path: Path, text: str, delimiter: str) -> tuple[str, ...]:
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        return next((tuple(row) for row in rows if row), ("",))
    except csv.Error as error:
        raise SourceError(f"{path}: the header cannot be read: {error}") from error


def _check_header(path: Path, names: tuple[str, ...]) -> None:
    if all(is_number(name) for name in names):
        raise SourceError(
            f"{path}: the first row holds numbers ({', '.join(names[:3])}, …), not column names; "
            "add a first row with names"
        )
    if "" in names[1:]:
        place = names.index("", 1) + 1
        raise SourceError(f"{path}: column {place} has no name; name it in the first row")
    check_names(path, names)


def is_number(text: str) -> bool:
    """Return True if a cell would be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
