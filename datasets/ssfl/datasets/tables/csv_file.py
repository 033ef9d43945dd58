"""CSV files as tables, streamed: comma, tab or semicolon, plain or gzipped, UTF-8.

All rows are scanned before the type of a column is decided, so that a "1.5" or a "?" in a late row
is taken into account. Empty cells and pyarrow's null words (NA, null, NaN, …) are missing, also in
text columns. In files with semicolons, numbers may have a decimal comma, as spreadsheets write in
many countries. Next to such numbers, 1.350 is ambiguous (thousands or fraction) and is refused.
"""

import csv
import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pyarrow_csv

from ssfl.datasets.data_set import Progress
from ssfl.datasets.errors import SourceError
from ssfl.datasets.tables.arrow_cells import reading, to_cells
from ssfl.datasets.tables.cells import Cells, ColumnType, TableContents, ignore_flag
from ssfl.datasets.tables.csv_head import DELIMITERS, is_number, open_bytes, read_head
from ssfl.datasets.wording import format_bytes

_BLOCK_BYTES = 4 << 20
_FLAGS = ("true", "True", "TRUE", "false", "False", "FALSE")
_NO_ROWS = "the file has a header but no rows"
_FEW = 0.2  # up to this share of cells that are not numbers may be mistakes
_COMMA = "numbers with a decimal comma"
_THOUSANDS = r"^\s*[+-]?[1-9][0-9]{0,2}\.[0-9]{3}\s*$"  # such as 1.350

# For the kind of the cells so far, the kinds that the whole column may have.
_KINDS = ("whole", "number", _COMMA, "flag", "dates", "text")
_NEXT = {
    "nothing": _KINDS,
    "whole": ("whole", "number", _COMMA, "text"),
    "number": ("number", _COMMA, "text"),
    _COMMA: (_COMMA, "text"),
    "flag": ("flag", "text"),
    "dates": ("dates", "text"),
    "text": ("text",),
}
_TYPE_NAMES = {"whole": "integers", "number": "numbers", "flag": "true and false"}
_ARROW = {"whole": pa.int64(), "number": pa.float64(), "flag": pa.bool_()}


@dataclass(frozen=True, eq=False)
class CsvTable:
    """A CSV file; rows come in the order of the file."""

    path: Path
    names: tuple[str, ...]
    notes: tuple[str, ...]
    delimiter: str
    width: int  # number of columns, also those that are ignored

    def contents(
        self, columns: Collection[str], as_text: Collection[str], on_progress: Progress | None
    ) -> TableContents:
        """Return the narrowest kind that fits all cells of each column."""
        found = {name: "text" if name in as_text else "nothing" for name in columns}
        why = dict.fromkeys(columns, "")
        thousands: dict[str, str] = {}  # by column, the first cell such as 1.350 and its row
        row = 0
        for batch in self._stream(dict.fromkeys(columns, pa.string()), on_progress):
            for name, kind in found.items():
                column = batch.column(name)
                found[name] = self._kind(column, kind)
                if found[name] == "text" and kind != "text":
                    why[name] = _first_non_number(column, row)
                if found[name] in ("number", _COMMA) and name not in thousands:
                    thousands |= self._thousands(name, column, row)
            row += batch.num_rows
        if not row:
            raise SourceError(f"{self.path}: {_NO_ROWS}")
        self._refuse_thousands(found, thousands)
        types = {name: _column_type(kind, why[name]) for name, kind in found.items()}
        return TableContents(types, row)

    def _thousands(self, name: str, column: Any, rows_before: int) -> dict[str, str]:
        """Return the first cell such as 1.350, if the file may have decimal commas."""
        if self.delimiter != ";":
            return {}
        place = pc.index(pc.match_substring_regex(column, _THOUSANDS), True).as_py()
        return {} if place < 0 else {name: f"{column[place]} in row {rows_before + place + 1}"}

    def _refuse_thousands(self, found: dict[str, str], thousands: dict[str, str]) -> None:
        with_comma = [name for name, kind in found.items() if kind == _COMMA]
        for name, cell in thousands.items():
            if with_comma and found[name] in ("number", _COMMA):
                raise SourceError(
                    f"{self.path}: column {name} holds {cell}: is the point a thousands separator? "
                    f"Column {with_comma[0]} has decimal commas. Write {name} with a decimal comma "
                    f"and no thousands separator, or leave it out with {ignore_flag(name)}"
                )

    def batches(self, types: dict[str, ColumnType]) -> Iterator[dict[str, Cells]]:
        """Yield the columns, a block of the file at a time."""
        arrow = {
            name: pa.string() if type_.type_name == _COMMA else _ARROW.get(type_.kind, pa.string())
            for name, type_ in types.items()
        }
        for batch in self._stream(arrow):
            yield {name: _cells(batch.column(name), type_) for name, type_ in types.items()}

    def _stream(self, types: dict[str, Any], on_progress: Progress | None = None) -> Iterator[Any]:
        """Yield pyarrow's batches of the given columns."""
        convert = pyarrow_csv.ConvertOptions(
            column_types=types, include_columns=list(types), strings_can_be_null=True
        )
        parse = pyarrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        read = pyarrow_csv.ReadOptions(block_size=_BLOCK_BYTES)
        with reading(self.path):
            try:
                with pa.OSFile(str(self.path)) as file:
                    is_gzip = self.path.name.lower().endswith(".gz")
                    text = pa.CompressedInputStream(file, "gzip") if is_gzip else file
                    for batch in pyarrow_csv.open_csv(text, read, parse, convert):
                        if on_progress:
                            what = f"bytes of {self.path.name} scanned"
                            on_progress(what, file.tell(), file.size())
                        yield batch
            except (pa.ArrowInvalid, UnicodeError) as error:
                reason = self._explain_parse_error(str(error))
                if reason:
                    raise SourceError(f"{self.path}: {reason}") from error
                raise

    def _kind(self, column: Any, kind: str) -> str:
        """Return the first kind that fits these cells, given the kind of the rows before."""
        if kind == "text" or column.null_count == len(column):
            return kind
        return next(other for other in _NEXT[kind] if _fits(column, other, self.delimiter))

    def _explain_parse_error(self, message: str) -> str:
        """Return a message for a parse error of pyarrow, with the line; '' if it is unknown."""
        if "straddl" in message:
            return f"a row is longer than {format_bytes(_BLOCK_BYTES)}; is its first quote closed?"
        if "Empty CSV" in message:
            return _NO_ROWS
        if "UTF8" in message or "utf-8" in message:
            line = _first_line_not_utf8(self.path)
            return f"line {line} is not UTF-8 text; save the file as UTF-8 (in Excel: CSV UTF-8)"
        if "Expected" in message and "columns" in message:
            return self._explain_ragged_row()
        return ""

    def _explain_ragged_row(self) -> str:
        """Return a message naming the first row whose number of cells differs from the header."""
        raw = open_bytes(self.path)
        with io.TextIOWrapper(raw, "utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(file, delimiter=self.delimiter)
            try:
                for cells in reader:
                    if cells and len(cells) != self.width:
                        return (
                            f"the row that ends in line {reader.line_num} does not fit the header: "
                            f"cells {len(cells)}, columns {self.width}; repair it, close open "
                            f"quotes, or put quotes around cells that hold a "
                            f"{DELIMITERS[self.delimiter]}"
                        )
            except csv.Error as error:
                return f"line {reader.line_num} cannot be read ({error}); is a quote left open?"
        return f"the number of cells of a row differs from the {self.width} columns of the header"


def open_csv(path: Path) -> CsvTable:
    """Return the table; raise SourceError if its header is invalid."""
    with reading(path):
        columns, delimiter, notes = read_head(path)
    names = tuple(name for name in columns if name)
    if names != columns:
        notes += ("first column ignored: it has no name, like the index of a pandas table",)
    return CsvTable(path, names, notes, delimiter, len(columns))


def _fits(column: Any, kind: str, delimiter: str) -> bool:
    """Return True if every cell that is not missing can be read as this kind."""
    try:
        if kind == "flag":
            return bool(pc.all(pc.is_in(column.drop_null(), pa.array(_FLAGS))).as_py())
        if kind == "dates":
            column.cast(pa.timestamp("us"))
        elif kind == _COMMA:
            if delimiter != ";":
                return False
            _with_point(column).cast(pa.float64())
        elif kind != "text":
            _cast_trimmed(column, _ARROW[kind])
    except pa.ArrowInvalid:
        return False
    return True


def _cast_trimmed(column: Any, arrow: Any) -> Any:
    """Cast; strip spaces around numbers only if needed, since that is slow."""
    try:
        return column.cast(arrow)
    except pa.ArrowInvalid:
        return pc.utf8_trim_whitespace(column).cast(arrow)


def _with_point(column: Any) -> Any:
    return pc.replace_substring(pc.utf8_trim_whitespace(column), ",", ".")


def _first_non_number(column: Any, rows_before: int) -> str:
    """Return a sentence about the first cell that is not a number; '' if there are many."""
    cells = column.to_pylist()
    odd = [row for row, cell in enumerate(cells) if cell and not is_number(cell.replace(",", "."))]
    if not odd or len(odd) > _FEW * len(cells):
        return ""
    return f"most cells are numbers, but row {rows_before + odd[0] + 1} holds {cells[odd[0]]!r:.40}"


def _column_type(kind: str, why: str) -> ColumnType:
    if kind == _COMMA:
        return ColumnType("number", _COMMA)
    return ColumnType("other" if kind == "dates" else kind, _TYPE_NAMES.get(kind, kind), why)


def _cells(column: Any, type_: ColumnType) -> Cells:
    return to_cells(_with_point(column) if type_.type_name == _COMMA else column, type_.kind)


def _first_line_not_utf8(path: Path) -> int:
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1
