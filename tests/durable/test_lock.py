import os
import subprocess
import sys
from pathlib import Path

import pytest

from ssfl.durable.lock import DirectoryLock, DirectoryUnusable
from ssfl.program.exits import ExitCode, run_program

HOLD = """
import sys
from pathlib import Path
from ssfl.durable.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def refusal(folder: Path) -> str:
    with pytest.raises(DirectoryUnusable) as caught:
        DirectoryLock(folder).acquire()
    assert run_program(DirectoryLock(folder).acquire) == ExitCode.STATE
    return str(caught.value)


def test_a_second_holder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        pid = os.getpid()
        assert (
            refusal(tmp_path) == f"the state directory {tmp_path} is in use by process {pid}: "
            f"wait for it, or end it with `kill {pid}`"
        )


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "new" / "folder")
    with lock:
        pass
    lock.release()
    with lock, pytest.raises(DirectoryUnusable):
        lock.acquire()


def test_a_killed_holder_leaves_no_lock_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert refusal(tmp_path).endswith(f"or end it with `kill {process.pid}`")
        process.kill()
        process.wait(timeout=30)
    with DirectoryLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    assert "cannot be used: File exists" in refusal(tmp_path / "state")
