"""Does a coordinator grow in a long run?

    python -m benchmarks.soak

A real `ssfl-coordinator` process and, in this process, 20 light clients (light_client.py) with a
TCP connection each, for 2,000 rounds. Resident memory, threads, descriptors and files of the state
directory are sampled every few rounds. The slope of the memory is the median of the slopes of all
pairs of samples (Theil and Sen) after the first fifth, the warm-up. Writes
benchmarks/results/soak.json and .png; exit code 1 if something grows.

Resident memory includes megabytes that the allocator keeps for later, so a short run cannot
distinguish a slope of 1 MB in 1,000 rounds from that. Below 1,000 rounds the bar applies to the
memory in use, as the C library counts it (`ssfl_heap_bytes`): it must not grow by 1 MB over the
second half.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil
from benchmarks import environment
from benchmarks.coordinator_process import Coordinator, coordinator
from benchmarks.light_client import LightClient
from benchmarks.workload import SEED, manifest_of

from ssfl.method.initialize import initial_vector
from ssfl.server.storage.state_directory import StateDirectory

BAR_MB_PER_1000_ROUNDS = 1.0
BAR_MB_OF_A_SHORT_RUN = 1.0  # a kilobyte for each client and round would be 2 MB in 100 rounds
SHORT_ROUNDS = 1000
MASKED, DENSE = 4000, 100
LOOKS = 200
WARM_UP = 0.2
MISSED = 0.05  # share of the rounds that may follow the last sample
_POLL_S = 0.02


@dataclass(frozen=True)
class CoordinatorSample:
    """A sample of the coordinator."""

    rounds_done: int
    at_s: float
    resident_bytes: int
    heap_bytes: int
    threads: int
    descriptors: int
    files: int  # in the state directory, without uploads and snapshot, which come and go


def look(server: Coordinator, state_dir: Path, rounds_done: int, at_s: float) -> CoordinatorSample:
    process = psutil.Process(server.process.pid)
    snapshot = StateDirectory(state_dir).snapshot.name
    # os.walk skips folders that disappear while it runs; rglob raises.
    files = [
        name
        for folder, _, names in os.walk(state_dir)
        if "spool" not in Path(folder).parts
        for name in names
        if not name.startswith((".", snapshot))  # temporary files, and the snapshot
    ]
    return CoordinatorSample(
        rounds_done,
        at_s,
        server.resident_bytes(),
        heap_bytes(server),
        process.num_threads(),
        process.num_fds(),
        len(files),
    )


def heap_bytes(server: Coordinator) -> int:
    """Return the heap size from the coordinator's metrics."""
    url = f"http://{server.addresses['metrics']}/metrics"
    with urlopen(url, timeout=30) as answer:
        found = re.search(r"^ssfl_heap_bytes (\S+)$", answer.read().decode(), re.MULTILINE)
    return int(float(found[1])) if found else 0


async def watch(
    server: Coordinator,
    state_dir: Path,
    first: LightClient,
    rounds: int,
    looks: list[CoordinatorSample],
) -> None:
    """Sample every few rounds, until cancelled; the tasks of client `first` count rounds."""
    began_s, every = time.monotonic(), max(1, rounds // LOOKS)
    while True:
        done = len({event.step for event in first.events_of("train")})
        if done >= every * (1 + len(looks)):
            sample = await asyncio.to_thread(
                look, server, state_dir, done, time.monotonic() - began_s
            )
            looks.append(sample)
        await asyncio.sleep(_POLL_S)


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the federation; return its figures."""
    manifest = manifest_of(MASKED, DENSE)
    initial = initial_vector(manifest, SEED)
    flags = [f"--clients={args.clients}", f"--rounds={args.rounds}", "--reproducible"]
    flags += ["--evaluate-every=50", "--log-level=warning", "--metrics-port=0"]
    looks: list[CoordinatorSample] = []
    with coordinator(folder, *flags) as server:
        clients = [
            LightClient(server.address, number, manifest, initial) for number in range(args.clients)
        ]
        began_s = time.monotonic()
        watching = asyncio.ensure_future(
            watch(server, folder / "state", clients[0], args.rounds, looks)
        )
        async with asyncio.timeout(args.timeout_s), asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.take_part())
        if watching.done():
            watching.result()  # it ends only with an error: raise it
        watching.cancel()
        status = await server.status()
        seconds = time.monotonic() - began_s
    if looks[-1].rounds_done < (1 - MISSED) * args.rounds:
        raise RuntimeError(f"the last look was at round {looks[-1].rounds_done} of {args.rounds}")
    sent = sum(sum(client.sent_bytes.values()) for client in clients)
    return {
        "clients": args.clients,
        "rounds": args.rounds,
        "seconds": seconds,
        "uploaded_bytes": sent,
        "model_digest": status.model_digest.hex(),
        "digests_of_clients": sorted({client.final_digest.hex() for client in clients}),
        **figures(looks),
        "looks": [asdict(look) for look in looks],
    }


def figures(looks: list[CoordinatorSample]) -> dict[str, Any]:
    """Return the slope after the warm-up, and the growth from the third to the last quarter."""
    warm = looks[int(WARM_UP * len(looks)) :]
    half = len(looks) // 2
    third, last = looks[half : half + half // 2], looks[half + half // 2 :]
    heap = [float(np.median([look.heap_bytes for look in part])) for part in (third, last)]
    growth = {  # the minimum: temporary files are in some samples, leaks in all
        name: min(getattr(look, name) for look in last) - min(getattr(look, name) for look in third)
        for name in ("threads", "descriptors", "files")
    }
    return {
        "mb_per_1000_rounds": slope(warm) * 1000 / 1e6,
        "heap_mb_over_second_half": (heap[1] - heap[0]) * 2 / 1e6,
        "heap_mb_per_1000_rounds": slope(warm, "heap_bytes") * 1000 / 1e6,
        "growth": growth,
        "resident_bytes_warm": warm[0].resident_bytes,
        "resident_bytes_last": looks[-1].resident_bytes,
    }


def slope(looks: list[CoordinatorSample], of: str = "resident_bytes") -> float:
    """Return the median of the slopes of all pairs, in bytes per round."""
    rounds = np.array([look.rounds_done for look in looks], dtype=np.float64)
    values = np.array([getattr(look, of) for look in looks], dtype=np.float64)
    first, second = np.triu_indices(len(looks), k=1)
    apart = rounds[second] - rounds[first]
    pairs = apart > 0
    rises = values[second] - values[first]
    return float(np.median(rises[pairs] / apart[pairs]))


def show(result: dict[str, Any]) -> bool:
    """Print the table; return True if the bars are met."""
    slope_mb, half_mb = result["mb_per_1000_rounds"], result["heap_mb_over_second_half"]
    if result["rounds"] < SHORT_ROUNDS:
        flat = half_mb <= BAR_MB_OF_A_SHORT_RUN
        bar = f"{half_mb:+.2f} MB in use over the second half, bar {BAR_MB_OF_A_SHORT_RUN:g} MB"
    else:
        flat = abs(slope_mb) <= BAR_MB_PER_1000_ROUNDS
        bar = f"{slope_mb:+.2f} MB in 1,000 rounds, bar 0 ± {BAR_MB_PER_1000_ROUNDS:g} MB"
    steady = all(count <= 0 for count in result["growth"].values())
    same = result["digests_of_clients"] == [result["model_digest"]]
    rows = [
        ("clients, rounds", f"{result['clients']}, {result['rounds']:,}"),
        ("took", f"{result['seconds']:.0f} s"),
        ("resident, warm", f"{result['resident_bytes_warm'] / 1e6:.1f} MB"),
        ("resident, at the end", f"{result['resident_bytes_last'] / 1e6:.1f} MB"),
        ("in use", f"{result['heap_mb_per_1000_rounds']:+.2f} MB in 1,000 rounds"),
        ("memory", f"{bar}: " + ("met" if flat else "FAILED")),
        *((f"more {name}", str(count)) for name, count in result["growth"].items()),
        ("final model", "the same everywhere" if same else "DIFFERS"),
    ]
    for name, value in rows:
        print(f"{name:<22} {value}")
    return flat and steady and same


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw memory over rounds, and threads, descriptors and files."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    rounds = [look["rounds_done"] for look in result["looks"]]
    left.plot(rounds, [look["resident_bytes"] / 1e6 for look in result["looks"]], lw=1.2)
    left.axvspan(0, WARM_UP * result["rounds"], color="#eeeeee", lw=0, label="warm-up")
    left.set(xlabel="rounds", ylabel="resident memory, MB", xlim=0, ylim=0)
    left.set_title(f"{result['mb_per_1000_rounds']:+.2f} MB in 1,000 rounds", fontsize=10)
    left.legend(fontsize=8)
    for name in ("threads", "descriptors", "files"):
        right.plot(rounds, [look[name] for look in result["looks"]], lw=1.2, label=name)
    right.set(xlabel="rounds", xlim=0, ylim=0)
    right.set_title(f"coordinator with {result['clients']} clients", fontsize=10)
    right.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--timeout-s", type=float, default=3600.0)
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ssfl-soak-") as folder:
        result = asyncio.run(measure(args, Path(folder)))
    environment.write(args.out / "soak.json", result)
    if not args.no_plot:
        plot(result, args.out / "soak.png")
    return 0 if show(result) else 1


if __name__ == "__main__":
    sys.exit(main())
