import re
from pathlib import Path

import pytest

from ssfl.datasets.errors import ShardError
from ssfl.datasets.shards.shard_file import find_shard, full_name, shard_names


def touch(path: Path) -> Path:
    """Make an empty file and return its path."""
    path.touch()
    return path


def test_a_shard_is_found_by_name_with_or_without_extension_or_by_path(tmp_path: Path) -> None:
    root = tmp_path / "shards"
    root.mkdir()
    path = touch(root / "shard_07.npz")
    assert find_shard("shard_07", root) == path
    assert find_shard("shard_07.npz", root) == path
    assert find_shard(str(path), tmp_path / "elsewhere") == path
    assert find_shard(str(root / "shard_07"), tmp_path / "elsewhere") == path


def test_a_missing_shard_is_reported_with_the_existing_ones(tmp_path: Path) -> None:
    for name in ("shard_00", "shard_01"):
        touch(tmp_path / f"{name}.npz")
    with pytest.raises(ShardError, match=r"no shard shard_09 .*; there are: shard_00, shard_01$"):
        find_shard("shard_09", tmp_path)


def test_the_summary_and_picture_are_not_shards(tmp_path: Path) -> None:
    root = tmp_path / "Ärzte 数据"
    root.mkdir()
    for name in ("shards.json", "classes.png", ".shards.part"):
        (root / name).touch()
    with pytest.raises(ShardError, match="holds no shards"):
        find_shard("shard_00", root)
    path = touch(root / "Zürich.npz")
    assert find_shard("Zürich", root) == path
    with pytest.raises(ShardError, match=r"there are: Zürich$"):
        find_shard("shard_00", root)


def test_shard_names_are_the_valid_values_of_data(tmp_path: Path) -> None:
    for name in ("b.npz", "c.csv", ".hidden", ".d.npz", "shards.json", "classes.png"):
        (tmp_path / name).touch()
    (tmp_path / "a").mkdir()
    assert shard_names(tmp_path) == ["a", "b", "c.csv"]
    for name in shard_names(tmp_path):
        assert find_shard(name, tmp_path).parent == tmp_path


def test_two_shards_with_the_same_name_are_refused(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        (tmp_path / name).touch()
    (tmp_path / "a").mkdir()
    message = f"{tmp_path}/a and {tmp_path}/a.npz are both shard a: rename one"
    with pytest.raises(ShardError, match=re.escape(message)):
        shard_names(tmp_path)
    with pytest.raises(ShardError, match=re.escape(message)):
        find_shard("c", tmp_path)


def test_a_folder_without_shards_is_reported_with_the_command_to_make_them(tmp_path: Path) -> None:
    (tmp_path / "shards.json").touch()
    with pytest.raises(ShardError, match="holds no shards; make some with: ssfl shards"):
        shard_names(tmp_path)
    for folder in (tmp_path / "absent", tmp_path / "shards.json"):
        with pytest.raises(ShardError, match=r"there is no folder .*; make some with: ssfl shards"):
            shard_names(folder)


def test_an_invalid_file_name_raises_shard_error(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="cannot look for the shard"):
        find_shard("x" * 5000, tmp_path)


def test_a_long_list_of_shards_is_shortened_in_the_message(tmp_path: Path) -> None:
    for client in range(30):
        (tmp_path / f"shard_{client:02d}.npz").touch()
    with pytest.raises(ShardError, match=r"shard_11 … \(30 in all\)$"):
        find_shard("shard_99", tmp_path)


def test_find_shard_without_any_shards_names_the_command_to_make_them(tmp_path: Path) -> None:
    for root in (tmp_path / "absent", tmp_path):
        with pytest.raises(ShardError, match="make some with: ssfl shards"):
            find_shard("shard_00", root)
    with pytest.raises(ShardError, match=r"there is no file .*x\.npz"):
        find_shard(str(tmp_path / "x.npz"), tmp_path)


def test_an_empty_name_is_not_a_shard(tmp_path: Path) -> None:
    touch(tmp_path / "shard_00.npz")
    with pytest.raises(ShardError, match="there are: shard_00"):
        find_shard("", tmp_path)


def test_leading_zeros_may_be_omitted(tmp_path: Path) -> None:
    for name in ("shard_00.npz", "shard_07.npz", "shard_11.npz", "site_0012"):
        touch(tmp_path / name)
    for given, expected in (
        ("shard_0", "shard_00"),
        ("shard_7", "shard_07"),
        ("site_12", "site_0012"),
    ):
        assert full_name(given, tmp_path) == expected
        assert find_shard(given, tmp_path).name.removesuffix(".npz") == expected
    for exact in ("shard_11", "shard_07", "shard_8", "shard_07.npz", "other", "", "9" * 5000):
        assert full_name(exact, tmp_path) == exact


def test_leading_zeros_may_not_be_omitted_if_that_is_ambiguous(tmp_path: Path) -> None:
    for name in ("shard_07.npz", "shard_007.npz"):
        touch(tmp_path / name)
    with pytest.raises(ShardError, match=r"no shard shard_7 .*; there are: shard_007, shard_07$"):
        find_shard("shard_7", tmp_path)
    touch(tmp_path / "shard_7.npz")
    assert find_shard("shard_7", tmp_path) == tmp_path / "shard_7.npz"


def test_leading_zeros_may_not_be_omitted_in_a_path(tmp_path: Path) -> None:
    touch(tmp_path / "shard_07.npz")
    with pytest.raises(ShardError, match="there is no file"):
        find_shard(str(tmp_path / "shard_7"), tmp_path)
