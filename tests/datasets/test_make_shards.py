from pathlib import Path

import numpy as np
import pytest

from ssfl.datasets.digits import digits
from ssfl.datasets.errors import ShardError
from ssfl.datasets.make_shards import make_shards
from ssfl.datasets.shards import Shard, read_shard


def test_the_shards_together_are_the_digits_once(tmp_path: Path) -> None:
    summary = make_shards(tmp_path / "shards", clients=8, seed=1)
    parts = [read_shard(path) for path in summary.paths]
    assert [path.name for path in summary.paths] == [f"shard_{i:02d}.npz" for i in range(8)]
    whole = digits()
    for name in ("train_x", "test_x"):
        pooled = np.concatenate([getattr(part, name).reshape(-1, 64) for part in parts])
        expected = getattr(whole, name).reshape(-1, 64)
        assert sorted(row.tobytes() for row in pooled) == sorted(row.tobytes() for row in expected)
    assert {part.num_samples for part in parts} == {180, 181}


def test_the_summary_counts_what_the_files_hold(tmp_path: Path, shard: Shard) -> None:
    summary = make_shards(tmp_path, clients=3, alpha=0.1, data=shard)
    for client, path in enumerate(summary.paths):
        part = read_shard(path)
        train, test = (np.bincount(y, minlength=4) for y in (part.train_y, part.test_y))
        np.testing.assert_array_equal(summary.train_counts[client], train)
        np.testing.assert_array_equal(summary.test_counts[client], test)


def test_a_hundred_and_one_shards_get_three_digits(tmp_path: Path, shard: Shard) -> None:
    many = Shard(
        np.repeat(shard.train_x, 3, axis=0),
        np.repeat(shard.train_y, 3),
        shard.test_x,
        shard.test_y,
        shard.num_classes,
    )
    summary = make_shards(tmp_path, clients=101, kind="iid", data=many)
    assert (summary.paths[0].name, summary.paths[-1].name) == ("shard_000.npz", "shard_100.npz")


def test_other_shards_are_not_overwritten_unless_told(tmp_path: Path, shard: Shard) -> None:
    before = [path.read_bytes() for path in make_shards(tmp_path, clients=3, data=shard).paths]
    with pytest.raises(ShardError, match="already holds 3 shards; add --overwrite"):
        make_shards(tmp_path, clients=2, data=shard)
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == before


def test_overwriting_leaves_no_shard_of_the_old_partition(tmp_path: Path, shard: Shard) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    make_shards(tmp_path, clients=3, data=shard)
    make_shards(tmp_path, clients=2, data=shard, overwrite=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["notes.txt", "shard_00.npz", "shard_01.npz"]


def test_an_impossible_partition_removes_nothing(tmp_path: Path, shard: Shard) -> None:
    make_shards(tmp_path, clients=3, data=shard)
    with pytest.raises(ShardError, match="alpha"):
        make_shards(tmp_path, clients=3, alpha=-1, data=shard, overwrite=True)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_cannot_be_made_is_a_shard_error(tmp_path: Path, shard: Shard) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ShardError, match="cannot write shards into"):
        make_shards(tmp_path / "file", clients=2, data=shard)
