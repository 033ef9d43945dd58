"""What do metrics and the status page cost a coordinator?

    python -m benchmarks.watch_overhead

Three real `ssfl-coordinator` processes run at the same time on one core. In this process, on
another core, light clients (light_client.py) keep them as busy as possible. Two coordinators serve
no metrics and no page. The third is watched: Prometheus scrapes /metrics every 15 s, as in our
prometheus.yml, and one browser has the status page open. The page polls status, clients and new
events, and curves and timeline every 10 seconds (layers only with a new mask). Between two polls it
pauses 500 times as long as the coordinator's answers took, at least 2 and at most 10 seconds, as
page/app.js does.

CPU time per round of the watched coordinator is compared with that of the others, over the same
period. Processes of the same program differ for their whole life, and the first to start takes some
percent more: so all are restarted several times in rotating order, and the two unwatched ones are
compared with each other, too. Least squares separates the effects of name and start order; 95 %
intervals are Student's, from the residuals. The speed of a machine varies, but coordinators on one
core share that. With --any-core the processes use any core. Writes
benchmarks/results/watch_overhead.json and .png; exit code 1 if the estimate is above the bar.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from benchmarks import environment
from benchmarks.coordinator_process import Coordinator, coordinator
from benchmarks.light_client import LightClient
from benchmarks.workload import SEED, manifest_of

from ssfl.method.initialize import initial_vector
from ssfl.study.intervals import t_quantile

BAR = 0.02
MASKED, DENSE = 4000, 100
SCRAPE_S = 15.0
# The behaviour of app.js: its pauses, the documents of every poll, and those it draws.
REST, MIN_REST_S, MAX_REST_S, DRAWN_S = 500, 2.0, 10.0, 10.0
LOOKED = "look?limit=50"
DRAWN = ("rounds", "timeline")
QUIET = ("unwatched", "again")
NAMES = (*QUIET, "watched")
# Columns: started first, started second, again, watched; relative to started third, unwatched.
COMPARED = {
    "overhead": (0.0, 0.0, -0.5, 1.0),
    "same_program": (0.0, 0.0, 1.0, 0.0),
    "first_place": (1.0, -0.5, 0.0, 0.0),
}
PORTS = ("--metrics-port=0", "--status-port=0")
ROUNDS = 100_000  # more than fit into the time: the run is stopped


Times = dict[str, list[float]]
Stretch = dict[str, tuple[float, float]]  # CPU seconds and rounds, by coordinator


@dataclass
class WatchedFederation:
    """A coordinator and its clients."""

    server: Coordinator
    clients: list[LightClient]

    def mark(self) -> tuple[float, float]:
        """Return CPU seconds and rounds so far, including the share of the current round."""
        sent = sum(len(client.sent_bytes) for client in self.clients)
        return self.server.cpu_s(), sent / len(self.clients)


async def stretch(federations: dict[str, WatchedFederation], args: argparse.Namespace) -> Stretch:
    """Return CPU seconds and rounds of each coordinator in the same period."""
    while min(federation.mark()[1] for federation in federations.values()) < args.warm_up:
        await asyncio.sleep(0.1)
    before = {name: federation.mark() for name, federation in federations.items()}
    await asyncio.sleep(args.seconds)
    after = {name: federation.mark() for name, federation in federations.items()}
    return {
        name: (after[name][0] - before[name][0], after[name][1] - before[name][1])
        for name in federations
    }


def ask(url: str) -> tuple[bytes, float]:
    """Return the answer, and the seconds that the server reports for it."""
    with urlopen(url, timeout=30) as answer:
        took = re.search(r"dur=([\d.]+)", answer.headers["Server-Timing"])
        assert took is not None
        return answer.read(), float(took[1]) / 1e3


async def scrape(server: Coordinator, times: list[float]) -> None:
    """Scrape as Prometheus does, until cancelled."""
    while True:
        began_s = time.monotonic()
        _, took_s = await asyncio.to_thread(ask, f"http://{server.addresses['metrics']}/metrics")
        times.append(took_s)
        await asyncio.sleep(max(0.0, SCRAPE_S - (time.monotonic() - began_s)))


async def look(server: Coordinator, times: Times) -> None:
    """Poll as a browser with the status page does, until cancelled."""
    page = f"http://{server.addresses['status']}/api/v1"
    newest, drawn_s = 0, 0.0  # newest event; time of the last drawings
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
        rest_s = min(MAX_REST_S, max(MIN_REST_S, REST * sum(took)))
        times["rests"].append(rest_s)
        await asyncio.sleep(rest_s)


async def go(
    args: argparse.Namespace,
    order: Sequence[str],
    on_core: Sequence[str],
    folder: Path,
    times: Times,
) -> Stretch:
    """Run the federations with new processes; return the figures of each coordinator."""
    manifest = manifest_of(MASKED, DENSE)
    initial = initial_vector(manifest, SEED)
    flags = [f"--clients={args.clients}", f"--rounds={ROUNDS}", "--evaluate-every=0"]
    with ExitStack() as stack:
        federations = {}
        for name in order:
            (folder / name).mkdir()
            more = PORTS if name == "watched" else ()
            server = stack.enter_context(coordinator(folder / name, *flags, *more, inside=on_core))
            clients = [
                LightClient(server.address, number, manifest, initial)
                for number in range(args.clients)
            ]
            federations[name] = WatchedFederation(server, clients)
        watched = federations["watched"].server
        jobs: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(client.take_part())
            for federation in federations.values()
            for client in federation.clients
        ]
        jobs.append(asyncio.ensure_future(scrape(watched, times["scrapes"])))
        jobs.append(asyncio.ensure_future(look(watched, times)))
        measuring = asyncio.ensure_future(stretch(federations, args))
        try:
            async with asyncio.timeout(args.timeout_s):
                await asyncio.wait({measuring, *jobs}, return_when=asyncio.FIRST_COMPLETED)
            for job in jobs:
                if job.done():
                    job.result()
            return measuring.result()
        finally:
            measuring.cancel()
            for job in jobs:
                job.cancel()
            await asyncio.gather(measuring, *jobs, return_exceptions=True)


async def measure(args: argparse.Namespace, on_core: Sequence[str]) -> dict[str, Any]:
    """Repeat the run `--goes` times; return the figures. `on_core` pins a coordinator."""
    times: Times = {name: [] for name in ("scrapes", "looks", "drawings", "rests")}
    found: list[Stretch] = []
    for number in range(args.goes):
        with tempfile.TemporaryDirectory(prefix="ssfl-watch-") as folder:
            place = number % len(NAMES)
            order = NAMES[place:] + NAMES[:place]
            found.append(await go(args, order, on_core, Path(folder), times))
        print(f"{number + 1} of {args.goes} goes", file=sys.stderr, flush=True)
    quiet = [turn[name] for turn in found for name in QUIET]
    return {
        "clients": args.clients,
        "any_core": args.any_core,
        "scrape_every_s": SCRAPE_S,
        "looks": len(times["looks"]),
        "drawings": len(times["drawings"]),
        "rest_s": float(np.median(times["rests"])),
        "answer_ms": {
            name: 1e3 * float(np.median(times[name])) for name in ("scrapes", "looks", "drawings")
        },
        "goes": found,
        "rounds": sum(turn["watched"][1] for turn in found),
        "cpu_ms_per_round": 1e3 * sum(cpu_s for cpu_s, _ in quiet) / sum(n for _, n in quiet),
        **figures(found),
    }


def figures(found: list[Stretch]) -> dict[str, Any]:
    """Return the overhead, the difference of the unwatched, and the effect of the start order.

    CPU time per round is modelled as a product of the effects of the repetition, the start order
    and the name; fitted by least squares of the logarithms.
    """
    rows, observed = [], []
    for number, turn in enumerate(found):
        for place, (name, (cpu_s, rounds)) in enumerate(turn.items()):
            row = np.zeros(len(found) + 4)
            row[number] = 1
            if place < 2:
                row[len(found) + place] = 1
            row[-2:] = name == "again", name == "watched"
            rows.append(row)
            observed.append(np.log(cpu_s / rounds))
    design, logs = np.array(rows), np.array(observed)
    effects, *_ = np.linalg.lstsq(design, logs)
    left = logs - design @ effects
    freedom = len(logs) - design.shape[1]
    spread = left @ left / freedom * np.linalg.inv(design.T @ design)
    result: dict[str, Any] = {}
    for key, parts in COMPARED.items():
        weights = np.zeros(len(effects))
        weights[-4:] = parts
        half = t_quantile(0.975, freedom) * np.sqrt(weights @ spread @ weights)
        more = weights @ effects
        result[key] = float(np.expm1(more))
        result[f"{key}_95"] = [float(np.expm1(more - half)), float(np.expm1(more + half))]
    of_place = design[:, -4:-2] @ effects[-4:-2]
    even = np.exp(logs - of_place).reshape(len(found), -1)  # without the effect of start order
    names = [list(turn) for turn in found]
    each = [dict(zip(*pair, strict=True)) for pair in zip(names, even.tolist(), strict=True)]
    result["overhead_of_goes"] = [
        turn["watched"] / np.mean([turn[name] for name in QUIET]) - 1 for turn in each
    ]
    result["same_program_of_goes"] = [turn["again"] / turn["unwatched"] - 1 for turn in each]
    return result


def show(result: dict[str, Any]) -> bool:
    """Print the table; return True if the bar is met."""
    met = bool(result["overhead"] <= BAR)

    def percent(key: str) -> str:
        low, high = result[f"{key}_95"]
        return f"{100 * result[key]:+.2f} % (95 %: {100 * low:+.2f} to {100 * high:+.2f})"

    rows = [
        (
            "clients, goes, rounds",
            f"{result['clients']}, {len(result['goes'])}, {result['rounds']:.0f}",
        ),
        ("coordinator unwatched", f"{result['cpu_ms_per_round']:.2f} ms of CPU a round"),
        ("answer to Prometheus", f"{result['answer_ms']['scrapes']:.0f} ms"),
        ("a poll of the page", f"{result['answer_ms']['looks']:.0f} ms"),
        ("drawings of the page", f"{result['answer_ms']['drawings']:.0f} ms"),
        ("pause between polls", f"{result['rest_s']:.1f} s"),
        ("the two unwatched", percent("same_program")),
        ("the first to start", percent("first_place")),
        ("watched", f"{percent('overhead')}, bar {100 * BAR:g} %: " + ("met" if met else "FAILED")),
    ]
    for name, value in rows:
        print(f"{name:<24} {value}")
    return met


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw every repetition: the overhead of the watched, and the difference of the others."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
    for key, mark, label in (
        ("overhead", "s", "watched, against those unwatched"),
        ("same_program", "^", "the two unwatched, one against the other"),
    ):
        each = [100 * more for more in result[f"{key}_of_goes"]]
        (drawn,) = axes.plot(range(1, len(each) + 1), each, mark, ms=6, label=label)
        low, high = (100 * end for end in result[f"{key}_95"])
        axes.axhspan(low, high, color=drawn.get_color(), alpha=0.15, lw=0)
    axes.axhline(100 * BAR, color="black", ls="--", lw=0.8, label="the bar")
    axes.axhline(0, color="black", lw=0.5)
    axes.set(xlabel="go, with processes of its own", ylabel="CPU a round, % more")
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
    parser.add_argument("--goes", type=int, default=9, help="repetitions, each with new processes")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds of each, without the warm-up"
    )
    parser.add_argument("--warm-up", type=int, default=25, help="rounds")
    parser.add_argument("--any-core", action="store_true", help="do not pin processes to cores")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="for a go")
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("needs two cores: one for the coordinators, one for their clients")
    if args.goes < 6 or args.goes % 3:
        parser.error("--goes: must be 6, 9, 12, …, so that the start order is balanced")
    first, *_, last = sorted(os.sched_getaffinity(0))
    if not args.any_core:
        os.sched_setaffinity(0, {last})  # the clients
    on_core = [] if args.any_core else ["taskset", "--cpu-list", str(first)]
    result = asyncio.run(measure(args, on_core))
    environment.write(args.out / "watch_overhead.json", result)
    if not args.no_plot:
        plot(result, args.out / "watch_overhead.png")
    return 0 if show(result) else 1


if __name__ == "__main__":
    sys.exit(main())
