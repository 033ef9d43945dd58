"""Does an upload cost the coordinator more CPU when the federation is larger?

    python -m benchmarks.upload_cpu

For each number of clients: a real `ssfl-coordinator`, a TCP connection per client, and all uploads
of a round at the same moment, with all long polls open. All federations exist during the whole
benchmark, and their rounds alternate, so other work on the machine affects every number of clients.

The figure is the coordinator's CPU time from the first byte of a round's uploads to the last
receipt, divided by the number of clients: the median of the rounds. It includes the messages that
waiting clients get every 15 s, so it grows with the duration of a round. Their cost is also
measured alone, before the first round. Each client compares each mean with numpy's, bit for bit.

Writes benchmarks/results/upload_cpu.json and .png; exit code 1 if an upload to the largest
federation costs more than the bar, relative to the smallest.
"""

import argparse
import asyncio
import gc
import os
import resource
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.coordinator_process import Coordinator, MemorySampler, coordinator
from benchmarks.many_clients import ClientPool, Marks, allow_files
from benchmarks.workload import Workload, digest

BAR = 1.3  # CPU per upload with the most clients, relative to the fewest
MASKED, DENSE = 2000, 2000  # values of the model; an update has MASKED / 10 + DENSE
WAIT_S = 15.0  # interval of the messages to a waiting client
SPARE_FILES = 500  # open files beyond a connection per client


@dataclass
class Row:
    """The rounds of one federation."""

    clients: int
    cpu_ms: list[float] = field(default_factory=list)  # of the coordinator, per upload
    seconds: list[float] = field(default_factory=list)  # of the uploads of a round
    waiting_cpu_ms: float = 0.0  # per client and WAIT_S, while all clients wait

    @property
    def median_cpu_ms(self) -> float:
        return statistics.median(self.cpu_ms)


class UploadingFederation:
    """A coordinator and its clients, which upload when it is their turn."""

    def __init__(self, server: Coordinator, clients: int, rounds: int) -> None:
        workload = Workload(MASKED, DENSE, [1 + number % 7 for number in range(clients)])
        self.row = Row(clients)
        self._server, self._workload, self._rounds = server, workload, rounds
        # The mask is the coordinator's own, so the first base is not compared.
        self._bases = {n: digest(workload.expected_base(n)) for n in range(1, rounds + 1)}
        self._pool = ClientPool(server.address, workload, 0, Marks(server, MemorySampler(server)))
        self._polls: list[Any] = []
        self._together = asyncio.Barrier(clients + 1)  # the clients and the benchmark

    async def gather(self) -> None:
        """Let all clients join."""
        self._polls = await self._pool.gather()

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Start the run; return when all clients are about to upload."""
        await self._server.start_run()
        for number, poll in enumerate(self._polls):
            group.create_task(self._take_part(number, poll))
        await self._together.wait()

    async def run_round(self) -> None:
        """Let all clients upload; return when all have the next task."""
        began_s, before_s = time.monotonic(), self._server.cpu_s()
        await self._together.wait()  # all begin
        await self._together.wait()  # all have their receipts
        cpu_s = self._server.cpu_s() - before_s
        self.row.cpu_ms.append(1000 * cpu_s / self.row.clients)
        self.row.seconds.append(time.monotonic() - began_s)
        await self._together.wait()

    async def wait(self, idle_s: float) -> None:
        """Measure the CPU time while all clients wait."""
        before_s = self._server.cpu_s()
        await asyncio.sleep(idle_s)
        share = (self._server.cpu_s() - before_s) / idle_s
        self.row.waiting_cpu_ms = 1000 * WAIT_S * share / self.row.clients

    async def close(self) -> None:
        await self._pool.close()

    async def _take_part(self, number: int, poll: Any) -> None:
        client = self._pool.clients[number]
        for round_number in range(self._rounds + 1):
            task = await client.receive(poll)
            expected = self._bases.get(round_number, task.work.base_digest)
            if task.kind != "train" or task.work.base_digest != expected:
                raise RuntimeError(f"the mean after {round_number} rounds differs from numpy's")
            if round_number == self._rounds:
                break
            values = self._workload.update(round_number, number)
            payload = memoryview(values.astype("<f4").tobytes())
            poll = await client.ask_and_wait(digest(self._workload.initial), task.message.step)
            await self._together.wait()  # the turn of other federations
            await self._together.wait()
            await client.send_update(task, payload)
            await self._together.wait()
        await self._together.wait()


async def measure(args: argparse.Namespace, folder: Path) -> list[Row]:
    """Run all federations; return the rounds of each."""
    with ExitStack() as stack:
        federations = []
        for clients in sorted(args.clients):
            (folder / str(clients)).mkdir()
            flags = ["--clients", str(clients + 1)]  # never complete: the run waits for StartRun
            flags += ["--rounds", str(args.rounds + 1), "--evaluate-every", "0"]
            flags += ["--criterion", "random", "--max-connections", str(clients + 100)]
            flags += ["--log-level", "error"]
            server = stack.enter_context(coordinator(folder / str(clients), *flags))
            federations.append(UploadingFederation(server, clients, args.rounds))
        async with asyncio.timeout(args.timeout_s):
            await asyncio.gather(*(federation.gather() for federation in federations))
            gc.freeze()  # the clients stay: exclude them from this process's garbage collection
            async with asyncio.TaskGroup() as group:
                for federation in federations:
                    await federation.start(group)
                await asyncio.gather(*(federation.wait(args.idle_s) for federation in federations))
                for _ in range(args.rounds):
                    for federation in federations:
                        await federation.run_round()
            await asyncio.gather(*(federation.close() for federation in federations))
    return [federation.row for federation in federations]


def plot(rows: list[Row], path: Path) -> None:
    """Draw CPU per upload against the number of clients, with the bar."""
    import matplotlib.pyplot as plt

    clients = [row.clients for row in rows]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(clients, [row.median_cpu_ms for row in rows], "o-", label="median of the rounds")
    for row in rows:
        axes.plot([row.clients] * len(row.cpu_ms), row.cpu_ms, "_", color="C0", alpha=0.6)
    axes.axhline(BAR * rows[0].median_cpu_ms, ls="--", color="0.5", label=f"bar, {BAR}x")
    axes.set(xlabel="clients, all upload at once", ylabel="CPU of the coordinator per upload, ms")
    axes.set(xlim=0, ylim=0)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[500, 1000, 2000, 4000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-s", type=float, default=2 * WAIT_S, help="seconds of waiting")
    parser.add_argument("--timeout-s", type=float, default=1800.0)
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    needed = sum(args.clients) + SPARE_FILES
    allow_files(needed)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < needed:
        print(f"not measured: {needed} open files are needed, and the system allows fewer")
        return 0
    with tempfile.TemporaryDirectory(prefix="ssfl-upload-cpu-") as folder:
        rows = asyncio.run(measure(args, Path(folder)))
    for row in rows:
        print(
            f"{row.clients:>6} clients  {row.median_cpu_ms:6.2f} ms of CPU per upload "
            f"({min(row.cpu_ms):.2f} to {max(row.cpu_ms):.2f}), "
            f"{row.waiting_cpu_ms:.2f} ms for {WAIT_S:g} s of waiting, "
            f"{statistics.median(row.seconds):.1f} s a round"
        )
    ratio = rows[-1].median_cpu_ms / rows[0].median_cpu_ms
    met = ratio <= BAR
    print(f"ratio {ratio:.2f}, bar {BAR}: {'met' if met else 'FAILED'}")
    result = {
        "rows": [{**asdict(row), "median_cpu_ms": row.median_cpu_ms} for row in rows],
        "ratio": ratio,
        "bar": BAR,
        "load_average": os.getloadavg()[1],
        "payload_bytes": 4 * (MASKED // 10 + DENSE),
    }
    environment.write(args.out / "upload_cpu.json", result)
    if not args.no_plot:
        plot(rows, args.out / "upload_cpu.png")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
