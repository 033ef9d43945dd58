"""What do metrics and the status page cost a coordinator?

    python -m benchmarks.watch_overhead

Three real `ssfl-coordinator` processes at the same time, on one core, and in this process, on
another, light clients that only echo (light_client.py), so that the coordinators are as busy as
they can be. Two have neither port. The third is watched: Prometheus asks for /metrics every 15
seconds, as our prometheus.yml says, and one browser has the status page open: status, clients and
new events, and every 10 seconds curves and timeline (layers come only with a new mask); between two
looks it rests 200 times as long as the coordinator says that its answers took, at least 2 and at
most 10 seconds, as page/app.js does.

What is compared is CPU time by round, over the same stretch of time: of the watched one with that
of both others, and, since processes of the same program differ by themselves, of these with each
other. The speed of a machine comes and goes; coordinators that share a core share that. How sure
the figures are, 90 % intervals tell, by drawing slices of time again and again (bootstrap). Writes
benchmarks/results/watch_overhead.json and .png; exit code 1 above the bar.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
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
REST, REST_LEAST_S, REST_MOST_S, DRAWN_S = 200, 2.0, 10.0, 10.0
LOOKED = "look?limit=50"
DRAWN = ("rounds", "timeline")
DRAWS = 10_000
QUIET = ["unwatched", "again"]
ROUNDS = 100_000  # more than there is time for: the run is ended


Slice = dict[str, tuple[float, float]]  # CPU seconds and rounds, by coordinator


@dataclass
class Federation:
    """A coordinator and its clients."""

    server: Coordinator
    clients: list[LightClient]

    def mark(self) -> tuple[float, float]:
        """Return CPU seconds and rounds so far; of the one under way, the share that was sent."""
        sent = sum(len(client.sent_bytes) for client in self.clients)
        return self.server.cpu_s(), sent / len(self.clients)


async def slices(federations: dict[str, Federation], args: argparse.Namespace) -> list[Slice]:
    """Return what each coordinator did in one slice of time after the other."""
    while min(one.mark()[1] for one in federations.values()) < args.warm_up:
        await asyncio.sleep(0.1)
    marks = [{name: one.mark() for name, one in federations.items()}]
    for number in range(args.slices):
        await asyncio.sleep(args.slice_s)
        marks.append({name: one.mark() for name, one in federations.items()})
        print(f"{number + 1} of {args.slices} slices", end="\r", file=sys.stderr, flush=True)
    return [
        {
            name: (after[name][0] - before[name][0], after[name][1] - before[name][1])
            for name in federations
        }
        for before, after in pairwise(marks)
    ]


def ask(url: str) -> tuple[bytes, float]:
    """Return the answer, and the seconds that it took by the word of who answered."""
    with urlopen(url, timeout=30) as answer:
        took = re.search(r"dur=([\d.]+)", answer.headers["Server-Timing"])
        assert took is not None
        return answer.read(), float(took[1]) / 1e3


async def scrape(server: Coordinator, times: list[float]) -> None:
    """Ask as Prometheus does, until cancelled."""
    while True:
        began_s = time.monotonic()
        _, took_s = await asyncio.to_thread(ask, f"http://{server.addresses['metrics']}/metrics")
        times.append(took_s)
        await asyncio.sleep(max(0.0, SCRAPE_S - (time.monotonic() - began_s)))


async def look(server: Coordinator, times: dict[str, list[float]]) -> None:
    """Ask as a browser with the status page does, until cancelled."""
    page = f"http://{server.addresses['status']}/api/v1"
    newest, drawn_s = 0, 0.0  # event; when the drawings were asked for
    while True:
        found, took_s = await asyncio.to_thread(ask, f"{page}/{LOOKED}&after={newest}")
        newest = json.loads(found)["events"]["last"]
        times["looks"].append(took_s)
        took = [took_s]
        if time.monotonic() - drawn_s >= DRAWN_S:
            drawn = [asyncio.to_thread(ask, f"{page}/{name}") for name in DRAWN]
            drawing = [took_s for _, took_s in await asyncio.gather(*drawn)]
            drawn_s = time.monotonic()
            times["drawings"].append(sum(drawing))
            took += drawing
        rest_s = min(REST_MOST_S, max(REST_LEAST_S, REST * sum(took)))
        times["rests"].append(rest_s)
        await asyncio.sleep(rest_s)


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the federations; return their figures."""
    manifest = manifest_of(MASKED, DENSE)
    initial = initial_vector(manifest, SEED)
    flags = [f"--clients={args.clients}", f"--rounds={ROUNDS}", "--evaluate-every=0"]
    ports = {"unwatched": [], "again": [], "watched": ["--metrics-port=0", "--status-port=0"]}
    times: dict[str, list[float]] = {name: [] for name in ("scrapes", "looks", "drawings", "rests")}
    first, *_, last = sorted(os.sched_getaffinity(0))  # two cores, which main() has seen to
    os.sched_setaffinity(0, {last})
    with ExitStack() as stack:
        federations = {}
        for name, more in ports.items():
            (folder / name).mkdir()
            on_core = ["taskset", "--cpu-list", str(first)]
            server = stack.enter_context(coordinator(folder / name, *flags, *more, inside=on_core))
            clients = [
                LightClient(server.address, number, manifest, initial)
                for number in range(args.clients)
            ]
            federations[name] = Federation(server, clients)
        watched = federations["watched"].server
        jobs: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(client.take_part())
            for one in federations.values()
            for client in one.clients
        ]
        jobs.append(asyncio.ensure_future(scrape(watched, times["scrapes"])))
        jobs.append(asyncio.ensure_future(look(watched, times)))
        measuring = asyncio.ensure_future(slices(federations, args))
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
        page = f"http://{watched.addresses['status']}/api/v1"
        sizes = {
            name: len((await asyncio.to_thread(ask, f"{page}/{name}"))[0])
            for name in (LOOKED, *DRAWN)
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
        "slice_s": args.slice_s,
        "slices": found,
        **figures(found),
    }


def figures(found: list[Slice]) -> dict[str, Any]:
    """Return what the watched coordinator took more than the others, and how those differ."""
    cpu_s, rounds = (
        {name: np.array([one[name][place] for one in found]) for name in found[0]}
        for place in (0, 1)
    )

    def more(one: list[str], other: list[str], drawn: Any) -> Any:
        """Return by how much CPU time by round differs, over slices that were drawn."""
        per_round = [
            sum(cpu_s[name][drawn].sum(axis=-1) for name in names)
            / sum(rounds[name][drawn].sum(axis=-1) for name in names)
            for names in (one, other)
        ]
        return per_round[0] / per_round[1] - 1

    every = np.arange(len(found))
    drawn = np.random.default_rng(SEED).integers(len(found), size=(DRAWS, len(found)))
    compared = {"overhead": (["watched"], QUIET), "same_program": (QUIET[1:], QUIET[:1])}
    told: dict[str, Any] = {}
    for key, (one, other) in compared.items():
        told[key] = float(more(one, other, every))
        told[f"{key}_90"] = [float(q) for q in np.quantile(more(one, other, drawn), [0.05, 0.95])]
    quiet_s, quiet = (sum(each[name].sum() for name in QUIET) for each in (cpu_s, rounds))
    told["cpu_ms_per_round"] = 1e3 * float(quiet_s / quiet)
    told["rounds"] = {name: float(each.sum()) for name, each in rounds.items()}
    return told


def show(result: dict[str, Any]) -> bool:
    """Print the table; return whether the bar is met."""
    met = bool(result["overhead"] <= BAR)

    def percent(key: str) -> str:
        low, high = result[f"{key}_90"]
        return f"{100 * result[key]:+.2f} % (90 %: {100 * low:+.2f} to {100 * high:+.2f})"

    rows = [
        ("clients", f"{result['clients']}"),
        ("rounds of each", ", ".join(f"{rounds:.0f}" for rounds in result["rounds"].values())),
        ("coordinator unwatched", f"{result['cpu_ms_per_round']:.2f} ms of CPU a round"),
        ("answer to Prometheus", f"{result['answer_ms']['scrapes']:.0f} ms"),
        ("a look of the page", f"{result['answer_ms']['looks']:.0f} ms"),
        ("what it draws", f"{result['answer_ms']['drawings']:.0f} ms"),
        ("between two looks", f"{result['rest_s']:.1f} s"),
        ("two that nobody watches", percent("same_program")),
        ("watched", f"{percent('overhead')}, bar {100 * BAR:g} %: " + ("met" if met else "FAILED")),
    ]
    for name, value in rows:
        print(f"{name:<24} {value}")
    return met


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw CPU per round, slice by slice."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
    for name, mark in (("unwatched", "o-"), ("again", "^-"), ("watched", "s-")):
        axes.plot(
            [result["slice_s"] * (place + 1) for place in range(len(result["slices"]))],
            [1e3 * cpu_s / rounds for cpu_s, rounds in (one[name] for one in result["slices"])],
            mark,
            lw=0.8,
            ms=4,
            label="another, unwatched" if name == "again" else name,
        )
    axes.set(xlabel="seconds", ylabel="coordinator's CPU, ms a round", ylim=0)
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
    parser.add_argument("--slices", type=int, default=30)
    parser.add_argument("--slice-s", type=float, default=10.0)
    parser.add_argument("--warm-up", type=int, default=50, help="rounds")
    parser.add_argument("--timeout-s", type=float, default=1800.0)
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("it takes two cores: one for the coordinators, one for their clients")
    with tempfile.TemporaryDirectory(prefix="ssfl-watch-") as folder:
        result = asyncio.run(measure(args, Path(folder)))
    environment.write(args.out / "watch_overhead.json", result)
    if not args.no_plot:
        plot(result, args.out / "watch_overhead.png")
    return 0 if show(result) else 1


if __name__ == "__main__":
    sys.exit(main())
