"""A coordinator and clients as processes on this machine."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from ssfl.client.config import CLIENT_ID
from ssfl.durable import failpoints
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.tools.local.fork_server import Forked, shared_client_server
from ssfl.tools.local.with_parent import with_parent
from ssfl.tools.operate.admin_client import AdminClient

START_DEADLINE_S = 60.0
END_DEADLINE_S = 15.0
# Exit codes of mistakes that the user can correct.
_USER_ERRORS = (ExitCode.USAGE, ExitCode.BAD_DATA, ExitCode.REFUSED, ExitCode.PORT_IN_USE)
COORDINATOR = "coordinator"


def client_ids(shards: Sequence[str]) -> dict[str, str]:
    """Return a client id for every shard: its name, or client_NN if the name cannot be an id.

    Ids name files in a folder that also holds the coordinator's, so no id may be `coordinator`.
    """
    ids: dict[str, str] = {}
    for number, name in enumerate(shards):
        fits = CLIENT_ID.fullmatch(name) and name != COORDINATOR
        other = f"client_{number:02}"
        while not fits and other in {*shards, *ids.values()}:
            other += "_"
        ids[name] = name if fits else other
    return ids


class LocalFederation:
    """The processes of one run, which end with the `with` block, or if this process is killed."""

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
        self._processes: dict[str, subprocess.Popen[bytes] | Forked] = {}
        self._commands: dict[str, Sequence[str]] = {}
        self._expected_to_die: set[str] = set()  # names of processes
        self.admin: AdminClient
        self.status_url = ""  # of the status page, if --status-port is among the flags

    @property
    def clients(self) -> list[str]:
        return list(self._clients.values())

    @property
    def state_dir(self) -> Path:
        """The state directory of the coordinator."""
        return self.folder / "state"

    @property
    def clients_dir(self) -> Path:
        """The folder of the clients' state directories."""
        return self.folder / "clients"

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def ended(self) -> list[str]:
        """Return the processes that ended with code 0; raise ProgramError if another one failed.

        A process that is expected to die does not count as failed.
        """
        done = []
        for name, process in self._processes.items():
            code = process.poll()
            if code == 0:
                done.append(name)
            elif code is not None and name not in self._expected_to_die:
                exit_code = next((known for known in _USER_ERRORS if known == code), ExitCode.BUG)
                raise ProgramError(self._error_of(name, code), exit_code)
        return done

    def close(self) -> None:
        """End every process: SIGTERM, a wait, then SIGKILL."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)  # a suspended process cannot end
                process.terminate()
        deadline_s = time.monotonic() + END_DEADLINE_S
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline_s - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()
        self._processes.clear()

    def kill(self, name: str) -> None:
        """End a process with SIGKILL."""
        self._expected_to_die.add(name)
        self._processes[name].kill()
        self._processes[name].wait()

    def was_killed(self, name: str) -> bool:
        """Return True if a process was ended by SIGKILL."""
        return self._processes[name].poll() == -signal.SIGKILL

    def restart(self, name: str, failpoint: str = "") -> None:
        """Start a killed process again; with a `failpoint`, it dies there."""
        if not failpoint:
            self._expected_to_die.discard(name)
        self._start(name, self._commands[name], **{failpoints.VARIABLE: failpoint})
        if name == COORDINATOR:
            self.admin.close()
            self.admin = AdminClient(f"127.0.0.1:{self._ports()[1]}")

    def send_signal(self, name: str, number: int) -> None:
        """Send a signal to a process."""
        self._processes[name].send_signal(number)

    def log_of(self, name: str) -> list[str]:
        """Return the log lines of a process, including those before a restart."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace").splitlines()

    def _start_all(self) -> None:
        common = ["--out-dir", str(self.folder / "models")]

        def coordinator(port: str, admin_port: str) -> list[str]:
            return ["ssfl.server.main", "--port", port, "--admin-port", admin_port,
                    "--state-dir", str(self.state_dir), *common, *self._flags]  # fmt: skip

        self._start(COORDINATOR, coordinator("0", "0"))
        port, admin_port, *status = self._ports()
        again = coordinator(port, admin_port)  # a restarted coordinator keeps its ports
        if status:
            again += ["--status-port", status[0]]
            self.status_url = f"http://127.0.0.1:{status[0]}/"
        self._commands[COORDINATOR] = again
        self.admin = AdminClient(f"127.0.0.1:{admin_port}")
        for shard, name in self._clients.items():
            self._start(
                name,
                ["ssfl.client.main", f"--data={shard}", "--data-root", str(self._shards),
                 f"--client-id={name}", "--coordinator", f"127.0.0.1:{port}", *common,
                 "--state-dir", str(self.clients_dir), *self._client_flags],
            )  # fmt: skip

    def _start(self, name: str, command: Sequence[str], **variables: str) -> None:
        """Start a process; `command` is a module and its flags."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SSFL_")}
        environment = {**inherited, **variables}
        self._commands[name] = command
        # A coordinator is not forked, since its memory would include modules that it does not use.
        server = None if name == COORDINATOR else shared_client_server()
        with (
            (self.folder / f"{name}.out").open("wb") as out,
            (self.folder / f"{name}.log").open("ab") as log,
        ):
            if server:
                module, *flags = command
                process = server.start(module, flags, stdout=out, stderr=log, env=environment)
                self._processes[name] = process
                return
            self._processes[name] = subprocess.Popen(
                [*with_parent(), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only this process, which ends the others
            )

    def _ports(self) -> list[str]:
        """Return the ports that the coordinator printed: client, admin and possibly status."""
        count = 3 if "--status-port" in self._flags else 2
        path, deadline_s = self.folder / f"{COORDINATOR}.out", time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline_s:
            self.ended()
            lines = path.read_text().splitlines()
            if len(lines) >= count:
                return [line.rpartition(":")[2] for line in lines[:count]]
            time.sleep(0.02)
        text = f"the coordinator did not start within {START_DEADLINE_S:g} s"
        raise ProgramError(f"{text}:\n{self._tail(COORDINATOR)}", ExitCode.BUG)

    def _error_of(self, name: str, code: int) -> str:
        """Return the error message of a process, or else the end of its log."""
        lines = self.log_of(name)
        errors = [n for n, line in enumerate(lines) if re.match(r"ssfl-\w+: error: ", line)]
        if not errors:
            return f"{name} ended with code {code}:\n{self._tail(name)}"
        message = "\n".join(lines[errors[-1] :]).partition(": error: ")[2]
        return f"{name}: {message}\n(its log: {self.folder / name}.log)"

    def _tail(self, name: str) -> str:
        return "\n".join(self.log_of(name)[-15:])
