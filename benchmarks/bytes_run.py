"""A real run of ResNet-18 over sockets; its ledger is compared with the kernel's counters.

`ssfl-coordinator` and `ssfl-client` run as processes on loopback. The ledger (ledger.csv) counts
protobuf messages by client. The kernel's count does not involve the coordinator: this process
duplicates the client's socket (pidfd_getfd) when it appears and reads TCP_INFO after the client
has ended, so no bytes are missed. The kernel counts more because of HTTP/2: frame headers, header
blocks, window updates and pings.
"""

import csv
import ctypes
import os
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from benchmarks.bytes_models import CASES, ImageSet
from benchmarks.bytes_rounds import Cost
from benchmarks.coordinator_process import Coordinator, coordinator
from benchmarks.update_bytes import INFO_BYTES, RECEIVED_AT, SENT_AT

from ssfl.datasets.shards.shard_file import write_shard

MODEL = CASES[0]
CLIENTS, ROUNDS = 2, 2
KINDS = ("payload_bytes", "message_bytes", "socket_bytes")  # of the ledger
LONGEST_S = 900.0
TOLERANCE = 0.01  # share of the kernel's bytes
MIN_BYTES = 10_000_000  # smaller runs are dominated by framing
_PIDFD_GETFD = 438  # the same number on every architecture
_RETRANSMITTED_AT = 208  # struct tcp_info: u64 tcpi_bytes_retrans follows tcpi_bytes_sent
RunRow = Mapping[str, str]


@dataclass(frozen=True)
class CountedConnection:
    """One direction of a client's connection, counted by the coordinator and by the kernel."""

    client: str
    direction: str
    payload_bytes: int
    message_bytes: int
    socket_bytes: int  # counted at the coordinator's end
    kernel_bytes: int  # counted at the client's end

    @property
    def difference(self) -> float:
        return (self.kernel_bytes - self.message_bytes) / self.kernel_bytes

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        return {
            "client": self.client,
            "direction": self.direction,
            "payload_bytes": self.payload_bytes,
            "message_bytes": self.message_bytes,
            "socket_bytes": self.socket_bytes,
            "kernel_bytes": self.kernel_bytes,
            "difference_percent": round(100 * self.difference, 4),
        }


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run and its bytes."""

    name: str
    flags: Sequence[str]
    rows: list[RunRow] = field(repr=False)  # of ledger.csv
    connections: list[CountedConnection]

    @property
    def total_bytes(self) -> int:
        return sum(connection.kernel_bytes for connection in self.connections)

    @property
    def agrees(self) -> bool:
        enough = self.total_bytes >= MIN_BYTES
        return enough and all(connection.agrees for connection in self.connections)

    def cost(self, kind: str = "message_bytes") -> Cost:
        """Return the bytes of one client, once and in the last round, which is like all later ones.

        The first base follows from weights and mask, so the first round has no download.
        """
        last = str(ROUNDS - 1)
        once = (self._mean(kind, phase) for phase in ("initial", "scores", "mask"))
        both = (self._mean(kind, "values", direction, last) for direction in ("up", "down"))
        return Cost(*once, *both)

    def _mean(self, kind: str, phase: str, direction: str = "", round_number: str = "") -> int:
        """Return the mean over clients of a phase's bytes."""
        total = 0
        for row in self.rows:
            wanted = row["phase"] == phase and direction in ("", row["direction"])
            if wanted and round_number in ("", row["round"]):
                total += int(row[kind] or 0)
        return round(total / CLIENTS)

    def encodings(self) -> dict[str, str]:
        """Return the encoding of each phase with tensors."""
        found: dict[str, set[str]] = {}
        for row in self.rows:
            if int(row["payload_bytes"] or 0):
                name = f"{row['phase']} {row['direction']}"
                found.setdefault(name, set()).add(row["encoding"])
        return {name: ", ".join(sorted(encodings)) for name, encodings in found.items()}

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "flags": list(self.flags),
            "clients": CLIENTS,
            "rounds": ROUNDS,
            "encodings": self.encodings(),
            "payloads_of_a_client": self.cost("payload_bytes").to_dict(),
            "messages_of_a_client": self.cost().to_dict(),
            "connections": [connection.to_dict() for connection in self.connections],
        }


def run(
    name: str, flags: Sequence[str], images: ImageSet, local_steps: int, folder: Path
) -> MeasuredRun:
    """Run a federation to its end."""
    for client in range(CLIENTS):
        write_shard(folder / f"site_{client}.npz", images.shard(client, MODEL.num_classes))
    of_run = [
        f"--model={MODEL.model}", f"--clients={CLIENTS}", f"--rounds={ROUNDS}",
        f"--local-steps={local_steps}", "--evaluate-every=0", "--exit-when-done",
        "--reference-coding=on",
        "--log-level=warning", *flags,
    ]  # fmt: skip
    taps: dict[str, Tap] = {}
    with ExitStack() as stack:
        server = stack.enter_context(coordinator(folder, *of_run))
        for client in range(CLIENTS):
            process = stack.enter_context(_client(folder, f"site_{client}", server))
            taps[f"site_{client}"] = stack.enter_context(Tap(process, server))
        _wait(list(taps.values()), server)
        carried = {client: tap.carried() for client, tap in taps.items()}
    (ledger,) = folder.glob("runs/*/coordinator/ledger.csv")
    with ledger.open(newline="") as file:
        rows: list[RunRow] = list(csv.DictReader(file))
    return MeasuredRun(name, flags, rows, list(_compare(rows, carried)))


def _compare(rows: list[RunRow], carried: dict[str, dict[str, int]]) -> Iterator[CountedConnection]:
    """Yield the sums of the ledger with those of the kernel."""
    sums: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        for kind in KINDS:
            sums[row["client"], row["direction"], kind] += int(row[kind] or 0)
    for client, directions in carried.items():
        for direction, kernel in directions.items():
            payload, message, on_socket = (sums[client, direction, kind] for kind in KINDS)
            yield CountedConnection(client, direction, payload, message, on_socket, kernel)


class Tap:
    """Duplicates of every socket that a client opens to the coordinator."""

    def __init__(self, process: subprocess.Popen[bytes], server: Coordinator) -> None:
        self.process = process
        self._port = int(server.address.rpartition(":")[2])
        self._seen: dict[int, socket.socket] = {}  # by inode
        self._pidfd = os.pidfd_open(process.pid)

    def __enter__(self) -> "Tap":
        return self

    def __exit__(self, *_error: object) -> None:
        for counts in self._seen.values():
            counts.close()
        os.close(self._pidfd)

    def look(self) -> None:
        """Duplicate new connections."""
        with suppress(psutil.Error, OSError):  # the client may end meanwhile
            for found in psutil.Process(self.process.pid).net_connections("tcp"):
                if found.raddr and found.raddr.port == self._port:
                    self._hold(found.fd)

    def _hold(self, file: int) -> None:
        own = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, self._pidfd, file, 0)
        if own < 0:
            code = ctypes.get_errno()
            raise PermissionError(code, f"pidfd_getfd: {os.strerror(code)}")
        held = socket.socket(fileno=own)
        if self._seen.setdefault(os.fstat(own).st_ino, held) is not held:
            held.close()

    def carried(self) -> dict[str, int]:
        """Return the bytes that TCP carried up and down, without retransmissions."""
        if not self._seen:
            raise RuntimeError("no connection of the client was found")
        up = down = 0
        for held in self._seen.values():
            info = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES + 8)
            if len(info) < INFO_BYTES + 8:
                raise RuntimeError("this kernel does not count bytes in TCP_INFO (Linux 4.19 does)")
            (sent,), (again,) = (
                struct.unpack_from("Q", info, at) for at in (SENT_AT, _RETRANSMITTED_AT)
            )
            up += sent - again
            down += struct.unpack_from("Q", info, RECEIVED_AT)[0]
        return {"up": up, "down": down}


def _wait(taps: list[Tap], server: Coordinator) -> None:
    """Watch for connections until all processes have exited with 0."""
    end_s = time.monotonic() + LONGEST_S
    processes: list[subprocess.Popen[Any]] = [server.process, *(tap.process for tap in taps)]
    while any(process.poll() is None for process in processes):
        for tap in taps:
            tap.look()
        if time.monotonic() > end_s:
            raise RuntimeError(f"the run did not end within {LONGEST_S:g} s")
        time.sleep(0.05)
    codes = [process.returncode for process in processes]
    if any(codes):
        raise RuntimeError(f"coordinator and clients ended with exit codes {codes}")


@contextmanager
def _client(folder: Path, name: str, server: Coordinator) -> Iterator[subprocess.Popen[bytes]]:
    """Start a client on a shard in the folder."""
    program = Path(sys.executable).with_name("ssfl-client")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SSFL_")}
    flags = [
        f"--data={name}", f"--data-root={folder}", f"--coordinator={server.address}",
        f"--state-dir={folder / 'clients'}", f"--out-dir={folder / 'runs'}",
        "--log-level=warning",
    ]  # fmt: skip
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), *flags], stdout=log, stderr=log, env=environment, cwd=folder
        )
    try:
        yield process
    except BaseException as error:
        error.add_note(f"the log of {name}:\n" + (folder / f"{name}.log").read_text()[-4000:])
        raise
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
