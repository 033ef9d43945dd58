"""A forked program has the files, folder, variables, flags, signals and exit code of a new one."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssfl.tools.local.fork_server import Forked, ForkServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are forked on Linux only")

PROGRAM = """
import os, signal, sys
from ssfl.durable import failpoints
LOADED_BY = os.getpid()

def main():
    print(sys.argv, os.getcwd(), sorted(os.environ), os.getpid() != LOADED_BY, flush=True)
    print(os.getsid(0) == os.getpid(), sys.stdin.read() == "", flush=True)
    print("on stderr", file=sys.stderr)
    failpoints.failpoint("journal.append")
    if "wait" in sys.argv:
        try:
            signal.pause()
        except KeyboardInterrupt:
            return 130
    return 7
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """A server that has imported `shown`, a module of the test's folder."""
    (tmp_path / "shown.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = ForkServer(["shown"])
    try:
        yield started
    finally:
        started.close()


def start(server: ForkServer, folder: Path, *flags: str, **env: str) -> Forked:
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return server.start("shown", flags, stdout=out, stderr=err, env=env, cwd=folder)


def wait_for_output(folder: Path, process: Forked) -> None:
    while (folder / "err").read_text() == "":
        assert process.poll() is None


def test_a_fork_has_the_flags_and_exit_code_of_the_program(
    server: ForkServer, tmp_path: Path
) -> None:
    process = start(server, tmp_path, "--a", "b", COLOUR="red")
    assert process.wait(60) == 7
    assert process.wait() == process.poll() == process.returncode == 7
    assert (tmp_path / "out").read_text().splitlines() == [
        f"['shown', '--a', 'b'] {tmp_path} ['COLOUR'] True",
        "True True",
    ]
    assert (tmp_path / "err").read_text() == "on stderr\n"


def test_a_fork_has_its_own_failpoints(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path, FAILPOINTS="journal.append=kill@1")
    assert process.wait(60) == -signal.SIGKILL
    assert start(server, tmp_path).wait(60) == 7


def test_signals_reach_a_fork(server: ForkServer, tmp_path: Path) -> None:
    for number, code in (
        (signal.SIGINT, 130),
        (signal.SIGTERM, -signal.SIGTERM),
        (signal.SIGKILL, -signal.SIGKILL),
    ):
        process = start(server, tmp_path, "wait")
        wait_for_output(tmp_path, process)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0)
        process.send_signal(number)
        assert process.wait(60) == code
        process.kill()  # nothing happens: it has ended


def test_forks_end_with_their_server(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path, "wait")
    wait_for_output(tmp_path, process)
    alive = os.pidfd_open(process.pid)
    server.close()
    try:
        ended, _, _ = select.select([alive], [], [], 60)
        assert ended, "the fork has outlived its server"
    finally:
        os.close(alive)
    assert process.wait(0) == -signal.SIGKILL
    with pytest.raises(ChildProcessError):
        start(server, tmp_path)
