"""What does `--downloads values` save if few clients take part in a round, and what does it cost?

    python -m benchmarks.coded_downloads        # 6 CPU minutes

Runs the sweep of coded_downloads.toml: Fashion-MNIST at 14x14, 100 clients of 100 samples, 10 in
each of 50 rounds, cnn-small at 90 % sparsity and dense, five seeds: float32, int8 with coded
changes, int8 with coded values. Downloads are those of rounds, without tests and the final
delivery, as a share of 4 bytes per value. The first round has none: clients build its base.
Accuracy is pooled, the mean of the last ten rounds; differences are paired by seed, with their 95 %
interval. Writes benchmarks/results/coded_downloads.json. Exit code 1 if a bar is missed: coded
values take at most 0.26 of 4 bytes, and the interval of their difference to float32 contains 0 or
more.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import environment

from ssfl.study.intervals import mean_and_sd, paired_difference

SWEEP = Path(__file__).with_suffix(".toml")
DENSITIES, FORMS = ("0.9", "dense"), ("float32", "int8, change", "int8, values")
PER_ROUND, ROUNDS = 10, 50
BYTES_BAR = 0.26


@dataclass(frozen=True)
class VariantRow:
    """A variant, over all seeds."""

    name: str
    up: float  # share of 4 bytes per value
    down: float
    accuracy: float  # in %
    accuracy_sd: float
    minus_float32: tuple[float, float, float]  # in points: mean, and ends of the 95 % interval

    @property
    def meets_bars(self) -> bool:
        return self.down <= BYTES_BAR and self.minus_float32[2] >= 0


def sweep(folder: Path) -> list[dict[str, Any]]:
    """Return the runs of the sweep."""
    subprocess.run(
        [Path(sys.executable).with_name("ssfl"), "simulate", SWEEP, "--out", folder], check=True
    )
    runs: list[dict[str, Any]] = json.loads((folder / "summary.json").read_text())["runs"]
    return runs


def row(name: str, runs: list[dict[str, Any]], num_values: int) -> VariantRow:
    """Return the figures of a variant whose model has `num_values` values."""

    def accuracy(of: str) -> dict[int, float]:
        return {run["seed"]: 100 * run["pooled_last_10"] for run in runs if run["name"] == of}

    def share(direction: str, rounds: int) -> float:
        sent = [run[f"bytes_rounds_{direction}"] for run in runs if run["name"] == name]
        return float(sum(sent) / len(sent) / (4 * num_values * PER_ROUND * rounds))

    found = paired_difference(accuracy(name), accuracy(f"{name.split()[0]} float32"))
    mean, sd = mean_and_sd(list(accuracy(name).values()))
    difference = found.mean, found.low, found.high
    return VariantRow(name, share("up", ROUNDS), share("down", ROUNDS - 1), mean, sd, difference)


def model_values(folder: Path) -> dict[str, int]:
    """Return how many values the model of a round has, sparse and dense."""
    stored = next(folder.glob("runs/0.9_float32-0-*.json"))
    mask = json.loads(stored.read_text())["history"]["mask"]
    unmasked = mask["num_values"] - mask["num_masked"]
    return {"0.9": mask["num_kept"] + unmasked, "dense": mask["num_values"]}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        runs, sizes = sweep(Path(folder)), model_values(Path(folder))
    rows = [row(f"{n} {form}", runs, sizes[n]) for n in DENSITIES for form in FORMS]
    environment.write(
        environment.RESULTS / "coded_downloads.json", {"variants": [asdict(each) for each in rows]}
    )
    print(f"{'':<20}{'up':>7}{'down':>7}{'pooled %':>16}   minus float32, points")
    for each in rows:
        mean, low, high = each.minus_float32
        pooled = f"{each.accuracy:.2f} ± {each.accuracy_sd:.2f}"
        print(f"{each.name:<20}{each.up:>7.3f}{each.down:>7.3f}{pooled:>16}   "
              f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]")  # fmt: skip
    return 0 if all(each.meets_bars for each in rows if each.name.endswith("values")) else 1


if __name__ == "__main__":
    sys.exit(main())
