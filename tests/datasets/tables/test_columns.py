from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssfl.datasets.errors import SourceError
from ssfl.datasets.memory import empty_array
from ssfl.datasets.tables.cells import Cells, ColumnType
from ssfl.datasets.tables.columns import MAX_LABELS, ColumnChoice, ColumnSurvey, choose
from ssfl.datasets.tables.csv_file import open_csv
from ssfl.datasets.tables.features import make_features
from ssfl.datasets.tables.targets import make_target

PATH = Path("t.csv")


def survey_of(kind: str, batches: list[Cells], *, is_label: bool = False) -> ColumnSurvey:
    survey = ColumnSurvey(PATH, "a", ColumnType(kind, kind), is_label)
    for cells in batches:
        survey.add(cells, np.ones(len(cells), dtype=np.bool_))
    return survey


def numbers(values: Any, missing: Any = None) -> Cells:
    array = np.asarray(values)
    gaps = np.zeros(len(array), np.bool_) if missing is None else np.asarray(missing, np.bool_)
    return Cells(array, gaps)


def words(*texts: str) -> Cells:
    different = tuple(dict.fromkeys(texts))
    return Cells(
        np.array([different.index(text) for text in texts]), np.zeros(len(texts), bool), different
    )


def chosen(tmp_path: Path, header: str, label: str, ignore: tuple[str, ...]) -> ColumnChoice:
    (tmp_path / "t.csv").write_text(f"{header}\n")
    return choose(tmp_path / "t.csv", open_csv(tmp_path / "t.csv").names, label, ignore)


@given(
    values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60),
    offset=st.sampled_from([0.0, 1e6, -1e12]),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
@settings(derandomize=True, max_examples=100, deadline=None)
def test_moments_do_not_depend_on_the_batches(
    values: list[float], offset: float, cuts: list[int]
) -> None:
    array = np.array(values) + offset
    survey = survey_of("number", [numbers(part) for part in np.split(array, sorted(cuts))])
    assert survey.count == len(array)
    scale = max(1.0, float(np.abs(array).max()))
    assert survey.mean == pytest.approx(array.mean(), abs=1e-12 * scale)
    assert survey.deviation == pytest.approx(array.std(), rel=1e-6, abs=1e-9 * scale)
    assert (survey.low, survey.high) == (array.min(), array.max())


def test_the_first_missing_row_is_counted_across_batches() -> None:
    survey = survey_of(
        "number", [numbers([1.0, 2.0]), numbers([0.0, 3.0, 0.0], [True, False, True])]
    )
    assert (survey.missing, survey.first_missing, survey.count, survey.mean) == (2, 3, 3, 2.0)


def test_dropped_rows_do_not_enter_the_mean() -> None:
    survey = ColumnSurvey(PATH, "a", ColumnType("whole", "int64"), is_label=False)
    survey.add(numbers([1, 100, 3]), np.array([True, False, True]))
    assert (survey.mean, survey.high, survey.rows) == (2.0, 3.0, 3)


def test_infinity_is_refused_with_its_row_in_the_file() -> None:
    with pytest.raises(SourceError, match="column a holds infinity in row 4; repair it"):
        survey_of("number", [numbers([1.0, 2.0]), numbers([3.0, -np.inf])])


def test_the_most_frequent_text_is_found_across_batches_with_different_codes() -> None:
    survey = survey_of("text", [words("x", "y"), words("y", "z", "z", "y")])
    assert survey.values == {"x": 1, "y": 3, "z": 2} and survey.most_frequent == "y"


def test_the_inputs_of_a_column_follow_those_of_the_previous_column() -> None:
    surveys = [
        survey_of("text", [words("b", "a", "b")]),
        survey_of("whole", [numbers([1, 2, 3])]),
    ]
    first, second = make_features(surveys, standardize=False)
    assert (first.place, first.width, first.words) == (0, 2, ("a", "b"))
    assert (second.place, second.width) == (2, 1)


def test_a_deviation_too_small_for_doubles_is_refused() -> None:
    survey = survey_of("number", [numbers([1e-300, 2e-300])])
    with pytest.raises(SourceError, match="cannot be standardised"):
        make_features([survey], standardize=True)


def test_too_many_classes_are_refused() -> None:
    survey = survey_of("whole", [numbers(np.arange(MAX_LABELS + 1))], is_label=True)
    with pytest.raises(SourceError, match="more than 10,000 different values: too many"):
        make_target(survey, "class", standardize=True)
    with pytest.raises(SourceError, match="more than 10,000 different values from 0 to 10000"):
        make_target(survey, "auto", standardize=True)
    assert make_target(survey, "number", standardize=True).classes == ()


def test_labels_that_look_like_ids_are_refused() -> None:
    survey = survey_of("text", [words(*(f"u{row}" for row in range(101)))], is_label=True)
    with pytest.raises(
        SourceError, match=r"looks like an id: .* choose another column with --label"
    ):
        make_target(survey, "auto", standardize=True)


@pytest.mark.parametrize("name", ["label", "Target", "CLASS", "y", " outcome"])
def test_usual_names_of_the_label_column_are_recognised(tmp_path: Path, name: str) -> None:
    choice = chosen(tmp_path, f"a,{name},b", "", ())
    assert choice.label == name and choice.features == ("a", "b")


@pytest.mark.parametrize(
    ("label", "ignore", "complaint"),
    [
        (
            "",
            (),
            "predict with --label .*label and y are possible.*columns are: a, label, y, größe",
        ),
        ("", ("label", "y"), "none is called label.*columns are: a, größe"),
        ("lable", (), r"--label lable: there is no such column; did you mean label\?"),
        ("zzz", (), "--label zzz: .*there are: a, label, y, größe"),
        ("y", ("grösse",), r"--ignore grösse: .*did you mean größe\?"),
        ("y", ("y",), "column y cannot be both --label and --ignore"),
        ("y", ("a", "label", "größe"), "no column is left to predict y from"),
    ],
)
def test_invalid_columns_are_refused_with_the_columns_of_the_table(
    tmp_path: Path, label: str, ignore: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(SourceError, match=complaint):
        chosen(tmp_path, "a,label,y,größe", label, ignore)


def test_spaces_around_column_names_may_be_omitted(tmp_path: Path) -> None:
    choice = chosen(tmp_path, "a, b , c", "c", ("b",))
    assert choice.label == " c" and choice.features == ("a",)


def test_an_array_larger_than_the_memory_is_refused_before_allocation() -> None:
    with pytest.raises(SourceError, match=r"t\.csv would take 4,000\.0 TB as an array of "):
        empty_array((10**12, 1000), np.float32, "t.csv")
