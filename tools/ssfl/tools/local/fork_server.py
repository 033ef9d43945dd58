"""Start programs as forks of a process that has imported their modules.

Importing torch takes a client seconds of CPU time; a fork has it at once. The server imports the
modules and waits for requests on its stdin, a Unix socket. Each fork takes over the files, folder,
variables and flags of a request and runs the program's `main` in a session of its own.

The server must not start a thread or a gRPC call, since neither survives a fork. It works on Linux
only. It ends with the process that started it, and its forks end with it.
"""

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

from ssfl.durable import failpoints
from ssfl.tools.local.with_parent import end_with_parent, with_parent

CLIENT_MODULES = (
    "torch", "torch._dynamo",  # the first optimizer imports it
    "ssfl.client.main", "ssfl.client.take_part", "ssfl.learning.image_task",
)  # fmt: skip
_POLL_S = 0.01
_LENGTH = struct.Struct(">I")


class Forked:
    """A forked program, with the methods of subprocess.Popen that its owner needs."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        if self.returncode is None:
            self.returncode = self._server.exit_code_of(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the program's end and return its exit code; raise TimeoutExpired."""
        end_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end_s is not None and time.monotonic() >= end_s:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:  # an ended program keeps its id until it is polled
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks; it imports `modules` while its owner does something else."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [*with_parent(), "ssfl.tools.local.fork_server", *modules],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the owner alone
            )

    def start(
        self,
        module: str,
        flags: Sequence[str],
        *,
        stdout: IO[bytes],
        stderr: IO[bytes],
        env: Mapping[str, str],
        cwd: Path | None = None,
        program: str = "",
    ) -> Forked:
        """Start `main` of a module; `program`, a path of a script or a name, is sys.argv[0]."""
        argv, folder = [program or module, *flags], str(cwd or Path.cwd())
        request = {"module": module, "argv": argv, "env": dict(env), "cwd": folder}
        answer = self._ask(request, [stdout.fileno(), stderr.fileno()])
        if answer is None:
            raise ChildProcessError("the process that forks programs has ended")
        return Forked(self, answer["pid"])

    def exit_code_of(self, pid: int) -> int | None:
        """Return a fork's exit code as subprocess does, or None while it runs."""
        answer = self._ask({"poll": pid})
        if answer is None:
            return -signal.SIGKILL  # the forks of a server that has ended end with it
        code: int | None = answer["code"]
        return code

    def close(self) -> None:
        """End the server, and with it every fork that still runs."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, request: dict[str, Any], files: Sequence[int] = ()) -> dict[str, Any] | None:
        data = json.dumps(request).encode()
        with self._lock:
            try:
                socket.send_fds(self._socket, [_LENGTH.pack(len(data))], files)
                self._socket.sendall(data)
                return _receive(self._socket, _exactly(self._socket, _LENGTH.size))
            except OSError:
                return None


@cache
def shared_client_server() -> ForkServer | None:
    """Return the fork server for clients, started at the first call; None where none can work.

    Call it early: it imports torch while the caller prepares a run.
    """
    if sys.platform != "linux":  # other systems' libraries do not survive a fork
        return None
    server = ForkServer(CLIENT_MODULES)
    atexit.register(server.close)
    return server


def _exactly(source: socket.socket, size: int) -> bytes:
    """Return `size` bytes; raise ConnectionError if the other side has ended."""
    data = source.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise ConnectionError("the other side has ended")
    return data


def _receive(source: socket.socket, head: bytes) -> dict[str, Any]:
    """Return the document whose length is in `head`."""
    document: dict[str, Any] = json.loads(_exactly(source, *_LENGTH.unpack(head)))
    return document


def _serve(owner: socket.socket) -> Callable[[], int] | None:
    """Answer requests until the owner ends; in a fork, return the program to run."""
    while True:
        head, files, _, _ = socket.recv_fds(owner, _LENGTH.size, 2)
        if len(head) < _LENGTH.size:
            return None
        request = _receive(owner, head)
        if "poll" in request:
            ended, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = {"code": os.waitstatus_to_exitcode(status) if ended else None}
        else:
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                return partial(_run, request, files, server)
            for file in files:
                os.close(file)
            answer = {"pid": pid}
        data = json.dumps(answer).encode()
        owner.sendall(_LENGTH.pack(len(data)) + data)


def _run(request: dict[str, Any], files: Sequence[int], server: int) -> int:
    """Become the program of a request and return its exit code."""
    os.setsid()
    end_with_parent(server)
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = request["argv"]
    if (script := Path(sys.argv[0])).is_absolute():
        sys.path[0] = str(script.parent)  # as Python does for a script
    code: int = importlib.import_module(request["module"]).main()
    return code


def main() -> int:
    """Serve; in a fork, run the program and return its exit code."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that a fork's collector does not copy what it shares with the server
    with socket.socket(fileno=os.dup(0)) as owner:
        program = _serve(owner)
    return program() if program else 0


if __name__ == "__main__":
    sys.exit(main())
