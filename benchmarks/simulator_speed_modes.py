"""Is mode fast within seed noise of exact? The same seeds in both modes, paired."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.simulator_speed_runs import KINDS, SETTINGS

from ssfl.program.settings.loading import Setting
from ssfl.study.data import BENCHMARK_S
from ssfl.study.intervals import mean_and_sd, paired_difference
from ssfl.study.run_spec import RunSpec
from ssfl.study.summary import by_seed
from ssfl.study.sweep import run_all

MEASURE = "mean_last_10"  # over clients, of the global model, over the last 10 rounds
SPARSITIES: dict[str, dict[str, Setting]] = {
    "dense": dict(KINDS["dense"]),
    "80 %": {"sparsity": "0.8"},
    "95 %": {"sparsity": "0.95"},
}


def compare_modes(seeds: Sequence[int], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Return both modes' accuracies by seed for each sparsity, and their difference, in points."""
    base = RunSpec("", BENCHMARK_S, {**SETTINGS, "rounds": rounds, "evaluate_last": 10})
    specs = [
        replace(
            base, name=f"{name}, {mode}", settings={**base.settings, **own}, mode=mode, seed=seed
        )
        for name, own in SPARSITIES.items()
        for mode in ("exact", "fast")
        for seed in seeds
    ]
    results = run_all(specs, folder)
    rows = []
    for name in SPARSITIES:
        exact, fast = (
            {
                seed: 100 * value
                for seed, value in by_seed(results, f"{name}, {mode}", MEASURE).items()
            }
            for mode in ("exact", "fast")
        )
        mean, sd = mean_and_sd(list(exact.values()))
        difference = paired_difference(fast, exact)
        rows.append(
            {
                "sparsity": name, "exact": exact, "fast": fast, "exact_mean": mean,
                "fast_mean": mean_and_sd(list(fast.values()))[0], "seed_sd": sd,
                "fast_minus_exact": asdict(difference),
                "within_noise": within_noise(difference.low, difference.high, sd),
            }
        )  # fmt: skip
    return rows


def within_noise(low: float, high: float, sd: float) -> bool:
    """Return True if the 95 % interval of the difference lies within one sd of zero."""
    return not math.isnan(sd) and max(abs(low), abs(high)) <= sd
