import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datasets.tables.table_files import csv, parquet, write
from ssfl.datasets.errors import SourceError
from ssfl.datasets.source import SourceOptions
from ssfl.datasets.tables import csv_file
from ssfl.datasets.tables.table import read_table
from ssfl.method.streams import Stream


def numbered(count: int, cell: str) -> str:
    """Return a table of one column and a label; `cell` may contain {row}."""
    return "a,label\n" + "".join(f"{cell.format(row=row)},{row % 2}\n" for row in range(count))


# Inputs


def test_numbers_flags_and_texts_become_inputs_and_labels_classes(tmp_path: Path) -> None:
    data = csv(
        tmp_path, "size,colour,old,label\n1,red,true,dog\n3,blue,false,cat\n1,red,true,dog\n"
    )
    assert data.name == "t" and data.class_names == ("cat", "dog") and data.num_classes == 2
    assert data.train_x.dtype == np.float32 and data.train_y.dtype == np.int64
    assert data.train_y.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(data.train_x[:, 1:], [[0, 1, 1], [1, 0, 0], [0, 1, 1]])
    np.testing.assert_allclose(data.train_x[:, 0], np.array([-1, 2, -1]) / np.sqrt(2), rtol=1e-6)
    assert data.test_x.shape == (0, 4) and data.test_y.shape == (0,)
    assert "1 column of numbers standardised by the training rows" in data.notes


def test_parquet_and_csv_give_the_same_data_set(tmp_path: Path) -> None:
    columns = {
        "a": [1.5, 2.0, 4.0, -1.0],
        "größe": [3, 2, 9, 2],
        "c": ["ä", "z", "ä", "日本"],
        "flag": [True, False, False, True],
        "label": ["x", "y", "x", "x"],
    }
    rows = "\n".join(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))
    from_csv = csv(tmp_path, ",".join(columns) + "\n" + rows)
    from_parquet = parquet(tmp_path, columns)
    np.testing.assert_array_equal(from_csv.train_x, from_parquet.train_x)
    np.testing.assert_array_equal(from_csv.train_y, from_parquet.train_y)
    assert from_csv.class_names == from_parquet.class_names == ("x", "y")


def test_without_standardisation_numbers_are_unchanged(tmp_path: Path) -> None:
    data = csv(tmp_path, "a,label\n1.5,0\n7,1\n", standardize=False)
    assert data.train_x.tolist() == [[1.5], [7.0]]
    assert not any("standardised" in note for note in data.notes)


def test_large_numbers_are_standardised_before_conversion_to_float32(tmp_path: Path) -> None:
    big = 1_700_000_000_000
    data = csv(tmp_path, f"a,b,label\n{big},1e100,0\n{big + 2},-1e100,1\n")
    np.testing.assert_allclose(data.train_x, [[-1, 1], [1, -1]], rtol=1e-6)


def test_large_integers_that_are_not_standardised_get_a_note(tmp_path: Path) -> None:
    data = csv(tmp_path, "a,label\n20000001,0\n7,1\n", standardize=False)
    assert any("beyond 16,777,216" in note and note.endswith(": a") for note in data.notes)


def test_a_constant_column_is_zero_in_training_and_test_rows(tmp_path: Path) -> None:
    test = write(tmp_path / "test.csv", "a,b,label\n5,2,0\n")
    data = csv(tmp_path, "a,b,label\n0.1,1,0\n0.1,3,1\n0.1,2,1\n", test=test)
    assert data.train_x[:, 0].tolist() == [0, 0, 0] and data.test_x[:, 0].tolist() == [0]
    assert "the same number in every row, so 0 in every sample: a" in data.notes


def test_numbers_that_doubles_cannot_distinguish_get_their_own_note(tmp_path: Path) -> None:
    data = csv(tmp_path, f"a,label\n{2**60},0\n{2**60 + 1},1\n")
    assert data.train_x.tolist() == [[0], [0]]
    assert not any(note.startswith("the same number") for note in data.notes)
    (note,) = (note for note in data.notes if "too large for float64 to distinguish" in note)
    assert note.endswith(": a")


def test_integers_beyond_int64_are_refused_with_their_column(tmp_path: Path) -> None:
    large = pa.array([2**63, 1], pa.uint64())
    with pytest.raises(SourceError, match=r"column a holds an integer beyond .*--ignore a,"):
        parquet(tmp_path, {"a": large, "b": [1, 2], "label": ["x", "y"]})


def test_one_row_of_one_class_is_read(tmp_path: Path) -> None:
    data = csv(tmp_path, "a,colour,label\n5,red,yes\n")
    assert data.train_x.tolist() == [[0, 1]] and data.class_names == ("yes",)


def test_the_type_of_a_column_is_decided_by_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_file, "_BLOCK_BYTES", 256)
    rows = [f"{row % 7},{row % 5},{row % 2}" for row in range(400)]
    rows[399] = "2.5,?,1"
    data = csv(tmp_path, "a,b,label\n" + "\n".join(rows), standardize=False)
    assert data.train_x.shape == (400, 1 + 6) and data.train_x[399].tolist() == [2.5, *[0] * 5, 1]
    assert "column b is read as text: most cells are numbers, but row 400 holds '?'" in data.notes


def test_many_blocks_give_the_mean_and_deviation_of_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_file, "_BLOCK_BYTES", 512)
    values = Stream(0, "table").uniform(1000) * 1e-3 + 1e6
    cells = [repr(float(value)) for value in values]
    data = csv(tmp_path, "a,label\n" + "".join(f"{cell},0\n" for cell in cells))
    expected = (values - values.mean()) / values.std()
    np.testing.assert_allclose(data.train_x[:, 0], expected, atol=1e-5)


def test_progress_names_the_file_and_ends_complete(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", numbered(50, "{row}"))
    seen: list[tuple[str, int, int]] = []
    read_table(path, SourceOptions(source=str(path)), lambda *step: seen.append(step))
    assert ("rows of t.csv surveyed", 50, 50) in seen and seen[-1] == ("rows of t.csv read", 50, 50)
    assert seen[0] == ("bytes of t.csv scanned", path.stat().st_size, path.stat().st_size)


# Targets


def test_numbers_to_predict_are_standardised_by_the_training_rows(tmp_path: Path) -> None:
    test = write(tmp_path / "test.csv", b"a,label\n7,250004\n")
    data = csv(tmp_path, "a,label\n1,250001.5\n2,250003.5\n", test=test)
    assert data.train_y.dtype == np.float32 and data.train_y.tolist() == [-1, 1]
    assert data.test_y.tolist() == [1.5] and data.num_classes == 0
    (note,) = (note for note in data.notes if "is predicted as a number" in note)
    assert "minus 250002.5 and divided by 1:" in note
    constant = csv(tmp_path, "a,label\n1,0.5\n2,0.5\n")
    assert constant.train_y.tolist() == [0, 0]


def test_numbers_to_predict_are_unchanged_without_standardisation(tmp_path: Path) -> None:
    data = csv(tmp_path, "a,label\n1,0.5\n2,2.5\n", standardize=False)
    assert data.train_y.dtype == np.float32 and data.train_y.tolist() == [0.5, 2.5]
    assert data.class_names == () and data.num_classes == 0
    assert any("mean 1.5, standard deviation 1, not scaled" in note for note in data.notes)


def test_large_numbers_to_predict_get_a_note(tmp_path: Path) -> None:
    data = csv(tmp_path, "a,label\n1,250000.5\n2,350000.5\n", standardize=False)
    assert any("reaches 350000: the loss may diverge; divide" in note for note in data.notes)


def test_integer_classes_are_sorted_by_value_and_text_by_code_point(tmp_path: Path) -> None:
    assert csv(tmp_path, "a,label\n1,10\n2,9\n3,-1\n").class_names == ("-1", "9", "10")
    assert csv(tmp_path, "a,label\n1,ä\n2,b\n3,B\n").class_names == ("B", "b", "ä")
    assert csv(tmp_path, "a,label\n1,True\n2,false\n").class_names == ("false", "true")


def test_few_or_repeated_integers_are_classes(tmp_path: Path) -> None:
    for labels in (range(10), [row % 50 for row in range(500)]):
        data = csv(tmp_path, "a,label\n" + "".join(f"0,{label}\n" for label in labels))
        assert data.num_classes == len(set(labels))


@pytest.mark.parametrize(
    "labels",
    [
        [str(label) for label in range(101)],
        [str(label) for label in range(60)],
        [str(18 + row % 72) for row in range(500)],
        ["1.0", "2.0"],
    ],
)
def test_ambiguous_labels_need_a_target(tmp_path: Path, labels: list[str]) -> None:
    text = "a,label\n" + "".join(f"0,{label}\n" for label in labels)
    with pytest.raises(SourceError, match="Use --target class or --target number"):
        csv(tmp_path, text)
    assert csv(tmp_path, text, target="class").num_classes == len(set(labels))
    numbers = csv(tmp_path, text, target="number", standardize=False).train_y
    assert numbers.tolist() == [float(label) for label in labels]


def test_percentages_are_read_as_text_with_a_note(tmp_path: Path) -> None:
    data = csv(tmp_path, "a,label\n" + "5%,0\n20%,1\n" * 5)
    assert data.train_x.shape == (10, 2)
    start = "column a is read as text, one input per value, but looks like numbers"
    assert any(note.startswith(start) for note in data.notes)


def test_labels_that_differ_only_in_spaces_get_a_note(tmp_path: Path) -> None:
    data = csv(tmp_path, "a,label\n1,x\n2,x \n3,y\n")
    assert data.num_classes == 3
    assert "classes that differ only in spaces around their names: 'x', 'x '" in data.notes


def test_text_labels_are_refused_as_numbers(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"--target number: column label holds text, such as 'x'"):
        csv(tmp_path, "a,label\n1,x\n2,y\n", target="number")


# Test tables


def test_a_test_table_may_have_its_columns_in_another_order(tmp_path: Path) -> None:
    test = write(tmp_path / "test.csv", "label,colour,a\ncat,red,3\ndog,blue,0.5\n")
    data = csv(tmp_path, "a,colour,label\n1,red,dog\n2,blue,cat\n", test=test, standardize=False)
    assert data.test_x.tolist() == [[3, 0, 1], [0.5, 1, 0]] and data.test_y.tolist() == [0, 1]


def test_a_column_that_is_text_in_training_is_text_in_the_test_table(tmp_path: Path) -> None:
    test = write(tmp_path / "test.csv", "a,label\n7,0\n")
    data = csv(tmp_path, "a,label\n7,0\nA7,1\n", test=test)
    assert data.test_x.tolist() == [[1, 0]]


def test_an_unknown_text_of_a_test_row_becomes_zeros_with_a_note(tmp_path: Path) -> None:
    test = write(tmp_path / "test.csv", "a,label\ngreen,0\n")
    data = csv(tmp_path, "a,label\nred,0\nblue,1\n", test=test)
    assert data.test_x.tolist() == [[0, 0]]
    assert "1 test row with a text in a that no training row has: all 0" in data.notes


@pytest.mark.parametrize(
    ("test", "complaint"),
    [
        ("a,label\n1,bird\n", "column label holds bird in row 1, which no training row has"),
        ("b,label\n1,cat\n", r"the test table lacks columns of .*t\.csv: a$"),
        ("a,label\nx,cat\n", r"column a holds text, but integers in"),
        ("a,label\n,cat\n", r"test\.csv: cells are missing in 1 column: a \(1, first in row 1\)"),
        ("a,label\n1e300,cat\n", "column a holds a number in row 1 that is too large for float32"),
    ],
)
def test_a_test_table_that_does_not_match_the_training_table_is_refused(
    tmp_path: Path, test: str, complaint: str
) -> None:
    path = write(tmp_path / "test.csv", test)
    with pytest.raises(SourceError, match=complaint):
        csv(tmp_path, "a,label\n1,cat\n2,dog\n", test=path)


# Missing cells

GAPS = "a,b,label\n1,x,0\n,x,1\n3,NA,0\n5,y,\n"


def test_missing_cells_are_refused_with_columns_counts_rows_and_remedies(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        csv(tmp_path, GAPS)
    message = str(caught.value)
    assert "a (1, first in row 2), b (1, first in row 3), label (1, first in row 4)" in message
    assert "--missing drop" in message and "--missing mean" in message and "--ignore a" in message


def test_missing_labels_alone_do_not_suggest_the_mean(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"label \(1, .*--missing drop$"):
        csv(tmp_path, "a,label\n1,x\n2,\n")


def test_rows_with_missing_cells_are_dropped_and_counted(tmp_path: Path) -> None:
    data = csv(tmp_path, GAPS, missing="drop", standardize=False)
    assert data.train_x.tolist() == [[1, 1]] and data.class_names == ("0",)
    assert "3 rows of 4 in t.csv dropped: a missing cell" in data.notes


def test_missing_cells_are_filled_with_the_mean_or_the_most_frequent_text(tmp_path: Path) -> None:
    data = csv(tmp_path, GAPS, missing="mean", standardize=False)
    assert data.train_x.tolist() == [[1, 1], [2, 1], [3, 1]]  # row 4 has no label
    assert "1 row of 4 in t.csv dropped: no label" in data.notes
    assert any(note.startswith("2 missing cells in t.csv filled") for note in data.notes)


def test_test_rows_are_filled_with_the_mean_of_the_training_rows(tmp_path: Path) -> None:
    test = write(tmp_path / "test.csv", "a,label\n,0\n9,1\n")
    data = csv(tmp_path, "a,label\n1,0\n3,1\n", test=test, missing="mean", standardize=False)
    assert data.test_x.tolist() == [[2], [9]]


def test_a_filled_number_is_zero_after_standardisation(tmp_path: Path) -> None:
    data = csv(tmp_path, "a,label\n1,0\n,1\n3,0\n", missing="mean")
    assert data.train_x[:, 0].tolist() == [-1, 0, 1]


def test_nan_and_null_are_missing_in_parquet(tmp_path: Path) -> None:
    columns = {"a": [1.0, float("nan"), None, 4.0], "label": ["x", "y", "x", "y"]}
    with pytest.raises(SourceError, match=r"a \(2, first in row 2\)"):
        parquet(tmp_path, columns)
    assert len(parquet(tmp_path, columns, missing="drop").train_y) == 2


def test_an_empty_column_is_refused_by_name(tmp_path: Path) -> None:
    for missing, complaint in {
        "drop": "none of 2 rows is left .*empty in every row: a$",
        "mean": "column a is empty in every row that is used; leave it out with --ignore a",
    }.items():
        with pytest.raises(SourceError, match=complaint):
            csv(tmp_path, "a,b,label\n,1,0\n,2,1\n", missing=missing)


# Columns that cannot be used


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (numbered(20, "u{row}"), "column a looks like an id: all 20 texts .*--ignore a$"),
        (numbered(500, "u{row}"), "column a looks like an id: .*--ignore a$"),
        (
            "a,label\n" + "".join(f"w{row % 101},0\n" for row in range(300)),
            "column a is text with more than 100 different values; leave it out with --ignore a",
        ),
        (
            "a,label\n" + "".join(f"{'?' if row == 40 else row},0\n" for row in range(300)),
            r"column a is read as text: most cells are numbers, but row 41 holds '\?'; repair it",
        ),
        (
            "a,label\n2024-01-05,1\n2024-02-01,0\n",
            "column a holds dates, not numbers; leave it out",
        ),
        (
            "a,label\n05.01.2020 10:00,1\n06.01.2020 9:30,0\n05.01.2020 10:00,0\n",
            "column a holds dates, such as '05.01.2020 10:00', not numbers; .*"
            "--ignore a, or convert",
        ),
        ("a,label\n1/5/2020,1\n12/31/2020,0\n", "column a holds dates, such as '1/5/2020'"),
        (
            numbered(20, '"{row}.005,5"'),
            r"column a holds texts that look like numbers, such as '0\.005,5'; .*or leave it out",
        ),
        (numbered(20, "{row}%"), "column a holds texts that look like numbers, such as '0%'"),
        ("a,label\n1,1\ninf,0\n", "column a holds infinity in row 2"),
        ("a,label\n1,1\n1e300,0\n", r"column a spans 1 … 1e\+300, which cannot be standardised"),
        ("a,label\n1,2024-01-05\n", "column label holds dates, not numbers; choose another"),
    ],
)
def test_unusable_columns_are_refused_with_advice(
    tmp_path: Path, content: str, complaint: str
) -> None:
    with pytest.raises(SourceError, match=complaint):
        csv(tmp_path, content)


def test_column_names_in_advice_are_quoted_for_a_shell(tmp_path: Path) -> None:
    rows = "".join(f"u{row},{row},0\n" for row in range(20))
    with pytest.raises(SourceError, match=r"--ignore 'full name'$"):
        csv(tmp_path, "full name,b,label\n" + rows)
    with pytest.raises(SourceError, match=r"""--ignore '"name, first"'$"""):
        csv(tmp_path, '"name, first",b,label\n' + rows)


def test_a_number_beyond_float32_is_refused_without_standardisation(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="column a holds a number in row 2 that is too large"):
        csv(tmp_path, "a,label\n1,0\n1e39,1\n", standardize=False)


@pytest.mark.parametrize(
    ("values", "called"),
    [
        ([datetime.datetime(2024, 1, 1)], r"timestamp\[us\]"),
        ([datetime.date(2024, 1, 1)], r"date32\[day\]"),
        ([[1, 2]], "list<"),
        ([{"x": 1}], "struct<"),
        ([b"bytes"], "binary"),
    ],
)
def test_parquet_types_that_are_not_numbers_are_refused_by_name(
    tmp_path: Path, values: list[Any], called: str
) -> None:
    with pytest.raises(SourceError, match=f"column when holds {called}.*--ignore when"):
        parquet(tmp_path, {"when": values, "a": [1], "label": [0]})
    assert parquet(
        tmp_path, {"when": values, "a": [1], "label": [0]}, ignore=("when",)
    ).train_x.size


def test_every_numeric_type_of_parquet_is_read(tmp_path: Path) -> None:
    types = (pa.uint8(), pa.uint16(), pa.int64(), pa.float16(), pa.float32(), pa.decimal128(21, 2))
    columns: dict[str, Any] = {str(type_): pa.array([1, 3]).cast(type_) for type_ in types}
    columns["words"] = pa.array(["x", "y"]).dictionary_encode()
    columns["label"] = pa.array([7, 9]).dictionary_encode()
    data = parquet(tmp_path, columns, standardize=False)
    assert data.train_x.tolist() == [[1] * 6 + [1, 0], [3] * 6 + [0, 1]]
    assert data.class_names == ("7", "9")
