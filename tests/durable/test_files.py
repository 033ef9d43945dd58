import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ssfl.durable.files import remove_leftovers, write_atomic


def names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def test_one_buffer_or_several_of_any_kind(tmp_path: Path) -> None:
    values = np.array([1.0, -2.0], "<f4")
    write_atomic(tmp_path / "one", values)
    write_atomic(tmp_path / "several", [b"ab", bytearray(b"cd"), memoryview(b"ef"), values])
    write_atomic(tmp_path / "none", [])
    assert (tmp_path / "one").read_bytes() == values.tobytes()
    assert (tmp_path / "several").read_bytes() == b"abcdef" + values.tobytes()
    assert (tmp_path / "none").read_bytes() == b""


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_atomic(path, b"a long first version")
    write_atomic(path, b"second")
    assert path.read_bytes() == b"second"
    assert names(tmp_path) == ["model"]


def test_a_failing_write_leaves_the_old_file(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"half"
        raise OSError("disk full")

    path = tmp_path / "model"
    write_atomic(path, b"old")
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, failing())
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["model"]


def test_content_is_synced_before_the_name_and_the_name_before_returning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        steps.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name[-4:])
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        steps.append("rename")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    write_atomic(tmp_path / "model", b"x")
    assert steps == ["sync .tmp", "rename", "sync " + tmp_path.name[-4:]]


def test_a_new_file_has_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "ordinary").touch()
    write_atomic(tmp_path / "ours", b"")
    modes = {(tmp_path / name).stat().st_mode for name in ("ordinary", "ours")}
    assert len(modes) == 1


def test_leftovers_of_a_crash_are_removed_and_nothing_else(tmp_path: Path) -> None:
    write_atomic(tmp_path / "model", b"x")
    (tmp_path / ".model.00c0ffee.tmp").touch()
    assert remove_leftovers(tmp_path) == 1
    assert names(tmp_path) == ["model"]
