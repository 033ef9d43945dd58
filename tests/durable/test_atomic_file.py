from pathlib import Path

import pytest

from ssfl.durable.files import atomic_file


def names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def test_the_old_file_stays_visible_while_the_new_one_is_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    with atomic_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        assert [name for name in names(tmp_path) if not name.startswith(".")] == ["model"]
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["model"]


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["model"]


def test_two_writers_of_one_file_do_not_interfere(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with atomic_file(path) as first, atomic_file(path) as second:
        first.write(b"first")
        second.write(b"2")
    assert path.read_bytes() == b"first"  # the outer block ends last
    assert names(tmp_path) == ["model"]
