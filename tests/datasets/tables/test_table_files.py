import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets.tables.table_files import csv, parquet, read, write
from ssfl.datasets.errors import SourceError
from ssfl.datasets.source import SourceOptions, read_source
from ssfl.method.streams import Stream


def test_tabs_gzip_and_upper_case_extensions_are_read(tmp_path: Path) -> None:
    tabs = write(tmp_path / "t.TSV", "a\tlabel\n1\tx\n")
    packed = write(tmp_path / "t.csv.gz", gzip.compress(b"a,label\n1,x\n", mtime=0))
    assert read(tabs).class_names == read(packed).class_names == ("x",)
    assert read(packed).name == "t"


def test_semicolons_with_decimal_commas_are_read_with_a_note(tmp_path: Path) -> None:
    data = csv(tmp_path, "a;b;label\n1,5;2.5;x\n2;3;y\n", standardize=False)
    assert data.train_x.tolist() == [[1.5, 2.5], [2, 3]]
    assert "delimiter of t.csv: semicolon" in data.notes


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("-1,34;769;b\n0,99;1.350;a\n", r"column betrag holds 1\.350 in row 2: .*Column x has"),
        ("1;1.350;b\n2;1,5;a\n", r"column betrag holds 1\.350 in row 1: .*Column betrag has"),
    ],
)
def test_possible_thousands_separators_next_to_decimal_commas_are_refused(
    tmp_path: Path, rows: str, complaint: str
) -> None:
    with pytest.raises(SourceError, match=complaint + r".*--ignore betrag$"):
        csv(tmp_path, "x;betrag;label\n" + rows)


def test_points_are_decimal_if_no_column_has_a_decimal_comma(tmp_path: Path) -> None:
    data = csv(tmp_path, "a;b;label\n1.250;1;x\n2;0.125;y\n", standardize=False)
    assert data.train_x.tolist() == [[1.25, 1], [2, 0.125]]


def test_a_byte_order_mark_quoted_newlines_and_spaces_are_accepted(tmp_path: Path) -> None:
    data = csv(tmp_path, '\ufeffa , words,label\r\n 1 ,"x\r\ny",0\r\n2.5,z,1', standardize=False)
    assert data.train_x.tolist() == [[1, 1, 0], [2.5, 0, 1]]


def test_a_pandas_index_is_ignored_with_a_note(tmp_path: Path) -> None:
    data = csv(tmp_path, ",a,label\n0,1,x\n1,2,y\n")
    assert data.train_x.shape == (2, 1) and any("no name" in note for note in data.notes)
    data = parquet(tmp_path, {"a": [1], "label": ["x"], "__index_level_0__": [5]})
    assert data.train_x.shape == (1, 1) and any("index" in note for note in data.notes)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("t.csv", b"", "the file is empty$"),
        ("t.csv", b" \n\n", "the file is empty$"),
        ("t.csv", b"a,label", "a header but no rows$"),
        ("t.csv", b"a,label\n", "a header but no rows$"),
        ("t.csv", b"a,a,label\n1,2,3\n", "more than one column is called a; rename"),
        ("t.csv", b"a,label\n1,0\n1,2,3\n", r"ends in line 3 does not fit .* cells 3, columns 2"),
        ("t.csv", b"a,label\n1\n", r"ends in line 2 does not fit .* cells 1, columns 2"),
        ("t.csv", b'a,label\n"1,0\n2,1\n', "close open quotes"),
        ("t.csv", b"only\n1\n", "only one column, 'only'; .*comma, semicolon, tab"),
        ("t.csv", b"1,2.5\n3,4\n", r"the first row holds numbers \(1, 2.5, …\)"),
        ("t.csv", b"a,,label\n1,2,3\n", "column 2 has no name"),
        ("t.csv", b"a,label\n1,x\n2,gr\xfcn\n", "line 3 is not UTF-8 text; save"),
        ("t.csv", "a,label\n1,2\n".encode("utf-16"), "UTF-16 text; save it as UTF-8"),
        ("t.csv", b"PK\x03\x04\x14\x00", r"not CSV but a zip archive or an Excel workbook"),
        ("t.csv", b"a,label\n\x00\x01", "zero bytes"),
        ("t.csv", gzip.compress(b"a,label\n1,2\n", mtime=0), r"gzipped; rename it to \.csv\.gz"),
        ("t.csv.gz", b"a,label\n1,2\n", "not a complete gzip file"),
        (
            "t.csv.gz",
            gzip.compress(b"a,label\n1,2\n" * 999, mtime=0)[:-9],
            "not a complete gzip file",
        ),
        ("t.parquet", b"", "the file is empty$"),
        ("t.parquet", b"a,label\n1,2\n", "not a Parquet file, despite its name"),
        ("t.parquet", b"PAR1....", "was cut short"),
        ("t.parquet", b"PAR1\xff\xff\xff\x7fPAR1", "the file cannot be read: "),
        ("t.xlsx", b"PK", r"a table ends in \.csv"),
    ],
)
def test_an_invalid_table_is_refused_with_its_path_and_the_reason(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(SourceError, match=complaint) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_bytes_that_are_not_utf8_are_reported_by_line(tmp_path: Path) -> None:
    rows = b"a,label\n" + b"1,x\n" * 300_000 + b"1,\xff\n"
    with pytest.raises(SourceError, match="line 300002 is not UTF-8 text"):
        csv(tmp_path, rows)


def test_an_open_quote_in_a_large_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="quote"):
        csv(tmp_path, 'a,label\n"1,0\n' + "2,1\n" * 3_000_000)


def test_a_gzip_file_truncated_after_its_head_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{value},1\n" for value in Stream(0, "gzip").uniform(100_000))
    packed = gzip.compress(b"a,label\n" + rows.encode(), compresslevel=1)
    path = write(tmp_path / "t.csv.gz", packed[: len(packed) * 9 // 10])
    with pytest.raises(SourceError, match=r"t\.csv\.gz: "):
        read(path)


def test_a_damaged_parquet_file_raises_no_other_error_than_source_error(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": list(range(500)), "label": ["x", "y"] * 250}), path)
    whole = path.read_bytes()
    refused = 0
    for place in range(4, len(whole) - 4, 13):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        try:
            read(path)  # a changed byte may be part of a number
        except SourceError as error:
            assert str(error).startswith(str(path))
            refused += 1
    assert refused


def test_folders_missing_files_and_empty_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="this is a folder, not a table"):
        read(tmp_path)
    with pytest.raises(SourceError, match="there is no such file"):
        read(tmp_path / "absent.csv")
    with pytest.raises(SourceError, match="the table has 2 columns but no rows"):
        parquet(tmp_path, {"a": pa.array([], pa.int64()), "label": pa.array([], pa.int64())})


@contextmanager
def without_root() -> Iterator[None]:
    """Drop root privileges, because root may read every file."""
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_file_without_read_permission_is_refused(tmp_path: Path, name: str) -> None:
    parquet(tmp_path, {"a": [1], "label": [2]})  # imports the readers as root
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = write(Path(folder) / name, b"a,label\n1,2\n")
        path.chmod(0)
        with without_root(), pytest.raises(SourceError, match="no permission"):
            read(path)


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ssfl.datasets.tables.table")
    monkeypatch.delitem(sys.modules, "ssfl.datasets.tables.csv_file")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path / "t.csv", "a,label\n1,2\n")
    with pytest.raises(SourceError, match=r"pyarrow: pip install 'ssfl\[data\]'"):
        read_source(SourceOptions(source=str(path)))
