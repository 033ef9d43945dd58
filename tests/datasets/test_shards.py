import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ssfl.datasets.errors import ShardError
from ssfl.datasets.shards import Shard, class_counts, find_shard, read_shard, write_shard


def good_arrays() -> dict[str, Any]:
    return {
        "train_x": np.ones((3, 1, 4, 4), dtype=np.float32),
        "train_y": np.array([0, 1, 1]),
        "test_x": np.zeros((2, 1, 4, 4), dtype=np.float32),
        "test_y": np.array([1, 0]),
        "num_classes": np.int64(2),
    }


def save(path: Path, **changes: Any) -> Path:
    """Write a shard file as anybody might: good arrays, with some replaced or (None) left out."""
    arrays = {k: v for k, v in (good_arrays() | changes).items() if v is not None}
    np.savez(path, **arrays)
    return path


def with_value(value: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    x = np.ones((3, 1, 4, 4), dtype=np.float32)
    x[1, 0, 2, 3] = value
    return x


def test_a_shard_is_read_as_it_was_written(tmp_path: Path, shard: Shard) -> None:
    path = tmp_path / "shard_00.npz"
    write_shard(path, shard)
    back = read_shard(path)
    for name in ("train_x", "train_y", "test_x", "test_y"):
        np.testing.assert_array_equal(getattr(back, name), getattr(shard, name))
        assert getattr(back, name).dtype == getattr(shard, name).dtype
    assert (back.num_classes, back.num_samples, back.input_shape) == (4, 50, (1, 8, 8))


def test_the_same_shard_gives_the_same_bytes_and_leaves_no_other_file(
    tmp_path: Path, shard: Shard
) -> None:
    for name in ("a.npz", "b.npz"):
        write_shard(tmp_path / name, shard)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path, shard: Shard) -> None:
    path = tmp_path / "shard_00.npz"
    write_shard(path, shard)
    before = path.read_bytes()
    unwritable = Shard(
        np.array([object()]), shard.train_y[:1], np.array([]), shard.test_y[:0], num_classes=4
    )
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        write_shard(path, unwritable)
    assert path.read_bytes() == before


def test_bytes_are_scaled_to_the_unit_interval(tmp_path: Path) -> None:
    x = np.array([0, 51, 255], dtype=np.uint8).reshape(3, 1, 1, 1)
    path = save(tmp_path / "s.npz", train_x=x, test_x=x[:2])
    back = read_shard(path)
    assert back.train_x.dtype == np.float32
    assert back.train_x.reshape(-1).tolist() == [0.0, np.float32(51) / np.float32(255), 1.0]


def test_a_shard_without_test_samples_is_fine(tmp_path: Path) -> None:
    nothing = np.zeros((0, 1, 4, 4), dtype=np.float32)
    path = save(tmp_path / "s.npz", test_x=nothing, test_y=np.zeros(0, dtype=np.int64))
    assert len(read_shard(path).test_y) == 0


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"test_y": None, "num_classes": None}, "lacks test_y, num_classes"),
        (
            {"train_x": np.ones((3, 4, 4), dtype=np.float32)},
            r"train_x must have shape .* not \(3, 4",
        ),
        ({"train_x": np.ones((3, 1, 0, 4), dtype=np.float32)}, "train_x must have shape"),
        ({"train_x": np.ones((3, 1, 4, 4))}, "train_x must be float32 or uint8, not float64"),
        ({"train_y": np.array([0.0, 1.0, 1.0])}, "train_y must be a row of int64, not float64"),
        ({"train_y": np.array([[0], [1], [1]])}, "train_y must be a row of int64"),
        ({"train_y": np.array([0, 1])}, "train_x has 3 samples but train_y has 2 labels"),
        ({"train_y": np.array([0, 1, 2])}, r"labels 0 … 2, but 2 classes are 0 … 1"),
        ({"test_y": np.array([-1, 1])}, r"test_y holds labels -1 … 1"),
        ({"test_x": np.zeros((2, 1, 5, 4), dtype=np.float32)}, "different shapes"),
        ({"num_classes": np.array([2, 2])}, "num_classes must be one int64"),
        ({"num_classes": np.int64(1)}, "num_classes must be at least 2"),
        ({"train_x": with_value(np.nan)}, "train_x holds NaN or infinity, first in sample 1"),
        ({"train_x": with_value(-np.inf)}, "train_x holds NaN or infinity"),
        (
            {"train_x": np.zeros((0, 1, 4, 4), np.float32), "train_y": np.zeros(0, np.int64)},
            "no training samples",
        ),
        ({"train_y": np.array([{}, {}, {}])}, "cannot be read: Object arrays"),
    ],
)
def test_a_shard_that_breaks_the_format_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    path = save(tmp_path / "odd.npz", **changes)
    with pytest.raises(ShardError, match=complaint) as caught:
        read_shard(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_empty_foreign_or_cut_file_is_a_shard_error(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    with pytest.raises(ShardError, match="no such file"):
        read_shard(path)
    for content in (b"", b"not a shard", np.zeros(3).tobytes()):
        path.write_bytes(content)
        with pytest.raises(ShardError, match=r"not a numpy \.npz archive"):
            read_shard(path)
    whole = save(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ShardError, match="cut short"):
        read_shard(path)


def test_no_damaged_byte_gets_past_the_reader_as_another_error(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    whole = save(path).read_bytes()
    refused = 0
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        try:
            read_shard(path)  # some bytes, such as dates, do not matter
        except ShardError:
            refused += 1
    assert refused > len(whole) / 7 / 2


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in good_arrays():
            archive.writestr(f"{name}.npy", b"\x93NUMPY but not really")
    with pytest.raises(ShardError, match="cannot be read"):
        read_shard(path)


def test_a_shard_is_found_by_name_with_or_without_ending_or_by_path(tmp_path: Path) -> None:
    root = tmp_path / "shards"
    root.mkdir()
    path = save(root / "shard_07.npz")
    assert find_shard("shard_07", root) == path
    assert find_shard("shard_07.npz", root) == path
    assert find_shard(str(path), tmp_path / "elsewhere") == path
    assert find_shard(str(root / "shard_07"), tmp_path / "elsewhere") == path


def test_a_missing_shard_is_answered_with_those_that_exist(tmp_path: Path) -> None:
    for name in ("shard_00", "shard_01"):
        save(tmp_path / f"{name}.npz")
    with pytest.raises(ShardError, match=r"no shard shard_09 .*; there are: shard_00, shard_01$"):
        find_shard("shard_09", tmp_path)


def test_a_long_list_of_shards_is_shortened(tmp_path: Path) -> None:
    for client in range(30):
        (tmp_path / f"shard_{client:02d}.npz").touch()
    with pytest.raises(ShardError, match=r"shard_11 … \(30 in all\)$"):
        find_shard("shard_99", tmp_path)


def test_without_any_shard_the_message_says_how_to_make_some(tmp_path: Path) -> None:
    for root in (tmp_path / "absent", tmp_path):
        with pytest.raises(ShardError, match="make some with: ssfl shards"):
            find_shard("shard_00", root)
    with pytest.raises(ShardError, match=r"there is no file .*x\.npz"):
        find_shard(str(tmp_path / "x.npz"), tmp_path)


def test_an_empty_name_is_no_shard(tmp_path: Path) -> None:
    save(tmp_path / "shard_00.npz")
    with pytest.raises(ShardError, match="there are: shard_00"):
        find_shard("", tmp_path)


def test_class_counts_are_sorted_plain_numbers() -> None:
    assert class_counts(np.array([3, 1, 3, 3])) == {1: 1, 3: 3}
    assert list(class_counts(np.array([3, 1]))) == [1, 3]
