"""How much memory does the coordinator need in each phase, when all clients upload at once?

    python -m benchmarks.server_memory

A real `ssfl-coordinator` process and a model of ResNet-18's shapes at 90 % sparsity; in this
process 10, then 100 clients (async_client.py) that send prepared scores and updates at the same
moment. The kernel's peak of resident memory (VmHWM) is reset at the start of each phase:

        scoring    from the first SCORE task until all clients have the mask
        training   from then until the last update is accepted
        refresh    from then, scoring a trained model, until all clients have the next mask
        finish     the final model is sent and written to disk

`plain`: float32 scores and values, as on loopback; `coded`: the encodings of any other link.
Writes benchmarks/results/server_memory.json and .png; exit code 1 if a bar is missed.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import environment
from benchmarks.async_client import MUST_READ, AsyncClient
from benchmarks.coordinator_process import Coordinator, coordinator
from benchmarks.many_clients import allow_files
from benchmarks.workload import digest

from ssfl.codec import MAX_CHUNK_BYTES, blocks, reference, scores, values_only
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.v1 import transfer_pb2

SLOTS = 8  # --upload-slots, the default
BASE_MB = 150.0
ROUNDS, REFRESH_BEFORE = 4, 2
SAME_WITHIN = 0.10  # training with 10 and with 100 clients
CODED = (
    *MUST_READ,
    transfer_pb2.ENCODING_BITMASK_SORTED,
    transfer_pb2.ENCODING_REFERENCE,
    transfer_pb2.ENCODING_SCORES,
)
PHASES = {"score": "scoring", "train": "training", "evaluate": "training", "finish": "finish"}


def resnet18(width: int = 64, classes: int = 10) -> Manifest:
    """Return a manifest with the shapes of ResNet-18 for small images (group norms)."""
    tensors: list[TensorSpec] = []

    def layer(name: str, shape: tuple[int, ...]) -> None:
        tensors.append(TensorSpec(f"{name}.weight", shape, Role.MASKED, Init("normal", 0.05)))

    def norm(name: str, channels: int) -> None:
        tensors.append(TensorSpec(f"{name}.weight", (channels,), Role.DENSE, Init("ones")))
        tensors.append(TensorSpec(f"{name}.bias", (channels,), Role.DENSE, Init("zeros")))

    layer("stem", (width, 3, 3, 3))
    norm("stem.norm", width)
    before = width
    for stage, channels in enumerate(width << n for n in range(4)):
        for number in range(2):
            block = f"stage{stage}.{number}"
            layer(f"{block}.first", (channels, before, 3, 3))
            norm(f"{block}.first.norm", channels)
            layer(f"{block}.second", (channels, channels, 3, 3))
            norm(f"{block}.second.norm", channels)
            if before != channels:
                layer(f"{block}.shortcut", (channels, before, 1, 1))
                norm(f"{block}.shortcut.norm", channels)
            before = channels
    layer("head", (classes, before))
    tensors.append(TensorSpec("head.bias", (classes,), Role.DENSE, Init("zeros")))
    return Manifest(tuple(tensors), {"name": "benchmark"})


class PreparedUploads:
    """The uploads of every client: made once, the same bytes for all."""

    def __init__(self, manifest: Manifest, *, coded: bool) -> None:
        self.manifest = manifest
        self.num_kept = manifest.num_masked // 10
        random = np.random.default_rng(0)
        self.initial = initial_vector(manifest, seed=0)
        found = random.lognormal(-8, 2, manifest.num_masked).astype(np.float32)
        values = random.normal(0, 0.05, self.num_kept + manifest.num_unmasked).astype(np.float32)
        if coded:
            words = random.integers(0, 2**32, found.size, dtype=np.uint32)
            self.scores = scores.encode(found, 3 * self.num_kept, words)
            self.update = blocks.encode(reference.CODE, values, None)
            self.encodings = transfer_pb2.ENCODING_SCORES, transfer_pb2.ENCODING_REFERENCE
        else:
            self.scores, self.update = values_only.encode(found), values_only.encode(values)
            self.encodings = transfer_pb2.ENCODING_DENSE, transfer_pb2.ENCODING_VALUES_ONLY


@dataclass
class Peaks:
    """The largest resident memory of every phase, in order."""

    server: Coordinator
    phase: str = "joining"
    found: list[tuple[str, int]] = field(default_factory=list)

    def begin(self, phase: str) -> None:
        """Record the peak of the current phase and begin another."""
        self.found.append((self.phase, self.server.peak_resident_bytes()))
        self.phase = phase
        self.server.forget_peak()

    def of(self, phase: str) -> int:
        return max((peak for name, peak in self.found if name == phase), default=0)


class UploadingClients:
    """All clients of one run."""

    def __init__(
        self, server: Coordinator, uploads: PreparedUploads, num_clients: int, *, coded: bool
    ):
        self._uploads = uploads
        self._peaks = Peaks(server)
        encodings = CODED if coded else MUST_READ
        self.clients = [
            AsyncClient(server.address, f"client_{n:04d}", 100 + n, uploads.manifest, encodings)
            for n in range(num_clients)
        ]
        self._digest = digest(uploads.initial)
        self._together = asyncio.Barrier(num_clients)

    async def run(self) -> Peaks:
        """Let all clients join and work until the end."""
        first, *others = self.clients
        await first.join()
        await first.receive(first.ask(self._digest))
        await first.initialize(self._digest)
        await asyncio.gather(*(client.join() for client in others))
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(self._take_part(client))
        self._peaks.begin("over")
        await asyncio.gather(*(client.close() for client in self.clients))
        return self._peaks

    async def _take_part(self, client: AsyncClient) -> None:
        poll = client.ask(self._digest)
        while True:
            task = await client.receive(poll)
            if await self._together.wait() == 0:  # all have the task, none has answered
                self._begin(task.kind)
            await self._together.wait()
            poll = client.ask(self._digest, task.message.step) if task.kind != "finish" else None
            match task.kind:
                case "score":
                    await client.send_scores(task, self._uploads.scores, self._uploads.encodings[0])
                case "train":
                    await client.send_update(task, self._uploads.update, self._uploads.encodings[1])
                    if task.work.round_number == REFRESH_BEFORE - 1:
                        await self._before_refresh()
                case "evaluate":
                    await client.send_evaluation(task)
                case _:
                    await client.leave()
                    return

    def _begin(self, kind: str) -> None:
        if self._peaks.phase != "refresh" or kind != "score":
            self._peaks.begin(PHASES[kind])

    async def _before_refresh(self) -> None:
        if await self._together.wait() == 0:
            self._peaks.begin("refresh")


async def measure(
    uploads: PreparedUploads, num_clients: int, folder: Path, *, coded: bool
) -> Peaks:
    """Run one federation; return the peaks of its phases."""
    flags = ["--clients", str(num_clients), "--rounds", str(ROUNDS), "--sparsity", "0.9"]
    flags += ["--refresh-rounds", str(REFRESH_BEFORE), "--evaluate-every", "0"]
    flags += ["--log-level", "warning", "--reference-coding", "on" if coded else "off"]
    with coordinator(folder, *flags) as server:
        federation = UploadingClients(server, uploads, num_clients, coded=coded)
        async with asyncio.timeout(900):
            return await federation.run()


def bars(manifest: Manifest, num_kept: int) -> dict[str, float]:
    """Return the limit of each phase, in bytes."""
    kept = 4 * (num_kept + manifest.num_unmasked)
    training = BASE_MB * 1e6 + 6 * kept + SLOTS * MAX_CHUNK_BYTES
    scoring = BASE_MB * 1e6 + 4 * 4 * manifest.size
    return {"scoring": scoring, "training": training, "refresh": scoring}


def show(result: dict[str, Any]) -> bool:
    """Print the table; return True if the bars are met."""
    met = True
    for run in result["runs"]:
        for phase, peak in run["peak_bytes"].items():
            bar = result["bar_bytes"].get(phase)
            good = bar is None or peak <= bar
            met &= good
            word = "" if bar is None else f"  bar {bar / 1e6:6.1f} MB: " + "met" * good
            name = f"{run['clients']:>4} clients, {run['form']}"
            print(
                f"{name:<20} {phase:<9} {peak / 1e6:7.1f} MB{word or ''}{'' if good else 'FAILED'}"
            )
    training = [run["peak_bytes"]["training"] for run in result["runs"] if run["form"] == "coded"]
    spread = max(training) / min(training) - 1
    good = spread <= SAME_WITHIN
    print(f"training, few and many clients: {100 * spread:.1f} % apart, bar 10 %: {good}")
    return met and good


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw the peaks of every phase with their bars."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
    phases = ["scoring", "training", "refresh", "finish"]
    width = 0.8 / len(result["runs"])
    for number, run in enumerate(result["runs"]):
        at = np.arange(len(phases)) + (number - (len(result["runs"]) - 1) / 2) * width
        heights = [run["peak_bytes"][phase] / 1e6 for phase in phases]
        axes.bar(at, heights, width, label=f"{run['clients']} clients, {run['form']}")
    for place, phase in enumerate(phases):
        if bar := result["bar_bytes"].get(phase):
            axes.hlines(bar / 1e6, place - 0.45, place + 0.45, color="0.3", ls="--")
    axes.set_xticks(range(len(phases)), phases)
    axes.set(ylabel="largest resident memory, MB")
    axes.set_title("coordinator, ResNet-18 at 90 % sparsity (dashed: bar)", fontsize=10)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clients", default="10,100", help="numbers of clients, one run for each")
    parser.add_argument("--forms", default="coded,plain", help="coded, plain (fewest clients only)")
    parser.add_argument("--width", type=int, default=64, help="of the first stage")
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    numbers = [int(number) for number in args.clients.split(",")]
    allow_files(4 * max(numbers) + 500)
    manifest, began_s, runs = resnet18(args.width), time.monotonic(), []
    for form in args.forms.split(","):
        uploads = PreparedUploads(manifest, coded=form == "coded")
        for number in numbers if form == "coded" else [min(numbers)]:
            with tempfile.TemporaryDirectory(prefix="ssfl-memory-") as folder:
                peaks = asyncio.run(measure(uploads, number, Path(folder), coded=form == "coded"))
            found = {name: peaks.of(name) for name, _ in peaks.found}
            runs.append({"clients": number, "form": form, "peak_bytes": found})
            runs[-1]["phases"] = peaks.found
    num_kept = manifest.num_masked // 10
    result = {
        "num_values": manifest.size,
        "num_kept": num_kept,
        "kept_bytes": 4 * (num_kept + manifest.num_unmasked),
        "bar_bytes": bars(manifest, num_kept),
        "runs": runs,
    }
    environment.write(args.out / "server_memory.json", result)
    if not args.no_plot:
        plot(result, args.out / "server_memory.png")
    met = show(result)
    print(f"all of it: {time.monotonic() - began_s:.0f} s")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
