"""What do metrics and the status page cost a coordinator?

    python -m benchmarks.watch_overhead

Two real `ssfl-coordinator` processes at the same time and, in this process, light clients of both
that only echo (light_client.py), so that the coordinators are as busy as they can be. One has
neither port. The other is watched: Prometheus asks for /metrics every 15 seconds, as our
prometheus.yml says, and one browser has the status page open: status, clients and new events, and
every 10 seconds curves, timeline and layers; between two looks it rests 50 times as long as the
answers took, at least 2 and at most 10 seconds, as page/app.js does. In every turn of some seconds
the CPU seconds per round of both are compared; the median of those ratios is told. Two processes of
the same program differ by a percent or so by themselves: as a measure of that, a third coordinator,
not watched either, is compared with the first in the same way. Writes
benchmarks/results/watch_overhead.json and .png; exit code 1 above the bar.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import ExitStack
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
SCRAPE_S = 15.0
# What app.js does: how long it rests, what it asks for at every look, and to draw.
REST, REST_LEAST_S, REST_MOST_S, DRAWN_S = 50, 2.0, 10.0, 10.0
LOOKED = ("status", "clients?limit=50")
DRAWN = ("rounds", "timeline", "layers")
ROUNDS = 100_000  # more than there is time for: the run is ended


@dataclass(frozen=True)
class Turn:
    """Some seconds of all coordinators: CPU seconds and rounds of each, by name."""

    cpu_s: dict[str, float]
    rounds: dict[str, int]

    def cpu_per_round(self, name: str) -> float:
        return self.cpu_s[name] / max(1, self.rounds[name])


@dataclass
class Federation:
    """A coordinator and its clients."""

    server: Coordinator
    clients: list[LightClient]

    def rounds_done(self) -> int:
        return len({told.step for told in self.clients[0].tells("train")})


def ask(url: str) -> bytes:
    """Return the answer."""
    with urlopen(url, timeout=30) as answer:
        body: bytes = answer.read()
        return body


async def scrape(server: Coordinator, times: list[float]) -> None:
    """Ask as Prometheus does, until cancelled."""
    while True:
        began_s = time.monotonic()
        await asyncio.to_thread(ask, f"http://{server.addresses['metrics']}/metrics")
        times.append(time.monotonic() - began_s)
        await asyncio.sleep(max(0.0, SCRAPE_S - times[-1]))


async def look(server: Coordinator, times: dict[str, list[float]]) -> None:
    """Ask as a browser with the status page does, until cancelled."""
    page = f"http://{server.addresses['status']}/api/v1"
    newest, drawn_s = 0, 0.0  # event; when the drawings were asked for
    while True:
        began_s = time.monotonic()
        for name in LOOKED:
            await asyncio.to_thread(ask, f"{page}/{name}")
        news = await asyncio.to_thread(ask, f"{page}/events?after={newest}")
        newest = json.loads(news)["last"]
        looked_s = time.monotonic()
        times["looks"].append(looked_s - began_s)
        if looked_s - drawn_s >= DRAWN_S:
            await asyncio.gather(*(asyncio.to_thread(ask, f"{page}/{name}") for name in DRAWN))
            drawn_s = time.monotonic()
            times["drawings"].append(drawn_s - looked_s)
        rest_s = min(REST_MOST_S, max(REST_LEAST_S, REST * (time.monotonic() - began_s)))
        times["rests"].append(rest_s)
        await asyncio.sleep(rest_s)


async def turns(federations: dict[str, Federation], args: argparse.Namespace) -> list[Turn]:
    """Return what each used and did in every turn."""
    while min(one.rounds_done() for one in federations.values()) < args.warm_up:
        await asyncio.sleep(0.1)
    found = []
    for _ in range(args.turns):
        before = {
            name: (one.server.cpu_s(), one.rounds_done()) for name, one in federations.items()
        }
        await asyncio.sleep(args.turn_s)
        cpu_s = {name: one.server.cpu_s() - before[name][0] for name, one in federations.items()}
        rounds = {name: one.rounds_done() - before[name][1] for name, one in federations.items()}
        found.append(Turn(cpu_s, rounds))
    return found


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the federations; return their figures."""
    manifest = manifest_of(MASKED, DENSE)
    initial = initial_vector(manifest, SEED)
    flags = [f"--clients={args.clients}", f"--rounds={ROUNDS}", "--evaluate-every=0"]
    ports = {"unwatched": [], "again": [], "watched": ["--metrics-port=0", "--status-port=0"]}
    times: dict[str, list[float]] = {name: [] for name in ("scrapes", "looks", "drawings", "rests")}
    with ExitStack() as stack:
        federations = {}
        for name, more in ports.items():
            (folder / name).mkdir()
            server = stack.enter_context(coordinator(folder / name, *flags, *more))
            clients = [
                LightClient(server.address, number, manifest, initial)
                for number in range(args.clients)
            ]
            federations[name] = Federation(server, clients)
        watched = federations["watched"].server
        jobs = [
            asyncio.ensure_future(client.take_part())
            for one in federations.values()
            for client in one.clients
        ]
        jobs.append(asyncio.ensure_future(scrape(watched, times["scrapes"])))
        jobs.append(asyncio.ensure_future(look(watched, times)))
        measuring = asyncio.ensure_future(turns(federations, args))
        try:
            async with asyncio.timeout(args.timeout_s):
                await asyncio.wait({measuring, *jobs}, return_when=asyncio.FIRST_COMPLETED)
            for job in jobs:
                if job.done():
                    job.result()
            found = measuring.result()
        finally:
            measuring.cancel()
            for job in jobs:
                job.cancel()
            await asyncio.gather(measuring, *jobs, return_exceptions=True)
        sizes = {
            name: len(
                await asyncio.to_thread(ask, f"http://{watched.addresses['status']}/api/v1/{name}")
            )
            for name in (*LOOKED, *DRAWN)
        }
    return {
        "clients": args.clients,
        "scrape_every_s": SCRAPE_S,
        "looks": len(times["looks"]),
        "drawings": len(times["drawings"]),
        "rest_s": float(np.median(times["rests"])),
        "answer_ms": {
            name: 1e3 * float(np.median(times[name])) for name in ("scrapes", "looks", "drawings")
        },
        "document_bytes": sizes,
        **figures(found),
        "turns": [asdict(turn) for turn in found],
    }


def figures(found: list[Turn]) -> dict[str, Any]:
    """Return CPU per round of the watched coordinator, and of the third, against the first."""
    told: dict[str, Any] = {}
    for name, key in (("watched", "overhead"), ("again", "same_program")):
        ratios = [turn.cpu_per_round(name) / turn.cpu_per_round("unwatched") - 1 for turn in found]
        told[key] = float(np.median(ratios))
        told[f"{key}_quartiles"] = [float(q) for q in np.quantile(ratios, [0.25, 0.75])]
    quiet = [turn.cpu_per_round("unwatched") for turn in found]
    told["cpu_ms_per_round"] = 1e3 * float(np.median(quiet))
    told["rounds"] = sum(turn.rounds["watched"] for turn in found)
    return told


def show(result: dict[str, Any]) -> bool:
    """Print the table; return whether the bar is met."""
    met = bool(result["overhead"] <= BAR)

    def percent(key: str) -> str:
        low, high = result[f"{key}_quartiles"]
        return f"{100 * result[key]:+.2f} % (quartiles {100 * low:+.2f}, {100 * high:+.2f})"

    rows = [
        ("clients, rounds", f"{result['clients']}, {result['rounds']:,}"),
        ("coordinator unwatched", f"{result['cpu_ms_per_round']:.2f} ms of CPU a round"),
        ("answer to Prometheus", f"{result['answer_ms']['scrapes']:.0f} ms"),
        ("a look of the page", f"{result['answer_ms']['looks']:.0f} ms"),
        ("what it draws", f"{result['answer_ms']['drawings']:.0f} ms"),
        ("between two looks", f"{result['rest_s']:.1f} s"),
        ("another, unwatched", percent("same_program")),
        ("watched", f"{percent('overhead')}, bar {100 * BAR:g} %: " + ("met" if met else "FAILED")),
    ]
    for name, value in rows:
        print(f"{name:<22} {value}")
    return met


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw CPU per round, turn by turn."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
    for name, mark in (("unwatched", "o-"), ("again", "^-"), ("watched", "s-")):
        axes.plot(
            [1e3 * turn["cpu_s"][name] / max(1, turn["rounds"][name]) for turn in result["turns"]],
            mark,
            lw=0.8,
            ms=4,
            label="another, unwatched" if name == "again" else name,
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
    parser.add_argument("--turns", type=int, default=24)
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
