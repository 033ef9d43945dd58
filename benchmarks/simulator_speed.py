"""How fast is the simulator in modes fast and exact, compared with Flower's simulation on Ray?

    python -m benchmarks.simulator_speed            # about 10 minutes on two cores
    python -m benchmarks.simulator_speed --quick    # 2 seeds, 1 repetition

Benchmark S: Fashion-MNIST of 14x14 pixels among 100 clients of 200 samples, a CNN of 35,434
weights, 10 clients a round, one local epoch in batches of 16. Two questions:

- Client updates per CPU second, on one core, without start-up (simulator_speed_runs.py). Modes and
  Flower take turns, so that all meet the same noise; all processes of Flower count. Flower trains
  the dense model and tests nothing; ours encode, count and decode every update as the service does,
  and every client tests the model before and after training. Bars: a whole run of 50 rounds in mode
  fast takes at most 10 CPU seconds; fast is at least twice as fast as exact.
- Is fast within seed noise of exact? The same seeds run in both modes; the paired difference with
  its 95 % interval is compared with the standard deviation between seeds. Bar: the interval lies
  within one standard deviation of zero.

Flower is installed into runs/flower-simulation from the package index. Without it, the rest is
measured, and the result names what is missing. Writes benchmarks/results/simulator_speed.json and
.png; exit code 1 if a bar is missed.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import environment
from benchmarks.simulator_speed_modes import compare_modes
from benchmarks.simulator_speed_plot import plot
from benchmarks.simulator_speed_runs import (
    NoFlower,
    Rate,
    flower_folder,
    flower_rate,
    install_flower,
    one_core,
    our_rate,
    whole_run_cpu_s,
    write_data,
)

from ssfl.datasets.errors import DataError
from ssfl.datasets.shards.shard_file import Shard

CPU_BAR_S = 10.0
RATIO_BAR = 2.0
FLOWER = "dense, Flower"
OURS = [(kind, mode) for kind in ("95 %", "dense") for mode in ("fast", "exact")]


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return all figures."""
    log(f"fast and exact, {len(args.seeds)} seeds of {args.mode_rounds} rounds …")
    modes = compare_modes(args.seeds, args.mode_rounds, folder / "modes")
    data = folder / "samples.npz"
    shards = write_data(data)
    flower, missing = _flower(args.flower)
    one_core()
    rates: dict[str, list[Rate]] = {f"{kind}, {mode}": [] for kind, mode in OURS}
    whole: list[float] = []
    for number in range(1, args.repetitions + 1):
        log(f"speed, repetition {number} of {args.repetitions} …")
        whole.append(whole_run_cpu_s(args.rounds, shards))
        _rate_ours(rates, args.rate_rounds, shards)
        if flower is not None:
            try:
                rates.setdefault(FLOWER, []).append(flower_rate(flower, data, args.rate_rounds))
            except NoFlower as error:
                flower, missing = None, str(error)
                rates.pop(FLOWER, None)
    return {
        "rounds": args.rounds,
        "rate_rounds": args.rate_rounds,
        "mode_rounds": args.mode_rounds,
        "whole_run_cpu_s": _summary(whole),
        "updates_per_cpu_s": {
            name: {
                **_summary([result.updates_per_cpu_s for result in some], maximum=True),
                "accuracy": some[-1].accuracy,
            }
            for name, some in rates.items()
        },
        "ratios": _ratios(rates),
        "flower_missing": missing,
        "modes": modes,
    }


def _rate_ours(rates: Mapping[str, list[Rate]], rounds: int, shards: Mapping[str, Shard]) -> None:
    for kind, mode in OURS:
        rates[f"{kind}, {mode}"].append(our_rate(kind, mode, rounds, shards))


def _flower(folder: Path) -> tuple[Path | None, str]:
    log("Flower …")
    try:
        return install_flower(folder), ""
    except NoFlower as error:
        log(f"left out: {error}")
        return None, str(error)


def _summary(values: Sequence[float], *, maximum: bool = False) -> dict[str, Any]:
    best = max(values) if maximum else min(values)
    return {"best": best, "median": median(values), "all": list(values)}


def _ratios(rates: Mapping[str, Sequence[Rate]]) -> dict[str, float]:
    """Return the median over repetitions of each ratio of speeds."""
    pairs = {
        "fast / exact, 95 %": ("95 %, fast", "95 %, exact"),
        "fast / exact, dense": ("dense, fast", "dense, exact"),
        "fast / Flower, dense": ("dense, fast", FLOWER),
        "exact / Flower, dense": ("dense, exact", FLOWER),
    }
    return {
        name: median(
            a.updates_per_cpu_s / b.updates_per_cpu_s
            for a, b in zip(rates[first], rates[other], strict=True)
        )
        for name, (first, other) in pairs.items()
        if first in rates and other in rates
    }


def show(result: Mapping[str, Any]) -> bool:
    """Print the tables; return True if all bars are met."""
    whole, ratio = result["whole_run_cpu_s"]["median"], result["ratios"]["fast / exact, 95 %"]
    met = {
        "whole run": whole <= CPU_BAR_S,
        "fast / exact": ratio >= RATIO_BAR,
        "within noise": all(row["within_noise"] for row in result["modes"]),
    }
    print(f"\n{'client updates per CPU second':<32} {'median':>8} {'best':>8}  accuracy")
    for name, rate in result["updates_per_cpu_s"].items():
        accuracy = f"{100 * rate['accuracy']:.1f} %"
        print(f"{name:<32} {rate['median']:8.1f} {rate['best']:8.1f}  {accuracy}")
    for name, value in result["ratios"].items():
        print(f"{name:<32} {value:8.2f}")
    print(f"{'bar: fast / exact, 95 %':<32} {RATIO_BAR:8.2f}  {_word(met['fast / exact'])}")
    if result["flower_missing"]:
        print(f"Flower is left out: {result['flower_missing']}")
    print(
        f"\na whole run, fast, {result['rounds']} rounds: {whole:.2f} CPU s (best "
        f"{result['whole_run_cpu_s']['best']:.2f}), bar {CPU_BAR_S:g}: {_word(met['whole run'])}"
    )
    print(
        f"\n{'accuracy, points':<10} {'exact':>8} {'fast':>8} {'fast - exact':>24} {'seed sd':>8}"
    )
    for row in result["modes"]:
        interval = row["fast_minus_exact"]
        difference = f"{interval['mean']:+.3f} [{interval['low']:+.3f}, {interval['high']:+.3f}]"
        print(
            f"{row['sparsity']:<10} {row['exact_mean']:14.2f} {row['fast_mean']:8.2f} "
            f"{difference:>24} {row['seed_sd']:8.2f}  {_word(row['within_noise'])}"
        )
    return all(met.values())


def _word(met: bool) -> str:
    return "met" if met else "MISSED"


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="2 seeds, 1 repetition")
    parser.add_argument("--seeds", type=int, default=5, help="for the comparison of modes")
    parser.add_argument("--repetitions", type=int, default=5, help="for every speed")
    parser.add_argument("--rounds", type=int, default=50, help="rounds of the whole run")
    parser.add_argument(
        "--mode-rounds", type=int, default=20, help="rounds for the comparison of modes"
    )
    parser.add_argument(
        "--rate-rounds", type=int, default=12, help="rounds for the speeds; counted from round 3 on"
    )
    parser.add_argument(
        "--flower", type=Path, default=flower_folder(), help="folder to install Flower into"
    )
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.repetitions = 2, 1
    args.seeds = range(args.seeds)
    began_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="ssfl-speed-") as folder:
            result = measure(args, Path(folder))
    except DataError as error:
        log(str(error))
        return 1
    environment.write(args.out / "simulator_speed.json", result)
    if not args.no_plot:
        plot(result, args.out / "simulator_speed.png")
    met = show(result)
    print(f"\nall of it: {time.monotonic() - began_s:.0f} s")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
