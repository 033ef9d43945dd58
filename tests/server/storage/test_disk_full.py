"""Full disks: what is logged, and what a start on one says."""

import errno
import logging
from pathlib import Path

import pytest

from ssfl.program.exits import ExitCode
from ssfl.server import main as program
from ssfl.server.storage.disk_full import Disk, DiskSpaceWaiter, full_disk_text


def test_a_wait_that_a_stop_ends_does_not_report_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    waiter = DiskSpaceWaiter(lambda _seconds: waiter.close())

    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        Disk("--out-dir", tmp_path, waiter).retry_while_full(write)
    assert [one.getMessage() for one in caplog.records] == [
        "the disk is full: make room, then the run continues by itself"
    ]
    assert waiter.blocked_on == ""


def test_a_wait_that_succeeds_reports_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = [OSError(errno.ENOSPC, "No space left on device")]

    def write() -> str:
        if attempts:
            raise attempts.pop()
        return "written"

    waiter = DiskSpaceWaiter(lambda _seconds: None)
    assert Disk("--out-dir", tmp_path, waiter).retry_while_full(write) == "written"
    assert caplog.messages[-1] == "the disk has room again: nothing waits for it"


def test_the_sentence_for_a_full_disk_names_the_folder(tmp_path: Path) -> None:
    text = full_disk_text([tmp_path / "not" / "made" / "yet"])
    assert text.startswith(f"the disk of {tmp_path}/not/made/yet is full (")
    assert text.endswith(" MB free)")


def test_a_start_on_a_full_disk_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fails(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(program, "_watched", fails)
    state, out = tmp_path / "state", tmp_path / "runs"
    assert program.main([f"--state-dir={state}", f"--out-dir={out}"]) == ExitCode.STATE
    assert f"the disk of {state} is full (" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["journal", "snapshot.json", "ledger.csv", "session-key"])
def test_a_folder_in_place_of_a_file_is_named_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    state, out = tmp_path / "state", tmp_path / "runs"
    (state / name).mkdir(parents=True)
    code = program.main([f"--state-dir={state}", f"--out-dir={out}", "--port=0", "--admin-port=0"])
    assert code == ExitCode.STATE
    message = capsys.readouterr().err
    assert f"{state / name} is a folder, and must be a file: move it away" in message
