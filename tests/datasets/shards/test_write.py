import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import PartitionError, ShardError
from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.shard_file import find_shard, read_shard
from ssfl.datasets.shards.write import make_shards
from ssfl.method.errors import SettingsError
from ssfl.method.streams import Stream

PARTS = ("train", "val", "test")


def some_data(samples: int = 60, test: int = 20, classes: int = 4) -> DataSet:
    """Return a data set of distinct samples, so that each can be identified."""
    y = (Stream(0, "labels").uniform(samples + test) * classes).astype(np.int64)
    x = np.arange(2 * len(y), dtype=np.float32).reshape(-1, 2)
    names = tuple(f"class {label}" for label in range(classes))
    return DataSet("some", x[:samples], y[:samples], x[samples:], y[samples:], names)


def some_numbers(samples: int = 200) -> DataSet:
    y = Stream(0, "targets").uniform(samples).astype(np.float32)
    x = np.arange(2 * samples, dtype=np.float32).reshape(-1, 2)
    return DataSet("numbers", x, y, x[:0], y[:0])


def with_one_target(data: DataSet) -> DataSet:
    """Return the data set with the same target for all training samples."""
    return replace(data, train_y=np.ones_like(data.train_y))


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("partition", ["dirichlet", "dirichlet-unbalanced", "classes", "iid"])
def test_the_shards_together_hold_every_digit_once(tmp_path: Path, partition: str) -> None:
    summary = make_shards(tmp_path / "shards", digits(), Cut(8, partition, 1.0, seed=1))
    parts = [read_shard(path) for path in summary.paths]
    assert [path.name for path in summary.paths] == [f"shard_{i:02d}.npz" for i in range(8)]
    whole = digits()
    for names in (("train_x", "val_x"), ("test_x",)):
        pooled = np.concatenate(
            [getattr(part, name).reshape(-1, 64) for part in parts for name in names]
        )
        expected = getattr(whole, names[0]).reshape(-1, 64)
        assert sorted(row.tobytes() for row in pooled) == sorted(row.tobytes() for row in expected)


def test_a_tenth_of_every_clients_samples_is_for_validation(tmp_path: Path) -> None:
    summary = make_shards(tmp_path, some_data(1000), Cut(7, seed=3))
    sizes = (summary.train_counts + summary.val_counts).sum(axis=1)
    assert summary.val_counts.sum(axis=1).tolist() == [int(0.1 * n + 0.5) for n in sizes]
    wanted = 0.1 * (summary.train_counts + summary.val_counts)
    assert (np.abs(summary.val_counts - wanted) < 1).all()


def test_validation_share_may_be_zero(tmp_path: Path) -> None:
    summary = make_shards(tmp_path, some_data(), Cut(3, validation=0))
    assert summary.val_counts.sum() == 0
    assert read_shard(summary.paths[0]).val_x.shape == (0, 2)


def test_without_test_samples_a_fifth_of_every_class_is_set_aside(tmp_path: Path) -> None:
    data = some_data(500, test=0)
    summary = make_shards(tmp_path, data, Cut(5))
    of_class = np.bincount(data.train_y)
    assert summary.test_counts.sum() == 100
    assert (np.abs(summary.test_counts.sum(axis=0) - 0.2 * of_class) < 1).all()
    assert "100 of 500 are set aside for testing" in summary.notes[-1]
    rows = np.concatenate(
        [getattr(read_shard(path), f"{part}_x")[:, 0] for path in summary.paths for part in PARTS]
    )
    assert sorted(rows.tolist()) == data.train_x[:, 0].tolist()


def test_test_share_may_be_zero(tmp_path: Path) -> None:
    summary = make_shards(tmp_path, some_data(test=0), Cut(3, test_share=0))
    assert summary.test_counts.sum() == 0
    assert summary.notes == ("there are no test samples",)


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "dirichlet-unbalanced"])
def test_numbers_are_cut_by_their_quantiles(tmp_path: Path, partition: str) -> None:
    summary = make_shards(tmp_path, some_numbers(), Cut(4, partition, 1.0))
    shards = [read_shard(path) for path in summary.paths]
    for shard, (low, mean, high) in zip(shards, summary.target_ranges, strict=True):
        assert shard.num_classes == 0 and shard.train_y.dtype == np.float32
        found = [shard.train_y.min(), shard.train_y.mean(), shard.train_y.max()]
        np.testing.assert_allclose([low, mean, high], found, rtol=1e-6)
    rows = np.concatenate([getattr(shard, f"{part}_x")[:, 0] for shard in shards for part in PARTS])
    assert sorted(rows.tolist()) == list(range(0, 400, 2))
    assert summary.group_names[0].startswith("below ")


def test_the_summary_matches_the_files(tmp_path: Path) -> None:
    summary = make_shards(tmp_path, some_data(), Cut(3, alpha=0.1))
    written = json.loads((tmp_path / "shards.json").read_text())
    for client, path in enumerate(summary.paths):
        shard = read_shard(path)
        assert shard.class_names == ("class 0", "class 1", "class 2", "class 3")
        for part, counts in (
            ("train", summary.train_counts),
            ("val", summary.val_counts),
            ("test", summary.test_counts),
        ):
            held = np.bincount(getattr(shard, f"{part}_y"), minlength=4)
            np.testing.assert_array_equal(counts[client], held)
            name = {"val": "validation"}.get(part, part)
            assert written["shards"][client][name] == held.tolist()
        assert written["shards"][client]["file"] == path.name


def test_the_summary_records_the_source_the_cut_and_the_versions(tmp_path: Path) -> None:
    make_shards(tmp_path, some_data(), Cut(3, "classes", classes_per_client=2, seed=9))
    written = json.loads((tmp_path / "shards.json").read_text())
    assert (written["source"], written["partition"], written["seed"]) == ("some", "classes", 9)
    assert (written["clients"], written["classes_per_client"]) == (3, 2)
    assert (written["input_shape"], written["input_type"]) == ([2], "float32")
    assert written["classes"] == [f"class {label}" for label in range(4)]
    assert set(written["versions"]) == {"ssfl", "numpy", "shard_format"}


def test_the_same_cut_gives_the_same_bytes_and_another_seed_different_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_shards(tmp_path / name, some_data(), Cut(3, seed=seed))
    first, again, other = (files_in(tmp_path / name) for name in "abc")
    assert first == again
    assert all(first[name] != other[name] for name in first)


def test_a_hundred_and_one_shards_get_three_digits(tmp_path: Path) -> None:
    summary = make_shards(tmp_path, some_data(150), Cut(101, "iid"))
    assert (summary.paths[0].name, summary.paths[-1].name) == ("shard_000.npz", "shard_100.npz")


def test_a_client_with_one_sample_has_no_validation_and_test_samples(tmp_path: Path) -> None:
    data = replace(some_data(2, test=0), train_y=np.array([0, 1]))
    for path in make_shards(tmp_path, data, Cut(2)).paths:
        shard = read_shard(path)
        assert [len(getattr(shard, f"{part}_y")) for part in PARTS] == [1, 0, 0]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.int32, np.int64])
def test_samples_keep_their_type(tmp_path: Path, dtype: Any) -> None:
    shape = (10, 1, 2, 3) if np.dtype(dtype).kind in "uf" else (10, 6)
    x = np.arange(60).reshape(shape).astype(dtype)
    data = DataSet("typed", x, np.arange(10) % 2, x[:0], np.zeros(0, np.int64), ("a", "b"))
    (path,) = make_shards(tmp_path, data, Cut(1)).paths
    with np.load(path) as archive:
        assert archive["train_x"].dtype == dtype and archive["val_x"].shape[1:] == shape[1:]
    read_shard(path)


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    out = tmp_path / "Ärzte [1] 数据 *"
    (path,) = make_shards(out, some_data(), Cut(1)).paths
    assert find_shard("shard_00", out) == path
    with pytest.raises(ShardError, match=r"there are: shard_00$"):
        find_shard("shard_01", out)
    with pytest.raises(ShardError, match="already holds 1 shard; add --overwrite"):
        make_shards(out, some_data(), Cut(1))


def test_shards_are_not_replaced_without_overwrite(tmp_path: Path) -> None:
    make_shards(tmp_path, some_data(), Cut(3))
    before = files_in(tmp_path)
    with pytest.raises(ShardError, match="already holds 3 shards; add --overwrite"):
        make_shards(tmp_path, some_data(), Cut(2))
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("name", ["classes.png", "shards.json"])
def test_a_file_named_like_an_output_is_not_replaced_without_overwrite(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(ShardError, match=f"already holds {name}; add --overwrite"):
        make_shards(tmp_path, some_data(), Cut(2))
    assert files_in(tmp_path) == {name: b"mine"}
    make_shards(tmp_path, some_data(), Cut(2), overwrite=True)
    assert b"mine" not in files_in(tmp_path).values()


def test_the_picture_and_the_shards_appear_together_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def draw(summary: Any, path: Path) -> None:
        with pytest.raises(ShardError, match="another program is writing"):
            make_shards(out, some_data(), Cut(1), overwrite=True)
        path.write_text(f"{len(summary.paths)} clients")

    make_shards(out, some_data(), Cut(2), draw=draw)
    before = files_in(out)
    assert before["classes.png"] == b"2 clients"

    def fail(_summary: Any, _path: Path) -> None:
        raise OSError("no room")

    with pytest.raises(ShardError, match=r"cannot write shards into .*: no room"):
        make_shards(out, some_data(), Cut(3), overwrite=True, draw=fail)
    assert files_in(out) == before


def test_overwrite_removes_all_files_of_the_old_partition(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    make_shards(tmp_path, some_data(), Cut(3))
    (tmp_path / "classes.png").write_bytes(b"a picture of the old shards")
    make_shards(tmp_path, some_data(), Cut(2), overwrite=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["notes.txt", "shard_00.npz", "shard_01.npz", "shards.json"]


@pytest.mark.parametrize(
    ("data", "cut", "complaint"),
    [
        (some_data(), Cut(3, alpha=-1), "--alpha must be between"),
        (some_data(), Cut(61), "cannot split 60 training samples among 61 clients"),
        (some_data(0), Cut(1), "the data set has no training samples"),
        (
            some_data(classes=1),
            Cut(3),
            "have one class ('class 0'), but a classifier needs at least two",
        ),
        (
            with_one_target(some_data()),
            Cut(3),
            "all training samples have one class ('class 1'), but a classifier",
        ),
        (
            with_one_target(some_numbers()),
            Cut(3),
            "the number to predict is the same in all training samples, so there is nothing",
        ),
        (
            some_numbers(),
            Cut(3, "classes"),
            "--partition classes needs classes, but the targets are numbers: "
            "use iid, dirichlet or dirichlet-unbalanced",
        ),
    ],
)
def test_an_impossible_cut_is_refused_and_changes_nothing(
    tmp_path: Path, data: DataSet, cut: Cut, complaint: str
) -> None:
    make_shards(tmp_path, some_data(), Cut(3))
    before = files_in(tmp_path)
    with pytest.raises(PartitionError) as caught:
        make_shards(tmp_path, data, cut, overwrite=True)
    assert complaint in str(caught.value)
    assert files_in(tmp_path) == before


def test_samples_that_a_shard_cannot_hold_are_refused(tmp_path: Path) -> None:
    data = some_data()
    broken = data.train_x.copy()
    broken[7, 1] = np.nan
    for x, complaint in (
        (broken, "train_x holds NaN or infinity, first in sample 7"),
        (data.train_x.astype(np.float64), "train_x must be float32"),
        (data.train_x[:-1], "train_x has 59 samples but train_y has 60 labels"),
    ):
        odd = DataSet("odd", x, data.train_y, data.test_x, data.test_y, data.class_names)
        with pytest.raises(ShardError, match=complaint):
            make_shards(tmp_path / "out", odd, Cut(2))
    assert not (tmp_path / "out").exists()


class Interrupted(BaseException):
    pass


def test_an_interrupted_cut_keeps_the_old_shards(tmp_path: Path) -> None:
    make_shards(tmp_path / "out", some_data(), Cut(3))
    before = files_in(tmp_path / "out")

    def interrupt(what: str, done: int, _total: int) -> None:
        if what == "writing shards" and done == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        make_shards(
            tmp_path / "out", some_data(), Cut(4, seed=5), overwrite=True, on_progress=interrupt
        )
    assert files_in(tmp_path / "out") == before
    with pytest.raises(Interrupted):
        make_shards(tmp_path / "new", some_data(), Cut(4), on_progress=interrupt)
    assert not (tmp_path / "new").exists()


def test_files_left_by_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".shards.part").mkdir()
    (tmp_path / ".shards.part" / "shard_00.npz").write_bytes(b"half")
    make_shards(tmp_path, some_data(), Cut(1))
    assert sorted(files_in(tmp_path)) == ["shard_00.npz", "shards.json"]


def moments_of_overwriting(out: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Overwrite the shards in `out`; return copies of it from before every file operation."""
    found: list[Path] = []
    real = {name: getattr(Path, name) for name in ("rename", "mkdir", "unlink")}

    def copying(name: str) -> Any:
        def change(self: Path, *arguments: Any, **options: Any) -> Any:
            if out in self.parents:
                real["mkdir"](copies, exist_ok=True)
                found.append(Path(shutil.copytree(out, copies / f"{len(found):03d}")))
            return real[name](self, *arguments, **options)

        return change

    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(Path, name, copying(name))
        make_shards(out, some_data(), Cut(4, seed=5), overwrite=True)
    return found


def test_after_a_kill_at_any_moment_the_next_request_restores_the_old_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    make_shards(out, some_data(), Cut(3))
    (out / "classes.png").write_bytes(b"a picture of the old shards")
    (out / "notes.txt").write_text("mine")
    before = files_in(out)
    moments = moments_of_overwriting(out, tmp_path / "copies", monkeypatch)
    after = files_in(out)
    assert len(moments) > len(before) + len(after)
    for folder in moments:
        with pytest.raises(ShardError, match="already holds 3 shards; add --overwrite"):
            make_shards(folder, some_data(), Cut(2))
        assert files_in(folder) == before


def test_after_a_kill_during_cleanup_the_new_shards_remain(tmp_path: Path) -> None:
    make_shards(tmp_path, some_data(), Cut(3))
    after = files_in(tmp_path)
    replaced = tmp_path / ".shards.part" / "replaced"
    replaced.mkdir(parents=True)
    (replaced / "shard_02.npz").write_bytes(b"the last of the old ones")
    with pytest.raises(ShardError, match="already holds 3 shards; add --overwrite"):
        make_shards(tmp_path, some_data(), Cut(2))
    assert files_in(tmp_path) == after


def test_after_a_kill_during_recovery_a_later_request_restores_the_old_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    make_shards(out, some_data(), Cut(3))
    before = files_in(out)
    moments = moments_of_overwriting(out, tmp_path / "copies", monkeypatch)

    class Killed(BaseException):
        pass

    for folder in moments:
        for survived in range(20):
            steps = iter([True] * survived)

            def rename(self: Path, target: Path, steps: Iterator[bool] = steps) -> Path:
                if not next(steps, False):
                    raise Killed
                self.replace(target)
                return target

            with monkeypatch.context() as patch, suppress(Killed, ShardError):
                patch.setattr(Path, "rename", rename)
                make_shards(folder, some_data(), Cut(2))
        with pytest.raises(ShardError, match="already holds 3 shards"):
            make_shards(folder, some_data(), Cut(2))
        assert files_in(folder) == before


def test_if_the_new_files_cannot_be_moved_the_old_ones_are_restored(tmp_path: Path) -> None:
    make_shards(tmp_path, some_data(), Cut(1))
    before = files_in(tmp_path)
    (tmp_path / "shard_01.npz").mkdir()
    with pytest.raises(ShardError, match="cannot write shards into"):
        make_shards(tmp_path, some_data(), Cut(2), overwrite=True)
    (tmp_path / "shard_01.npz").rmdir()
    assert files_in(tmp_path) == before


def test_a_folder_locked_by_another_program_is_refused(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(ShardError, match="another program is writing shards into"):
            make_shards(tmp_path, some_data(), Cut(2))
    finally:
        os.close(descriptor)
    make_shards(tmp_path, some_data(), Cut(2))


def test_shards_larger_than_the_free_disk_space_are_refused_before_writing(
    tmp_path: Path,
) -> None:
    huge = np.broadcast_to(np.zeros(1, dtype=np.uint8), (4, 10**15))  # takes no memory
    data = DataSet("huge", huge, np.array([0, 1, 0, 1]), huge[:0], np.zeros(0), ("a", "b"))
    with pytest.raises(ShardError, match=r"need 4,000\.0 TB, but the disk of .* has .* free"):
        make_shards(tmp_path / "out", data, Cut(2))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_created_raises_shard_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ShardError, match="file is a file: choose a folder with --out"):
        make_shards(tmp_path / "file", some_data(), Cut(2))
    with pytest.raises(ShardError, match="cannot write shards into"):
        make_shards(tmp_path / "file" / "below", some_data(), Cut(2))


def test_progress_is_reported_from_zero_to_the_total(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    make_shards(tmp_path, some_data(), Cut(2), on_progress=lambda *step: steps.append(step))
    assert steps[0] == ("dividing the samples", 0, 0)
    assert [done for what, done, total in steps if what == "writing shards"] == [0, 1, 2]


@pytest.mark.parametrize("flag", ["validation", "test_share"])
@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_outside_zero_to_one_is_refused(flag: str, share: float) -> None:
    with pytest.raises(SettingsError, match=f"--{flag.replace('_', '-')} must be at least 0 and"):
        Cut(**{flag: share}).validate()  # type: ignore[arg-type]
