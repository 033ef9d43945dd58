"""Tables (CSV or Parquet) as data sets: one column to predict, the others as inputs.

The file is read three times in batches of rows: to find the types of the columns (CSV only), to
survey them, and to write the inputs into one array. Reading needs little more memory than the
result. Rows are numbered from 1, without the header.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.datasets.data_set import Array, DataSet, Progress
from ssfl.datasets.errors import SourceError
from ssfl.datasets.memory import empty_array
from ssfl.datasets.source import SourceOptions
from ssfl.datasets.tables.cells import NUMBERS, Cells, TableContents, ignore_flag
from ssfl.datasets.tables.columns import ColumnChoice, ColumnSurvey, check_types, choose
from ssfl.datasets.tables.csv_file import CsvTable, open_csv
from ssfl.datasets.tables.features import Feature, feature_notes, make_features
from ssfl.datasets.tables.parquet_file import ParquetTable, open_parquet
from ssfl.datasets.tables.targets import Target, make_target, target_notes
from ssfl.datasets.wording import join_names, plural

Table = CsvTable | ParquetTable
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Part:
    """The training table or the test table, surveyed."""

    table: Table
    contents: TableContents
    choice: ColumnChoice
    missing: str  # handling of missing cells
    surveys: dict[str, ColumnSurvey]
    rows: int  # without dropped rows
    on_progress: Progress | None


def read_table(path: Path, options: SourceOptions, on_progress: Progress | None = None) -> DataSet:
    """Return the table as a data set; raise SourceError if it cannot be used."""
    table = _open(path)
    choice = choose(table.path, table.names, options.label, options.ignore)
    contents = table.contents(choice.columns, (), on_progress)
    train = _survey(table, choice, contents, options.missing, on_progress)
    label = train.surveys[choice.label]
    target = make_target(label, options.target, standardize=options.standardize)
    surveys = [train.surveys[name] for name in choice.features]
    features = make_features(surveys, options.standardize)
    train_x, train_y, _ = _fill(train, features, target)
    notes = [*table.notes, *_row_notes(train)]
    notes += feature_notes(surveys, features, options.standardize) + target_notes(label, target)
    if options.test is None:
        test_x, test_y = train_x[:0], train_y[:0]
    else:
        test = _open_test(options.test, train, options.missing, on_progress)
        test_x, test_y, unknown = _fill(test, features, target)
        notes += [*test.table.notes, *_row_notes(test)]
        notes += [
            f"{plural(count, 'test row')} with a text in {name} that no training row has: all 0"
            for name, count in unknown.items()
        ]
    name = path.name.split(".")[0] or path.name
    return DataSet(
        name,
        train_x,
        train_y,
        test_x,
        test_y,
        target.class_names,
        tuple(notes),
        tuple(feature.to_json() for feature in features),
    )


def _open(path: Path) -> Table:
    if path.is_dir():
        raise SourceError(f"{path}: this is a folder, not a table")
    if not path.is_file():
        raise SourceError(f"{path}: there is no such file")
    name = path.name.lower()
    if name.endswith(".parquet"):
        return open_parquet(path)
    if name.endswith((".csv", ".tsv", ".csv.gz", ".tsv.gz")):
        return open_csv(path)
    raise SourceError(f"{path}: a table ends in .csv, .tsv, .csv.gz, .tsv.gz or .parquet")


def _open_test(path: Path, train: _Part, missing: str, on_progress: Progress | None) -> _Part:
    """Return the test table, surveyed, with the columns and types of the training table."""
    table, choice = _open(path), train.choice
    lacking = [name for name in choice.columns if name not in table.names]
    if lacking:
        raise SourceError(
            f"{path}: the test table lacks columns of {train.table.path}: {join_names(lacking)}"
        )
    expected = train.contents.types
    as_text = [name for name, type_ in expected.items() if type_.kind == "text"]
    contents = table.contents(choice.columns, as_text, on_progress)
    for name, type_ in contents.types.items():
        kinds = (type_.kind, expected[name].kind)
        if kinds[0] not in (kinds[1], "nothing") and not set(kinds) <= set(NUMBERS):
            why = f" ({type_.why})" if type_.why else ""
            raise SourceError(
                f"{path}: column {name} holds {type_.type_name}{why}, "
                f"but {expected[name].type_name} in {train.table.path}"
            )
    return _survey(table, choice, contents, missing, on_progress)


def _survey(
    table: Table,
    choice: ColumnChoice,
    contents: TableContents,
    missing: str,
    on_progress: Progress | None,
) -> _Part:
    """Return the surveyed table; raise SourceError if cells are missing and must not be."""
    check_types(table.path, contents.types, choice.label)
    surveys = {
        name: ColumnSurvey(table.path, name, type_, name == choice.label)
        for name, type_ in contents.types.items()
    }
    kept_rows = done = 0
    for batch in table.batches(contents.types):
        kept = _kept(batch, choice, missing)
        for name, cells in batch.items():
            surveys[name].add(cells, kept)
        kept_rows += int(kept.sum())
        done += len(kept)
        if on_progress:
            on_progress(f"rows of {table.path.name} surveyed", done, contents.rows)
    part = _Part(table, contents, choice, missing, surveys, kept_rows, on_progress)
    _check_missing(part)
    return part


def _kept(batch: dict[str, Cells], choice: ColumnChoice, missing: str) -> Mask:
    """Return a mask of the rows to use: with a label, and complete if `missing` is drop."""
    kept = ~batch[choice.label].missing
    if missing == "drop":
        for cells in batch.values():
            kept &= ~cells.missing
    return kept


def _check_missing(part: _Part) -> None:
    path = part.table.path
    gaps = [survey for survey in part.surveys.values() if survey.missing]
    if gaps and part.missing == "refuse":
        columns = [
            f"{survey.name} ({survey.missing:,}, first in row {survey.first_missing})"
            for survey in gaps
        ]
        inputs = [survey for survey in gaps if not survey.is_label]
        others = ""
        if inputs:
            worst = max(inputs, key=lambda survey: survey.missing)
            others = (
                ", fill in the mean with --missing mean, "
                f"or leave columns out with {ignore_flag(worst.name)}"
            )
        raise SourceError(
            f"{path}: cells are missing in {plural(len(gaps), 'column')}: {join_names(columns)}. "
            f"Drop these rows with --missing drop{others}"
        )
    if not part.rows:
        empty = [survey.name for survey in gaps if survey.missing == survey.rows]
        hint = f"; empty in every row: {join_names(empty)}" if empty else ""
        raise SourceError(
            f"{path}: none of {part.contents.rows:,} rows is left when incomplete rows are "
            f"dropped{hint}"
        )


def _fill(
    part: _Part, features: tuple[Feature, ...], target: Target
) -> tuple[Array, Array, dict[str, int]]:
    """Return inputs, targets, and the number of unknown texts per column."""
    width = sum(feature.width for feature in features)
    x = empty_array((part.rows, width), np.float32, str(part.table.path))
    y = empty_array((part.rows,), target.dtype, str(part.table.path))
    unknown: dict[str, int] = {}
    start = done = 0
    for batch in part.table.batches(part.contents.types):
        kept = _kept(batch, part.choice, part.missing)
        rows = np.flatnonzero(kept) + done + 1
        stop = start + len(rows)
        for feature in features:
            unusable = feature.write(batch[feature.name].select(kept), x[start:stop])
            if unusable.any() and feature.kind != "text":
                raise part.surveys[feature.name].error(
                    f"holds a number in row {rows[unusable][0]} that is too large for float32; "
                    f"repair it, or leave the column out with {ignore_flag(feature.name)}"
                )
            if unusable.any():
                unknown[feature.name] = unknown.get(feature.name, 0) + int(unusable.sum())
        y[start:stop] = target.encode(part.table.path, batch[target.name].select(kept), rows)
        start, done = stop, done + len(kept)
        if part.on_progress:
            part.on_progress(f"rows of {part.table.path.name} read", done, part.contents.rows)
    return x, y, unknown


def _row_notes(part: _Part) -> list[str]:
    name, dropped = part.table.path.name, part.contents.rows - part.rows
    notes = []
    if dropped:
        lost = "a missing cell" if part.missing == "drop" else f"no {part.choice.label}"
        notes.append(
            f"{plural(dropped, 'row')} of {part.contents.rows:,} in {name} dropped: {lost}"
        )
    filled = [part.surveys[feature] for feature in part.choice.features]
    cells = sum(survey.missing for survey in filled)
    if part.missing == "mean" and cells:
        notes.append(
            f"{plural(cells, 'missing cell')} in {name} filled with the training mean or the most "
            f"frequent text: {join_names([survey.name for survey in filled if survey.missing])}"
        )
    return notes
