"""What do lossy values save, and how much accuracy do they cost?

    python -m benchmarks.lossy_values            # about 15 minutes on two cores
    python -m benchmarks.lossy_values --quick    # 2 seeds, 6 rounds, three variants

The training of value_bytes.py with 10 of 100 clients in each of 50 rounds, lossless and with each
lossy code in both directions, for five seeds. A seed fixes data split, initial weights, cohorts
and batches, so runs are paired. An upload carries the change against the base, rounded
stochastically; the rounding error is added to the client's next upload. The coordinator commits
the base that clients can decode (base + rounded change of the mean), so all ends hold the same
bits. Only clients of the previous round can use that change; the others get the base lossless.
In the variant "first", which is not a setting, the base is instead rounded to a grid around the
epoch's first base, which every client can rebuild, so every download is small.

Accuracy is that of the base on all test data, the mean of the last ten rounds. A variant meets the
bars if its changes take at most 0.40 of 4sP in both directions and its mean difference to lossless
is within noise: the 95 % interval contains 0, or the loss is below the standard deviation between
seeds. The three value types with default settings must meet them. Writes
benchmarks/results/lossy_values.json and .png; exit code 1 if a bar is missed.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from benchmarks import environment
from benchmarks.fashion import NUM_CLIENTS, parsed, training_parser
from benchmarks.parallel import run_all
from benchmarks.value_channel import LOSSLESS, LOSSY, Variant
from benchmarks.value_runs import TrainingOutcome, TrainingRun, add_runs_flag, run

BYTES_BAR = 0.40
SUPPORTED = ("bfloat16", "int8", "grid 2^-16")  # values of --value-type, other settings default
PER_ROUND = 10
FIRST = 2  # the first round whose bytes count
# 97.5 % quantiles of Student's t with n - 1 degrees of freedom, by n.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306,
           10: 2.262}  # fmt: skip


@dataclass(frozen=True)
class VariantRow:
    """A variant, over all seeds."""

    name: str
    up: float  # mean upload, as a share of 4sP
    change: float  # mean download of clients that can use a coded change
    down: float  # mean download of all
    usable: float  # share of downloads that can use the change
    up_error: float  # |lost| / |change|
    base_error: float
    accuracy: list[float]  # by seed
    minus_lossless: list[float]
    half_interval: float  # of the mean difference, 95 %
    seed_deviation: float  # of lossless

    @property
    def mean_difference(self) -> float:
        return float(np.mean(self.minus_lossless))

    @property
    def within_noise(self) -> bool:
        zero_inside = abs(self.mean_difference) <= self.half_interval
        return zero_inside or self.mean_difference > -self.seed_deviation

    @property
    def met(self) -> bool:
        return max(self.up, self.change) <= BYTES_BAR and self.within_noise


def row_of(
    variant: Variant, outcomes: list[TrainingOutcome], lossless: list[TrainingOutcome]
) -> VariantRow:
    """Return the means over seeds."""
    coded = "first base" if variant.from_first else "previous base"
    accuracy = np.array([outcome.final_accuracy for outcome in outcomes])
    reached = np.array([outcome.final_accuracy for outcome in lossless])
    minus = accuracy - reached
    seeds = len(outcomes)
    errors = [outcome.relative_errors(FIRST) for outcome in outcomes]
    return VariantRow(
        name=variant.name,
        up=_mean(outcome.up()[FIRST:] for outcome in outcomes),
        change=_mean(outcome.down(coded)[FIRST:] for outcome in outcomes),
        down=_mean(outcome.down()[FIRST:] for outcome in outcomes),
        usable=float(np.mean([outcome.forms(FIRST).get(coded, 0.0) for outcome in outcomes])),
        up_error=float(np.mean([error["up"] for error in errors])),
        base_error=float(np.mean([error["down"] for error in errors])),
        accuracy=accuracy.tolist(),
        minus_lossless=minus.tolist(),
        half_interval=STUDENT[seeds] * float(np.std(minus, ddof=1)) / math.sqrt(seeds),
        seed_deviation=float(np.std(reached, ddof=1)),
    )


def _mean(curves: Iterable[list[float]]) -> float:
    return float(np.nanmean(np.array(list(curves))))


def met(rows: list[VariantRow]) -> bool:
    """Return True if the supported variants meet their bars."""
    return all(row.met for row in rows if row.name in SUPPORTED)


def show(rows: list[VariantRow]) -> None:
    """Print the table."""
    print(f"{'share of 4sP':<20}{'up':>7}{'change':>8}{'usable':>8}{'all down':>10}{'error up':>10}"
          f"{'base':>8}{'accuracy':>10}{'minus lossless':>20}")  # fmt: skip
    for row in rows:
        minus = f"{100 * row.mean_difference:+.2f} ± {100 * row.half_interval:.2f} %"
        word = "" if row.name == LOSSLESS.name else "  met" if row.met else "  missed"
        print(f"{row.name:<20}{row.up:>7.3f}{row.change:>8.3f}{row.usable:>8.1%}{row.down:>10.3f}"
              f"{row.up_error:>10.4f}{row.base_error:>8.4f}{np.mean(row.accuracy):>10.2%}"
              f"{minus:>20}{word}")  # fmt: skip
    print(f"standard deviation between seeds, lossless: {100 * rows[0].seed_deviation:.2f} %")
    word = "met" if met(rows) else "FAILED"
    print(f"bars for {', '.join(SUPPORTED)}: {BYTES_BAR} of 4sP, accuracy within noise: {word}")


def plot(rows: list[VariantRow], path: Path) -> None:
    """Draw bytes, and the loss of accuracy."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    names = [row.name for row in rows]
    places = np.arange(len(rows))
    left.barh(places - 0.27, [row.up for row in rows], 0.25, label="up")
    left.barh(places, [row.change for row in rows], 0.25, label="down, coded change")
    left.barh(
        places + 0.27, [row.down for row in rows], 0.25, label="down, all clients", color="C7"
    )
    left.axvline(BYTES_BAR, color="grey", lw=0.8, ls="--")
    left.set_yticks(places, names, fontsize=9)
    left.invert_yaxis()
    left.set(xlabel="share of 4sP", title="bytes", xlim=(0, 1.15))
    left.legend(fontsize=8, loc="lower right")
    for place, row in zip(places[1:], rows[1:], strict=True):
        percents = [100 * difference for difference in row.minus_lossless]
        right.plot(percents, [place] * len(row.accuracy), "o", ms=3, color="C7")
        right.errorbar(100 * row.mean_difference, place, xerr=100 * row.half_interval, fmt="D",
                       ms=5, color="C0", capsize=3)  # fmt: skip
    deviation = 100 * rows[0].seed_deviation
    right.axvspan(-deviation, deviation, color="C2", alpha=0.15, label="± seed deviation")
    right.axvline(0, color="black", lw=0.8)
    right.set(xlabel="accuracy minus lossless, points (95 % interval, paired)", title="accuracy")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = training_parser(__doc__, "2 seeds, 6 rounds, three variants")
    parser.add_argument("--seeds", type=int, choices=sorted(STUDENT), default=5)
    add_runs_flag(parser)
    args = parsed(parser)
    variants, seeds, rounds = [LOSSLESS, *LOSSY], args.seeds, 50
    if args.quick:
        variants = [
            variant for variant in variants if variant is LOSSLESS or variant.name in SUPPORTED
        ]
        seeds, rounds = 2, 6
    work = [
        TrainingRun(args.data, seed, variant, NUM_CLIENTS, PER_ROUND, rounds, kept_in=args.runs)
        for seed in range(seeds)
        for variant in variants
    ]
    outcomes = run_all(run, work, [item.cost for item in work], args.processes, "training")
    of = {
        variant: [o for w, o in zip(work, outcomes, strict=True) if w.variant == variant]
        for variant in variants
    }
    rows = [row_of(variant, of[variant], of[LOSSLESS]) for variant in variants]
    environment.write(
        args.out / "lossy_values.json",
        {
            "variants": [asdict(row) | {"met": row.met} for row in rows],
            "seeds": seeds,
            "rounds": rounds,
            "met": met(rows),
            "quick": args.quick,
        },
    )
    if not args.no_plot:
        plot(rows, args.out / "lossy_values.png")
    show(rows)
    return 0 if met(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
