import errno
from pathlib import Path

import pytest

from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.output_dir import check_writable


def test_a_writable_folder_is_created_and_left_empty(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b", "--out-dir")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_an_unwritable_folder_is_refused_with_its_flag(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/ssfl")):
        with pytest.raises(
            ProgramError, match=rf"^--out-dir: .* {folder}: .*; choose a"
        ) as refused:
            check_writable(folder, "--out-dir")
        assert refused.value.exit_code is ExitCode.USAGE
    with pytest.raises(ProgramError, match="is not a directory"):
        check_writable(tmp_path / "file", "--out-dir")


def test_a_full_disk_does_not_prevent_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    check_writable(tmp_path, "--out-dir")
