"""Runs our programs as processes in one folder, over real sockets.

Coordinators and clients are forks of a process that has imported their modules
(ssfl.tools.local.fork_server), which saves seconds of CPU time per start. `Programs(folder,
forked=False)` starts the installed commands instead. The reference run `undisturbed` uses it, so
every digest is compared with theirs. `ssfl` is always its installed command.

Nothing here sleeps for a condition: `until` polls it against a generous deadline, which is
reached only if something is wrong.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import grpc

from ssfl.server.storage.journal import Journal
from ssfl.tools.local.fork_server import CLIENT_MODULES, Forked, ForkServer
from ssfl.v1 import admin_pb2, admin_pb2_grpc

SCRIPTS = Path(sys.executable).parent
MODULES = {"ssfl-coordinator": "ssfl.server.main", "ssfl-client": "ssfl.client.main"}
# Variables that a forked program reads. Others, such as OMP_NUM_THREADS, are read while modules are
# imported, before the fork.
READ_LATER = {"FAILPOINTS", "HOLD_FILE"}
DEADLINE_S = 120.0

Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str, deadline_s: float = DEADLINE_S) -> Found:
    """Return the first true result of `condition`; fail at the deadline, naming `what`."""
    end_s = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end_s, f"{what}: not within {deadline_s:g} s"
        time.sleep(0.01)
    return found


@cache
def fork_server(with_torch: bool) -> ForkServer:
    """Return the fork server of clients, or that of coordinators, which has no torch."""
    server = ForkServer(CLIENT_MODULES if with_torch else [MODULES["ssfl-coordinator"]])
    atexit.register(server.close)
    return server


_ports = count(os.getpid() * 61)


def free_port() -> int:
    """Return a free port below the ephemeral range of the kernel.

    No other process gets it while a coordinator on that port restarts.
    """
    while True:
        port = 10_000 + next(_ports) % 20_000
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


class Program:
    """One process of ours; stdout and stderr go to files in its folder."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        env: dict[str, str],
        forked: bool = False,
    ) -> None:
        self.name = name
        self.folder = folder
        self.process: subprocess.Popen[bytes] | Forked
        self.out_file, self.err_file = folder / f"{name}.out", folder / f"{name}.err"
        with self.out_file.open("wb") as out, self.err_file.open("wb") as err:
            if forked:
                path, *flags = (str(word) for word in command)
                script = Path(path).name
                server = fork_server(with_torch=script != "ssfl-coordinator")
                self.process = server.start(
                    MODULES[script],
                    flags,
                    cwd=folder,
                    env=env,
                    stdout=out,
                    stderr=err,
                    program=path,
                )
                return
            self.process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def out(self) -> str:
        return self.out_file.read_text("utf-8")

    @property
    def err(self) -> str:
        return self.err_file.read_text("utf-8")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def says(self, text: str) -> str:
        """Wait for a log line that contains `text` and return it; fail if the program ends."""

        def line() -> str:
            whole = self.err.rpartition("\n")[0]  # without an unfinished line
            found = [log_line for log_line in whole.splitlines() if text in log_line]
            assert found or self.running, f"{self.name} ended without {text!r}:\n{self.err}"
            return found[0] if found else ""

        return until(line, f"{self.name} says {text!r}")

    def ends(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the program to end and return its exit code."""
        until(lambda: not self.running, f"{self.name} ends", deadline_s)
        return self.process.wait()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Coordinator(Program):
    """A coordinator and its admin port."""

    port = admin_port = 0
    credentials: grpc.ChannelCredentials | None = None  # of `admin`, if the port uses TLS

    def listens(self) -> "Coordinator":
        """Wait until the coordinator prints both ports."""

        def lines() -> list[str]:
            assert self.running or self.out.count("\n") >= 2, f"no coordinator:\n{self.err}"
            found = self.out.splitlines()
            return found if self.out.count("\n") >= 2 else []

        first, second, *_ = until(lines, "the coordinator prints its ports")
        assert first.startswith("ssfl-coordinator listening on ")
        assert second.startswith("ssfl-coordinator admin on ")
        self.port, self.admin_port = (int(line.rpartition(":")[2]) for line in (first, second))
        return self

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    @property
    def state_dir(self) -> Path:
        return self.folder / ".ssfl" / "coordinator"

    def status(self) -> admin_pb2.GetStatusResponse:
        """Return the answer to GetStatus."""
        address, credentials = f"localhost:{self.admin_port}", self.credentials
        with (
            grpc.secure_channel(address, credentials)
            if credentials
            else grpc.insecure_channel(address) as channel
        ):
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            answer: admin_pb2.GetStatusResponse = stub.GetStatus(
                admin_pb2.GetStatusRequest(), timeout=20
            )
        return answer

    def client_state(self, client: str) -> str:
        """Return the state of a client as in `ssfl status`; empty if it has not joined."""
        states = {status.client_id: status.state for status in self.status().clients}
        return states.get(client, "")

    def waits_for(self, client: str, state: str = "") -> None:
        """Wait until a client has joined, or is in the given state."""

        def is_there() -> bool:
            now = self.client_state(client)
            return bool(now) and state in ("", now)

        until(is_there, f"{client} is {state or 'there'}")

    def facts(self, kind: str = "") -> list[dict[str, Any]]:
        """Return the facts in the journal, or those of one kind."""
        return [fact for fact in journal(self.state_dir / "journal") if kind in ("", fact["fact"])]

    def history(self) -> dict[str, Any]:
        """Return history.json of the finished run."""
        (file,) = self.folder.glob("runs/*/coordinator/history.json")
        document: dict[str, Any] = json.loads(file.read_bytes())
        return document


def journal(path: Path) -> list[dict[str, Any]]:
    """Return the facts of a journal that may be in use: a copy is opened, without a torn tail."""
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "journal"
        copy.write_bytes(path.read_bytes())
        opened = Journal(copy)
        opened.close()
        return [json.loads(record) for record in opened.records]


class Programs:
    """All processes of a test; `end_all` ends them."""

    def __init__(self, folder: Path, forked: bool = True) -> None:
        self.folder = folder
        self.scripts = SCRIPTS
        self.forked = forked and sys.platform == "linux"
        self.started: list[Program] = []

    def coordinator(
        self, *flags: str, port: int = 0, state_of: str = "", **env: str
    ) -> Coordinator:
        """Start a coordinator and wait until it listens."""
        return self.try_coordinator(*flags, port=port, state_of=state_of, **env).listens()

    def try_coordinator(
        self, *flags: str, port: int = 0, state_of: str = "", **env: str
    ) -> Coordinator:
        """Start a coordinator that may fail to start. `state_of`: its own state directory."""
        name = f"coordinator-{len(self.started)}"
        port = port or (free_port() if self.forked else 0)
        ports = [f"--port={port}", "--admin-port=0"]
        state = [f"--state-dir=.ssfl/{state_of}"] if state_of else []
        command: list[str | Path] = [self.scripts / "ssfl-coordinator", *ports, *state, *flags]
        program = Coordinator(name, command, self.folder, environment() | env, self._forks(env))
        self.started.append(program)
        return program

    def client(
        self, shard: str, coordinator: Coordinator | str, *flags: str, **env: str
    ) -> Program:
        """Start a client on a shard."""
        address = coordinator if isinstance(coordinator, str) else coordinator.address
        command: list[str | Path] = [
            self.scripts / "ssfl-client", f"--data={shard}", f"--coordinator={address}", *flags,
        ]  # fmt: skip
        name = f"{shard}-{len(self.started)}"
        program = Program(name, command, self.folder, environment() | env, self._forks(env))
        self.started.append(program)
        return program

    def start(self, script: str, *flags: str) -> Program:
        """Start a script."""
        name = f"{script}-{len(self.started)}"
        forked = self._forks({}) and script in MODULES
        program = Program(name, [self.scripts / script, *flags], self.folder, environment(), forked)
        self.started.append(program)
        return program

    def run(self, script: str, *flags: str) -> Program:
        """Run a script to its end."""
        program = self.start(script, *flags)
        program.ends()
        return program

    def _forks(self, env: dict[str, str]) -> bool:
        return self.forked and self.scripts == SCRIPTS and env.keys() <= READ_LATER

    def end_all(self) -> None:
        """Kill running programs and print every log, which pytest shows if the test failed."""
        for program in self.started:
            if program.running:
                program.kill()
        for program in self.started:
            print(f"--- {program.name}: exit {program.process.returncode}")
            print(program.out + program.err)


def environment() -> dict[str, str]:
    """Return the environment without ssfl settings and without colour."""
    inherited = {name: value for name, value in os.environ.items() if name[:5] != "SSFL_"}
    return inherited | {"NO_COLOR": "1"}
