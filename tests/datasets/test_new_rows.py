from pathlib import Path

import numpy as np
import pytest

from ssfl.datasets.errors import SourceError
from ssfl.datasets.new_rows import prepare_rows
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.write import make_shards
from ssfl.datasets.source import SourceOptions
from ssfl.datasets.tables.table import read_table

ROWS = [
    {
        "age": str(20 + 3 * n),
        "sex": "fm"[n % 2],
        "smokes": ("true", "false")[n % 3 == 0],
        "one": "7",
    }
    for n in range(12)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with shards of a small table."""
    lines = [",".join([*ROWS[0], "ill"])]
    lines += [",".join([*row.values(), "yn"[n % 2]]) for n, row in enumerate(ROWS)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines))
    data = read_table(path, SourceOptions(source=str(path), label="ill"))
    make_shards(tmp_path / "shards", data, Cut(clients=2, partition="iid"))
    return tmp_path / "shards"


def test_new_rows_are_prepared_like_the_training_rows(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    trained = read_table(path, SourceOptions(source=str(path), label="ill")).train_x
    assert prepare_rows(folder, ROWS).tobytes() == trained.tobytes()


def test_missing_cells_are_filled_and_unknown_texts_become_zeros(folder: Path) -> None:
    filled, typed = prepare_rows(folder, [{"sex": "x"}, {"age": 36.5, "smokes": True, "sex": "f"}])
    assert filled[0] == 0 and filled[1:3].tolist() == [0, 0]
    assert typed.tolist() == [0, 1, 0, 1, 0]
    assert prepare_rows(folder, []).shape == (0, 5)


def test_invalid_rows_and_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="column age of a new row holds 'old', not a number"):
        prepare_rows(folder, [{"age": "old"}])
    with pytest.raises(SourceError, match="does not say how a table was prepared"):
        prepare_rows(tmp_path, [{}])
    (folder / "shards.json").write_text("[]")
    with pytest.raises(SourceError, match="does not say how a table was prepared"):
        prepare_rows(folder, [{}])


def test_integers_that_all_differ_get_a_note(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids, ages = rng.permutation(1000)[:40], rng.integers(20, 40, 40)
    lines = [
        "id,age,ill",
        *(f"{a},{b},{n % 2}" for n, (a, b) in enumerate(zip(ids, ages, strict=True))),
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines))
    notes = read_table(path, SourceOptions(source=str(path), label="ill")).notes
    (note,) = (note for note in notes if "different in every row" in note)
    assert "different in every row: id; if these are ids, leave them out with --ignore id" in note
