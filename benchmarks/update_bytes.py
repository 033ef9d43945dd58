"""How many bytes does an update take beyond its values?

    python -m benchmarks.update_bytes

A real `ssfl-coordinator` and one client (async_client.py) on a real socket, with the value counts
of ResNet-18 and the small CNN at 90 % sparsity. There is no training: bytes do not depend on the
values. Counted for one round, in both directions: the values, the protobuf messages around them,
and the kernel's count of the client's socket (TCP_INFO: HTTP/2 framing, headers and window updates,
without TCP/IP headers). Writes benchmarks/results/update_bytes.json and .png; exit code 1 if the
framing of messages is over the bar.
"""

import argparse
import asyncio
import os
import socket
import struct
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from benchmarks import environment
from benchmarks.async_client import AsyncClient
from benchmarks.coordinator_process import Coordinator, coordinator
from benchmarks.workload import Workload, digest

# linux/tcp.h, struct tcp_info: u64 tcpi_bytes_received and u64 tcpi_bytes_sent.
RECEIVED_AT, SENT_AT, INFO_BYTES = 128, 200, 208


@dataclass(frozen=True)
class ModelSize:
    """The number of values of a model, and the allowed bytes beyond its kept values."""

    name: str
    num_masked: int
    num_dense: int
    bar: str

    def allowed(self, payload_bytes: int) -> int:
        return payload_bytes // 100 if self.bar == "1 %" else int(self.bar.split()[0])


MODELS = (
    ModelSize("ResNet-18", 11_164_352, 9_610, "1 %"),
    ModelSize("small CNN", 22_416, 186, "512 bytes"),  # 8x8 grey digits, 10 classes
)


@dataclass(frozen=True)
class Bytes:
    """One transfer, counted at three levels."""

    payload: int
    messages: int
    socket: int


class ClientSocket:
    """The client's end of its connection, as counted by the kernel."""

    def __init__(self, server: Coordinator) -> None:
        port = int(server.address.rpartition(":")[2])
        (found,) = (
            c for c in psutil.Process().net_connections("tcp") if c.raddr and c.raddr.port == port
        )
        self._socket = socket.socket(fileno=os.dup(found.fd))

    def __enter__(self) -> "ClientSocket":
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def totals(self) -> tuple[int, int]:
        """Return bytes sent and received so far."""
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
        if len(info) < INFO_BYTES:
            raise RuntimeError("this kernel does not count bytes in TCP_INFO (Linux 4.19 does)")
        (sent,), (received,) = (struct.unpack_from("Q", info, at) for at in (SENT_AT, RECEIVED_AT))
        return sent, received


async def measure_all() -> list[dict[str, Any]]:
    """Measure every model with a coordinator of its own."""
    rows = []
    for model in MODELS:
        with tempfile.TemporaryDirectory(prefix="ssfl-bytes-") as folder:
            rows.append(await measure(model, Path(folder)))
    return rows


async def measure(model: ModelSize, folder: Path) -> dict[str, Any]:
    """Run one round; return the bytes of its download and upload."""
    workload = Workload(model.num_masked, model.num_dense, weights=[100])
    flags = ["--clients", "1", "--min-clients", "1", "--rounds", "2", "--log-level", "warning"]
    initial = digest(workload.initial)
    with coordinator(folder, *flags) as server:
        client = AsyncClient(server.address, "site", 100, workload.manifest)
        await client.join()
        await client.receive(client.ask(initial))
        await client.initialize(initial)
        scoring = await client.receive(client.ask(initial))
        await client.send_scores(scoring, _encoded(workload.scores(0)))
        first = await client.receive(client.ask(initial))  # with the mask, which is sent once
        await client.send_update(first, _encoded(workload.update(0, 0)))
        earlier = client.sent.message_bytes
        with ClientSocket(server) as wire:
            result = await _round(client, workload, wire, initial)
        result["both_rounds"] = {
            "sent": earlier + result["up"]["messages"],
            "ledger": await _ledger(server),
        }
        await client.close()
    return {**asdict(model), "kept_values": workload.num_kept, **result}


async def _round(
    client: AsyncClient, workload: Workload, wire: ClientSocket, initial: bytes
) -> dict[str, Any]:
    """Take part in the second round, which is like all later ones."""
    before = wire.totals()
    task = await client.receive(client.ask(initial))
    after = wire.totals()
    base_bytes = len(task.parts["base"])
    down = Bytes(base_bytes, client.received_bytes, after[1] - before[1])
    payload = _encoded(workload.update(1, 0))
    poll = await client.ask_and_wait(initial, task.message.step)
    before = wire.totals()
    await client.send_update(task, payload)
    after = wire.totals()
    up = Bytes(len(payload), client.sent.message_bytes, after[0] - before[0])
    poll.cancel()
    return {"up": asdict(up), "down": asdict(down)}


async def _ledger(server: Coordinator) -> int:
    """Return the coordinator's count of the messages of all updates."""
    status = await server.status()
    rows = [r for r in status.ledger if (r.phase, r.direction) == ("values", "up")]
    return sum(r.message_bytes for r in rows)


def _encoded(values: Any) -> memoryview:
    return memoryview(values.astype("<f4").tobytes())


def framing(row: dict[str, Any]) -> int:
    """Return the bytes of an update's messages beyond its values."""
    return int(row["up"]["messages"] - row["up"]["payload"])


def within_bar(row: dict[str, Any]) -> bool:
    """Return True if the framing is within the bar and the ledger has the same count."""
    model = next(model for model in MODELS if model.name == row["name"])
    agrees = bool(row["both_rounds"]["sent"] == row["both_rounds"]["ledger"])
    return agrees and framing(row) <= model.allowed(row["up"]["payload"])


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    print(f"{'one round':<16}{'values':>12}{'messages':>12}{'more':>8}{'socket':>12}{'more':>8}")
    for row in rows:
        for direction in ("up", "down"):
            transfer = Bytes(**row[direction])
            more = [
                f"{part / transfer.payload - 1:.3%}"
                for part in (transfer.messages, transfer.socket)
            ]
            print(
                f"{row['name'] + ' ' + direction:<16}{transfer.payload:>12,}"
                f"{transfer.messages:>12,}{more[0]:>8}{transfer.socket:>12,}{more[1]:>8}"
            )
        word = "met" if within_bar(row) else "FAILED"
        print(f"  framing of the update: {framing(row):,} bytes, bar {row['bar']}: {word}")


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the bytes beyond the values."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(rows), figsize=(9, 3.2), layout="constrained")
    for axis, row in zip(axes, rows, strict=True):
        for place, direction in enumerate(("up", "down")):
            transfer = Bytes(**row[direction])
            messages = transfer.messages - transfer.payload
            axis.bar(place, messages, color="C0", label="messages" if not place else None)
            rest = transfer.socket - transfer.messages
            axis.bar(place, rest, bottom=messages, color="C1", label=None if place else "HTTP/2")
        axis.set_xticks([0, 1], ["update (up)", "base (down)"])
        axis.set_ylabel("bytes beyond the values")
        axis.set_title(f"{row['name']}: {row['up']['payload']:,} bytes of values", fontsize=9)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    rows = asyncio.run(measure_all())
    environment.write(args.out / "update_bytes.json", {"models": rows})
    if not args.no_plot:
        plot(rows, args.out / "update_bytes.png")
    show(rows)
    return 0 if all(within_bar(row) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
