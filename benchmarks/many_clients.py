"""How much memory does an idle client cost, and do 500 simultaneous uploads finish?

    python -m benchmarks.many_clients

A real `ssfl-coordinator` process, and 500 clients (async_client.py) in this process with a TCP
connection each. All join and hold a NextTask long poll open for more than two heartbeats. Then the
run starts, and the uploads of every step are sent at the same moment, with all long polls open.
Masks and means are compared with numpy's, bit for bit. Writes benchmarks/results/many_clients.json
and .png; exit code 1 if an idle client costs more than the bar.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from benchmarks import environment
from benchmarks.async_client import AsyncClient, ReceivedTask
from benchmarks.coordinator_process import Coordinator, MemorySampler, coordinator
from benchmarks.workload import Workload, digest

BAR_KB = 100.0  # per idle client; 1 KB is 1000 bytes, the stricter reading
JOIN_AT_ONCE = 50
JOIN_AGAIN_S = 0.5  # after "too_many_joins"
COLOURS = {
    "joining": "#fde3c8",
    "idle": "#eeeeee",
    "tasks go out": "#d5e8f7",
    "uploads of all clients": "#d8efd3",
}
PHASES = {"all idle": "joining", "still idle": "idle", "all have the model": "tasks go out"}


@dataclass(frozen=True)
class Mark:
    """The coordinator at one point of the run."""

    name: str
    at_s: float
    resident_bytes: int
    cpu_s: float
    idle_clients: int = 0


class Marks:
    """The marks of a run, in order."""

    def __init__(self, server: Coordinator, sampler: MemorySampler) -> None:
        self.all: list[Mark] = []
        self._server = server
        self._sampler = sampler

    def set(self, name: str, idle_clients: int = 0) -> Mark:
        resident = self._sampler.look()
        mark = Mark(name, self._sampler.now_s(), resident, self._server.cpu_s(), idle_clients)
        self.all.append(mark)
        return mark


class ClientPool:
    """All clients of the benchmark."""

    def __init__(self, address: str, workload: Workload, rounds: int, marks: Marks) -> None:
        self.workload = workload
        self.marks = marks
        self.clients = [
            AsyncClient(address, f"client_{number:04d}", weight, workload.manifest)
            for number, weight in enumerate(workload.weights)
        ]
        self._initial_digest = digest(workload.initial)
        self._together = asyncio.Barrier(len(self.clients))
        self._base_digests = {n: digest(workload.expected_base(n)) for n in range(rounds + 1)}

    async def gather(self) -> list[Any]:
        """Let all clients join, some at a time; return the open long polls, in client order."""
        first = self.clients[0]
        await first.join()
        await first.receive(first.ask(self._initial_digest))
        await first.initialize(self._initial_digest)
        polls = [await self._idle(first)]
        for start in range(1, len(self.clients), JOIN_AT_ONCE):
            some = self.clients[start : start + JOIN_AT_ONCE]
            polls += await asyncio.gather(*(self._enter(client) for client in some))
            self.marks.set("joining", len(polls))
        return polls

    async def take_part(self, number: int, poll: Any) -> None:
        """Run one client from its first task to the final model."""
        client = self.clients[number]
        while True:
            task = await client.receive(poll)
            self._check(task)
            match task.kind:
                case "score":
                    payload = self._encoded(self.workload.scores(number))
                    name, send = "scores", client.send_scores
                case "train":
                    round_number = task.work.round_number
                    payload = self._encoded(self.workload.update(round_number, number))
                    name, send = f"round {round_number}", client.send_update
                case "evaluate":
                    poll = client.ask(self._initial_digest, task.message.step)
                    await client.send_evaluation(task)
                    continue
                case "finish":
                    await client.leave()
                    return
                case kind:
                    raise RuntimeError(f"an unexpected task: {kind}")
            poll = await self._idle(client, task.message.step)
            await self._all(f"{name}: all about to upload")
            await send(task, payload)
            await self._all(f"{name}: all accepted")

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self.clients))

    async def _enter(self, client: AsyncClient) -> Any:
        """Join, again and again while the coordinator limits the rate of joins."""
        while True:
            try:
                await client.join()
                break
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
            await asyncio.sleep(JOIN_AGAIN_S)
        return await self._idle(client)

    async def _idle(self, client: AsyncClient, finished_step: int = 0) -> Any:
        return await client.ask_and_wait(self._initial_digest, finished_step)

    async def _all(self, name: str) -> None:
        """Wait for all clients; the first to continue sets a mark."""
        if await self._together.wait() == 0:
            self.marks.set(name, len(self.clients))

    def _check(self, task: ReceivedTask) -> None:
        if task.kind == "score":
            return
        rounds_done = task.work.round_number if task.kind == "train" else task.work.rounds_done
        if task.work.base_digest != self._base_digests[rounds_done]:
            raise RuntimeError(f"the mean after {rounds_done} rounds differs from numpy's")

    @staticmethod
    def _encoded(values: Any) -> memoryview:
        return memoryview(values.astype("<f4").tobytes())


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the federation; return its figures."""
    weights = [1 + number % 7 for number in range(args.clients)]
    workload = Workload(args.masked, args.dense, weights)
    flags = ["--clients", str(args.clients + 1)]  # never complete: the run waits for StartRun
    flags += ["--rounds", str(args.rounds), "--log-level", "warning"]
    with coordinator(folder, *flags) as server:
        sampler = MemorySampler(server)
        marks = Marks(server, sampler)
        federation = ClientPool(server.address, workload, args.rounds, marks)
        async with asyncio.timeout(args.timeout_s):
            watching = asyncio.ensure_future(sampler.run())
            marks.set("started")
            polls = await federation.gather()
            marks.set("all idle", len(polls))
            await asyncio.sleep(args.idle_s)
            marks.set("still idle", len(polls))
            connections, threads = server.num_connections(), server.num_threads()
            await server.start_run()
            async with asyncio.TaskGroup() as group:
                for number, poll in enumerate(polls):
                    group.create_task(federation.take_part(number, poll))
            marks.set("all have the model")
            status = await server.status()
            await federation.close()
            watching.cancel()
        return {
            **_figures(marks.all, args),
            "connections": connections,
            "threads": threads,
            "peak_resident_bytes": server.peak_resident_bytes(),
            "finished_phase": status.phase,
            "model_digest": status.model_digest.hex(),
            "expected_digest": digest(workload.expected_base(args.rounds)).hex(),
            "update_payload_bytes": 4 * (workload.num_kept + args.dense),
            "score_payload_bytes": 4 * args.masked,
            "marks": [asdict(mark) for mark in marks.all],
            "samples": [(round(at_s, 2), resident) for at_s, resident in sampler.samples],
        }


def _figures(marks: list[Mark], args: argparse.Namespace) -> dict[str, Any]:
    by_name = {mark.name: mark for mark in marks}
    started, idle = by_name["started"], by_name["all idle"]
    worst = max(idle.resident_bytes, by_name["still idle"].resident_bytes)
    ramp = [m for m in marks if m.name == "joining" and m.idle_clients > args.clients // 5]
    slope = np.nan
    if len(ramp) > 1:
        xs, ys = zip(*((m.idle_clients, m.resident_bytes) for m in ramp), strict=True)
        slope = np.polyfit(xs, ys, 1)[0]
    ends = [m for m in marks if m.name.endswith("all accepted")]
    began = [m for m in marks if m.name.endswith("all about to upload")]
    before = [by_name["still idle"], *ends]
    return {
        "clients": args.clients,
        "masked_values": args.masked,
        "dense_values": args.dense,
        "rounds": args.rounds,
        "resident_bytes_started": started.resident_bytes,
        "resident_bytes_all_idle": idle.resident_bytes,
        "resident_bytes_still_idle": by_name["still idle"].resident_bytes,
        "idle_seconds": by_name["still idle"].at_s - idle.at_s,
        "kb_per_idle_client": (worst - started.resident_bytes) / args.clients / 1000,
        "kb_per_further_client": float(slope) / 1000,
        "bar_kb_per_idle_client": BAR_KB,
        "kb_per_client_after_uploads": (ends[-1].resident_bytes - started.resident_bytes)
        / args.clients
        / 1000,
        "steps": [
            {
                "name": end.name.partition(":")[0],
                "coordinator_cpu_s": end.cpu_s - prior.cpu_s,
                "upload_seconds": end.at_s - begin.at_s,
                "resident_bytes_before": begin.resident_bytes,
                "resident_bytes_after": end.resident_bytes,
            }
            for prior, begin, end in zip(before, began, ends, strict=False)
        ],
    }


def show(result: dict[str, Any]) -> bool:
    """Print the table; return True if the bar is met."""
    met = bool(result["kb_per_idle_client"] <= BAR_KB)
    mb = 1e6
    rows = [
        ("clients, a connection each", f"{result['clients']} ({result['connections']} open)"),
        ("coordinator, started", f"{result['resident_bytes_started'] / mb:.1f} MB"),
        ("all joined and idle", f"{result['resident_bytes_all_idle'] / mb:.1f} MB"),
        (
            f"idle for {result['idle_seconds']:.0f} s more",
            f"{result['resident_bytes_still_idle'] / mb:.1f} MB",
        ),
        (
            "per idle client",
            f"{result['kb_per_idle_client']:.1f} KB, bar {BAR_KB:.0f} KB: "
            + ("met" if met else "FAILED"),
        ),
        ("per further idle client", f"{result['kb_per_further_client']:.1f} KB"),
        ("per client after all uploads", f"{result['kb_per_client_after_uploads']:.1f} KB"),
        *(
            (
                f"{step['name']}: {result['clients']} uploads",
                f"{step['coordinator_cpu_s']:.2f} s CPU of the coordinator, "
                f"{step['upload_seconds']:.1f} s, {step['resident_bytes_after'] / mb:.1f} MB after",
            )
            for step in result["steps"]
        ),
        ("peak of the coordinator", f"{result['peak_resident_bytes'] / mb:.1f} MB"),
        ("threads of the coordinator", str(result["threads"])),
        ("final model", "as numpy's, bit for bit" if _right(result) else "WRONG"),
    ]
    for name, value in rows:
        print(f"{name:<30} {value}")
    return met


def _right(result: dict[str, Any]) -> bool:
    return bool(result["model_digest"] == result["expected_digest"])


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw memory over time with the phases, and memory over idle clients with the bar."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4), width_ratios=(2, 1), layout="constrained"
    )
    left.plot(*zip(*((t, b / 1e6) for t, b in result["samples"]), strict=True), lw=1.2)
    for begin, end in pairwise(m for m in result["marks"] if m["name"] != "joining"):
        left.axvspan(begin["at_s"], end["at_s"], color=COLOURS[_phase(end["name"])], lw=0)
    for phase, colour in COLOURS.items():
        left.axvspan(0, 0, color=colour, label=phase)
    left.set(xlabel="seconds", ylabel="resident memory, MB", xlim=0, ylim=0)
    left.set_title(f"coordinator with {result['clients']} clients", fontsize=10)
    left.legend(loc="upper left", fontsize=8)
    base = result["resident_bytes_started"]
    ramp = [m for m in result["marks"] if m["name"] in ("joining", "still idle")]
    idle = [m["idle_clients"] for m in ramp]
    right.plot([0, *idle], [0, *((m["resident_bytes"] - base) / 1e6 for m in ramp)], "o-", ms=3)
    right.plot([0, max(idle)], [0, max(idle) * BAR_KB / 1e3], "--", color="0.5", label="bar")
    right.set(xlabel="idle clients", ylabel="MB above the started coordinator")
    right.set_title(f"{result['kb_per_idle_client']:.0f} KB per idle client", fontsize=10)
    right.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _phase(end: str) -> str:
    """Return the phase before a mark."""
    if end in PHASES:
        return PHASES[end]
    return "uploads of all clients" if end.endswith("accepted") else "tasks go out"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--masked", type=int, default=100_000, help="weights under the mask")
    parser.add_argument("--dense", type=int, default=100, help="values outside the mask")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--idle-s", type=float, default=35.0, help="seconds of idling")
    parser.add_argument("--timeout-s", type=float, default=600.0)
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    allow_files(4 * args.clients + 500)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ssfl-many-") as folder:
        result = asyncio.run(measure(args, Path(folder)))
    environment.write(args.out / "many_clients.json", result)
    if not args.no_plot:
        plot(result, args.out / "many_clients.png")
    met = show(result)
    print(f"{'all of it':<30} {time.monotonic() - began_s:.0f} s")
    return 0 if met and _right(result) else 1


def allow_files(wanted: int) -> None:
    """Raise the limit of open files: a connection takes one at each end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


if __name__ == "__main__":
    sys.exit(main())
