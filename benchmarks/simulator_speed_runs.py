"""The runs of simulator_speed.py: our simulator in this process, Flower's in another.

A rate is client updates per CPU second from round 3 to the last, which contain only training:
start-up, scores and tests are left out. Everything runs on one core with one thread.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.environment import ROOT

from ssfl.datasets.shards.shard_file import Shard
from ssfl.program.settings.loading import Setting
from ssfl.study.data import BENCHMARK_S
from ssfl.study.one_run import run_one, shards_of
from ssfl.study.run_spec import RunSpec

PER_ROUND = 10
FIRST = 3  # first round that counts for a rate
SETTINGS: Mapping[str, Setting] = {
    **{"profile": "paper", "model": "cnn-small", "clients_per_round": PER_ROUND},
    **{"local_epochs": 1, "lr_decay": 0.98, "evaluate_every": 0, "personalize_epochs": 0},
}
KINDS: Mapping[str, Mapping[str, Setting]] = {
    "95 %": {"sparsity": "0.95"},
    "dense": {"strategy": "fedavg"},
}
PINS = Path(__file__).with_name("flower_simulation.txt")
APP = Path(__file__).with_name("flower_simulation.py")
PATIENCE_S = 900.0  # deadline of Flower's simulation


@dataclass(frozen=True)
class Rate:
    """The speed of one simulation."""

    updates_per_cpu_s: float
    accuracy: float  # pooled, after the last round


class NoFlower(Exception):
    """Flower's simulation cannot be installed or does not run; the message says why."""


def spec_of(kind: str, mode: str, rounds: int, **more: Setting) -> RunSpec:
    """Return a run of benchmark S."""
    settings = {**SETTINGS, **KINDS[kind], "rounds": rounds, **more}
    return RunSpec(f"{kind}, {mode}", BENCHMARK_S, settings, mode=mode)


def whole_run_cpu_s(rounds: int, shards: Mapping[str, Shard]) -> float:
    """Return the CPU seconds of a whole run in mode fast, tests in the last 10 rounds included."""
    spec = spec_of("95 %", "fast", rounds, evaluate_last=10)
    began_s = time.process_time()
    run_one(spec, shards=shards)
    return time.process_time() - began_s


def our_rate(kind: str, mode: str, rounds: int, shards: Mapping[str, Shard]) -> Rate:
    """Return the speed of our simulator."""
    marks: list[float] = []
    history = run_one(
        spec_of(kind, mode, rounds), lambda _: marks.append(time.process_time()), shards
    )
    return Rate(_rate(marks), float(history["evaluations"][-1]["pooled"]))


def flower_rate(flower: Path, data: Path, rounds: int) -> Rate:
    """Return the speed of Flower's simulation, with the CPU seconds of all its processes.

    Raise NoFlower if it does not run.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(flower), str(APP.parent))),
        "FLWR_HOME": str(data.parent / "flower"),
        "RAY_TMPDIR": str(data.parent),
        **{"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"},
    }
    command = [sys.executable, str(APP), str(data), str(rounds)]
    try:
        done = subprocess.run(
            command, env=environment, cwd=data.parent, capture_output=True, text=True,
            check=True, timeout=PATIENCE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NoFlower(f"Flower's simulation took more than {PATIENCE_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise NoFlower(f"Flower's simulation ended with {_last(error.stderr)}") from None
    output: dict[str, Any] = json.loads(_last(done.stdout))
    return Rate(_rate(output["cpu_seconds"][1:]), float(output["accuracy"]))


def install_flower(folder: Path, requirements: Path = PINS) -> Path:
    """Return a folder with Flower, installed if needed; raise NoFlower if that fails."""
    pins = requirements.read_text("utf-8")
    installed = folder / "installed.txt"
    if installed.is_file() and installed.read_text("utf-8") == pins:
        return folder
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--upgrade",
           "--retries=1", f"--target={folder}", f"--requirement={requirements}"]  # fmt: skip
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoFlower(f"Flower cannot be installed: {_last(done.stderr)}")
    installed.write_text(pins, "utf-8")
    return folder


def write_data(path: Path) -> dict[str, Shard]:
    """Write the samples of benchmark S, seed 0, for Flower; return them by client."""
    shards = shards_of(spec_of("dense", "fast", 1))
    parts = {
        name: np.concatenate([getattr(shard, name) for shard in shards.values()])
        for name in ("train_x", "train_y", "test_x", "test_y")
    }
    labels = {name: part.astype(np.int64) for name, part in parts.items() if name.endswith("_y")}
    starts = np.cumsum([0, *(shard.num_samples for shard in shards.values())])
    arrays: dict[str, Any] = {**parts, **labels}
    np.savez(path, starts=starts, **arrays)
    return shards


def one_core() -> int:
    """Pin this process and its future children to one core; return its number."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def flower_folder() -> Path:
    """Return the folder of Flower, kept between runs of the benchmark."""
    return ROOT / "runs" / "flower-simulation"


def _rate(marks: list[float]) -> float:
    """Return the rate from the CPU seconds at the end of each round."""
    rounds = len(marks) - (FIRST - 1)
    return PER_ROUND * rounds / (marks[-1] - marks[FIRST - 2])


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing said"
