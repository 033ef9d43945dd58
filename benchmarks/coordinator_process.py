"""A real `ssfl-coordinator` process and its ports, memory and CPU time."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import psutil

from ssfl.v1 import admin_pb2, admin_pb2_grpc

STOP_S = 20.0


@dataclass(frozen=True)
class Coordinator:
    """A running coordinator."""

    process: subprocess.Popen[str]
    addresses: dict[str, str]  # by name, as it prints them: listening, admin, metrics, …

    @property
    def address(self) -> str:
        """The address for clients."""
        return self.addresses["listening"]

    @property
    def admin_address(self) -> str:
        return self.addresses["admin"]

    def resident_bytes(self) -> int:
        """Return the resident memory, counted page by page (statm may lag by megabytes)."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return 1024 * int(re.findall(r"^Rss:\s+(\d+) kB", text, re.MULTILINE)[0])

    def peak_resident_bytes(self) -> int:
        """Return the largest resident memory so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.findall(r"^VmHWM:\s+(\d+) kB", text, re.MULTILINE)[0])

    def forget_peak(self) -> None:
        """Reset the largest resident memory."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def cpu_s(self) -> float:
        """Return its CPU seconds, user and system."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def num_connections(self) -> int:
        """Return the number of TCP connections of clients."""
        port = int(self.address.rpartition(":")[2])
        found = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == port for c in found)

    def num_threads(self) -> int:
        return int(psutil.Process(self.process.pid).num_threads())

    async def start_run(self) -> None:
        """Do what `ssfl start` does."""
        async with grpc.aio.insecure_channel(self.admin_address) as channel:
            stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
            await stub.StartRun(admin_pb2.StartRunRequest())

    async def status(self) -> admin_pb2.GetStatusResponse:
        """Return what `ssfl status` shows."""
        async with grpc.aio.insecure_channel(self.admin_address) as channel:
            stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
            response: admin_pb2.GetStatusResponse = await stub.GetStatus(
                admin_pb2.GetStatusRequest()
            )
            return response


@contextmanager
def coordinator(folder: Path, *flags: str, inside: Sequence[str] = ()) -> Iterator[Coordinator]:
    """Start a coordinator that keeps everything in `folder`; stop it at the end.

    `inside` is a command prefix, e.g. to enter a network namespace.
    """
    program = Path(sys.executable).with_name("ssfl-coordinator")
    places = ["--state-dir", str(folder / "state"), "--out-dir", str(folder / "runs")]
    ports = ["--port", "0", "--admin-port", "0"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SSFL_")}
    with (folder / "coordinator.log").open("w") as log:
        process = subprocess.Popen(
            [*inside, str(program), *ports, *places, *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
    try:
        asked = [flag[2:].partition("-port")[0] for flag in flags if "-port" in flag]
        yield Coordinator(process, _addresses(process, {"listening", "admin", *asked}))
    except BaseException as error:
        error.add_note(
            "the coordinator's log:\n" + (folder / "coordinator.log").read_text()[-4000:]
        )
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


def _addresses(process: subprocess.Popen[str], wanted: set[str]) -> dict[str, str]:
    assert process.stdout is not None
    addresses: dict[str, str] = {}
    while not wanted <= addresses.keys():
        line = process.stdout.readline()
        found = re.search(r"(\w+) on (\S+:\d+)$", line)
        if found is None:
            raise RuntimeError(f"the coordinator did not start: {line}")
        addresses[found[1]] = found[2]
    return addresses


class MemorySampler:
    """Samples a coordinator's memory while the benchmark runs."""

    def __init__(self, coordinator: Coordinator, every_s: float = 0.25) -> None:
        self.samples: list[tuple[float, int]] = []  # (seconds since the start, resident bytes)
        self._coordinator = coordinator
        self._every_s = every_s
        self._began_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def look(self) -> int:
        """Take a sample; return the resident bytes."""
        resident = self._coordinator.resident_bytes()
        self.samples.append((self.now_s(), resident))
        return resident

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(self._every_s)
