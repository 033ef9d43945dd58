"""A coordinator and clients as processes on this machine."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ssfl.program.exits import ExitCode, ProgramError
from ssfl.tools.admin_client import AdminClient

START_DEADLINE_S = 60.0
END_DEADLINE_S = 15.0
_TOLD = (ExitCode.USAGE, ExitCode.BAD_DATA, ExitCode.REFUSED)  # the user's to mend
_COORDINATOR = "coordinator"


def client_ids(shards: Sequence[str]) -> dict[str, str]:
    """Return a client id for every shard: its name, or a number where that cannot be an id.

    An id is at most 64 ASCII letters, digits, '.', '_' or '-', and names files beside those of
    the coordinator; a shard may be called as its owner likes.
    """
    ids: dict[str, str] = {}
    for number, name in enumerate(shards):
        fits = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) and name != _COORDINATOR
        other = f"client_{number:02}"
        while not fits and other in {*shards, *ids.values()}:
            other += "_"
        ids[name] = name if fits else other
    return ids


class Federation:
    """Processes of one run, all ended when the `with` block is left, however it is left."""

    def __init__(
        self,
        folder: Path,
        shards: Path,
        coordinator_flags: Sequence[str],
        clients: Sequence[str],
        client_flags: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._shards = shards
        self._flags = coordinator_flags
        self._clients = client_ids(clients)
        self._client_flags = client_flags
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.admin: AdminClient

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ended(self) -> list[str]:
        """Return the processes that have ended well; raise ProgramError if one ended badly."""
        done = []
        for name, process in self._processes:
            code = process.poll()
            if code == 0:
                done.append(name)
            elif code is not None:
                told = next((one for one in _TOLD if one == code), ExitCode.BUG)
                raise ProgramError(self._last_words(name, code), told)
        return done

    def close(self) -> None:
        """End every process: ask, wait, then insist."""
        for _, process in self._processes:
            if process.poll() is None:
                process.terminate()
        deadline_s = time.monotonic() + END_DEADLINE_S
        for _, process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline_s - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()
        self._processes.clear()

    def _start_all(self) -> None:
        common = ["--out-dir", str(self.folder / "models")]
        self._start(
            _COORDINATOR,
            ["ssfl.server.main", "--port", "0", "--admin-port", "0",
             "--state-dir", str(self.folder / "state"), *common, *self._flags],
        )  # fmt: skip
        port, admin_port = self._ports()
        self.admin = AdminClient(f"127.0.0.1:{admin_port}")
        for shard, name in self._clients.items():
            self._start(
                name,
                ["ssfl.client.main", f"--data={shard}", "--data-root", str(self._shards),
                 f"--client-id={name}", "--coordinator", f"127.0.0.1:{port}", *common,
                 "--state-dir", str(self.folder / "clients"), *self._client_flags],
            )  # fmt: skip

    def _start(self, name: str, module_and_flags: Sequence[str]) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SSFL_")}
        with (
            (self.folder / f"{name}.out").open("wb") as out,
            (self.folder / f"{name}.log").open("wb") as log,
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", *module_and_flags],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches us alone; we end them in order
            )
        self._processes.append((name, process))

    def _ports(self) -> tuple[str, str]:
        """Return the client port and the admin port the coordinator printed."""
        path, deadline_s = self.folder / f"{_COORDINATOR}.out", time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline_s:
            self.ended()
            lines = path.read_text().splitlines()
            if len(lines) >= 2:
                return lines[0].rpartition(":")[2], lines[1].rpartition(":")[2]
            time.sleep(0.02)
        raise ProgramError(
            f"the coordinator did not start within {START_DEADLINE_S:g} s:\n"
            + self._tail(_COORDINATOR),
            ExitCode.BUG,
        )

    def _last_words(self, name: str, code: int) -> str:
        """Return what a process said was wrong; if it did not say, the end of its log."""
        lines = self._log(name)
        said = [n for n, line in enumerate(lines) if re.match(r"ssfl-\w+: error: ", line)]
        if not said:
            return f"{name} ended with code {code}:\n{self._tail(name)}"
        words = "\n".join(lines[said[-1] :]).partition(": error: ")[2]
        return f"{name}: {words}\n(its log: {self.folder / name}.log)"

    def _tail(self, name: str) -> str:
        return "\n".join(self._log(name)[-15:])

    def _log(self, name: str) -> list[str]:
        return (self.folder / f"{name}.log").read_text("utf-8", "replace").splitlines()
