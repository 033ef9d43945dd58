"""What do metrics and the status page cost a coordinator?

    python -m benchmarks.watch_overhead

A real `ssfl-coordinator` and, in this process, light clients that only echo (light_client.py), so
that the coordinator is as busy as it can be. In turns of a few seconds it is left alone, or
watched: Prometheus asks for /metrics (every 5 seconds: three times as often as usual) and one
browser has the status page open (the documents that the page asks for, every 2 seconds). The CPU
seconds of the coordinator per round are compared, watched with unwatched, in the same run; every
turn with the mean of its two neighbours, the median of those ratios is told. Writes
benchmarks/results/watch_overhead.json and .png; exit code 1 above the bar.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from benchmarks import environment
from benchmarks.coordinator_process import Coordinator, coordinator
from benchmarks.light_client import LightClient
from benchmarks.workload import SEED, manifest_of

from ssfl.method.initialize import initial_vector

BAR = 0.02
MASKED, DENSE = 4000, 100
SCRAPE_S, PAGE_S = 5.0, 2.0
# What app.js asks for at every look.
DOCUMENTS = ("status", "clients", "rounds", "timeline", "layers", "events")
ROUNDS = 100_000  # more than there is time for: the run is ended


@dataclass(frozen=True)
class Turn:
    """Some seconds of the run."""

    watched: bool
    seconds: float
    cpu_s: float
    rounds: int

    @property
    def cpu_per_round(self) -> float:
        return self.cpu_s / self.rounds


def ask(url: str) -> int:
    """Return how many bytes the answer has."""
    with urlopen(url, timeout=30) as answer:
        return len(answer.read())


async def watch(server: Coordinator, counts: dict[str, list[float]]) -> None:
    """Ask as Prometheus and a browser do, until cancelled."""

    async def every(seconds: float, name: str, urls: list[str]) -> None:
        while True:
            began_s = time.monotonic()
            for url in urls:
                await asyncio.to_thread(ask, url)
            counts[name].append(time.monotonic() - began_s)
            await asyncio.sleep(seconds - (time.monotonic() - began_s))

    metrics = [f"http://{server.addresses['metrics']}/metrics"]
    page = [f"http://{server.addresses['status']}/api/v1/{name}" for name in DOCUMENTS]
    async with asyncio.TaskGroup() as group:
        group.create_task(every(SCRAPE_S, "scrapes", metrics))
        group.create_task(every(PAGE_S, "looks", page))


async def turns(
    server: Coordinator,
    first: LightClient,
    args: argparse.Namespace,
    counts: dict[str, list[float]],
) -> list[Turn]:
    """Watch in every second turn."""

    def rounds_done() -> int:
        return len({told.step for told in first.tells("train")})

    while rounds_done() < args.warm_up:
        await asyncio.sleep(0.1)
    found = []
    for number in range(2 * args.pairs + 1):
        watched = number % 2 == 1
        watching = asyncio.ensure_future(watch(server, counts)) if watched else None
        began_s, cpu_s, rounds = time.monotonic(), server.cpu_s(), rounds_done()
        await asyncio.sleep(args.turn_s)
        found.append(
            Turn(
                watched,
                time.monotonic() - began_s,
                server.cpu_s() - cpu_s,
                rounds_done() - rounds,
            )
        )
        if watching:
            watching.cancel()
            await asyncio.wait({watching})
            if not watching.cancelled():
                watching.result()
    return found


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the federation; return its figures."""
    manifest = manifest_of(MASKED, DENSE)
    initial = initial_vector(manifest, SEED)
    flags = [f"--clients={args.clients}", f"--rounds={ROUNDS}", "--log-level=warning"]
    flags += ["--evaluate-every=0", "--metrics-port=0", "--status-port=0"]
    counts: dict[str, list[float]] = {"scrapes": [], "looks": []}
    with coordinator(folder, *flags) as server:
        clients = [
            LightClient(server.address, number, manifest, initial) for number in range(args.clients)
        ]
        running = [asyncio.ensure_future(client.take_part()) for client in clients]
        measuring = asyncio.ensure_future(turns(server, clients[0], args, counts))
        try:
            async with asyncio.timeout(args.timeout_s):
                await asyncio.wait({measuring, *running}, return_when=asyncio.FIRST_COMPLETED)
            found = measuring.result()
        finally:
            for one in (measuring, *running):
                one.cancel()
            await asyncio.gather(measuring, *running, return_exceptions=True)
        sizes = {
            name: await asyncio.to_thread(ask, f"http://{server.addresses['status']}/api/v1/{name}")
            for name in DOCUMENTS
        }
    return {
        "clients": args.clients,
        "scrape_every_s": SCRAPE_S,
        "look_every_s": PAGE_S,
        "answer_ms": {name: 1e3 * float(np.median(times)) for name, times in counts.items()},
        "document_bytes": sizes,
        **figures(found),
        "turns": [asdict(turn) for turn in found],
    }


def figures(found: list[Turn]) -> dict[str, Any]:
    """Return CPU per round watched, against the mean of the turns before and after."""
    ratios = [
        turn.cpu_per_round / ((before.cpu_per_round + after.cpu_per_round) / 2)
        for before, turn, after in zip(found, found[1:], found[2:], strict=False)
        if turn.watched
    ]
    quiet = [turn for turn in found if not turn.watched]
    return {
        "overhead": float(np.median(ratios)) - 1,
        "quartiles": [float(q) - 1 for q in np.quantile(ratios, [0.25, 0.75])],
        "cpu_ms_per_round": 1e3 * float(np.median([turn.cpu_per_round for turn in quiet])),
        "cores_busy": float(np.median([turn.cpu_s / turn.seconds for turn in quiet])),
        "rounds": sum(turn.rounds for turn in found),
    }


def show(result: dict[str, Any]) -> bool:
    """Print the table; return whether the bar is met."""
    overhead, (low, high) = result["overhead"], result["quartiles"]
    met = bool(overhead <= BAR)
    rows = [
        ("clients, rounds", f"{result['clients']}, {result['rounds']:,}"),
        ("coordinator unwatched", f"{result['cpu_ms_per_round']:.2f} ms of CPU a round"),
        ("", f"{result['cores_busy']:.2f} cores busy"),
        ("answer to Prometheus", f"{result['answer_ms']['scrapes']:.0f} ms"),
        ("a look of the page", f"{result['answer_ms']['looks']:.0f} ms"),
        ("CPU when watched", f"{100 * overhead:+.2f} % (quartiles {100 * low:+.2f}, "
                             f"{100 * high:+.2f}), bar {100 * BAR:g} %: "
                             + ("met" if met else "FAILED")),
    ]  # fmt: skip
    for name, value in rows:
        print(f"{name:<22} {value}")
    return met


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw CPU per round, turn by turn."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
    for watched, mark, name in ((False, "o", "left alone"), (True, "s", "watched")):
        chosen = [(n, turn) for n, turn in enumerate(result["turns"]) if turn["watched"] is watched]
        axes.plot(
            [n for n, _ in chosen],
            [1e3 * turn["cpu_s"] / turn["rounds"] for _, turn in chosen],
            mark,
            label=name,
        )
    axes.set(xlabel="turn", ylabel="coordinator's CPU, ms a round", ylim=0)
    axes.set_title(
        f"metrics and status page: {100 * result['overhead']:+.2f} % of the coordinator's CPU",
        fontsize=10,
    )
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=12, help="turns watched")
    parser.add_argument("--turn-s", type=float, default=5.0)
    parser.add_argument("--warm-up", type=int, default=50, help="rounds")
    parser.add_argument("--timeout-s", type=float, default=1800.0)
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ssfl-watch-") as folder:
        result = asyncio.run(measure(args, Path(folder)))
    environment.write(args.out / "watch_overhead.json", result)
    if not args.no_plot:
        plot(result, args.out / "watch_overhead.png")
    return 0 if show(result) else 1


if __name__ == "__main__":
    sys.exit(main())
