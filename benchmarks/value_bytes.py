"""How many bytes do lossless values take in real training?

    python -m benchmarks.value_bytes            # about 10 minutes on two cores
    python -m benchmarks.value_bytes --quick    # 2 minutes: few rounds

A CNN of 138,698 parameters on Fashion-MNIST among 100 clients, Dirichlet 0.3, 90 % sparsity, one
local epoch of batch 16, learning rate 0.1 * 0.998^r, float32 (fashion.py). Three runs:

- all 100 clients in every round: the bars hold for the means of rounds 2 to 50;
- 10 of 100: most clients lack the previous base and get another form of the new one;
- 10 clients of 6,000 samples: larger steps between the bases, a harder case; ten rounds.

Every payload is encoded, decoded and used for training. Ratios are shares of the paper's 4sP, which
counts the share s of all P parameters; norms and biases, which are always sent, make our plain
payload 2 % larger. Writes benchmarks/results/value_bytes.json and .png; exit code 1 if a bar is
missed.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import environment
from benchmarks.fashion import NUM_CLIENTS, parsed, training_parser
from benchmarks.parallel import run_all
from benchmarks.value_channel import LOSSLESS
from benchmarks.value_compare import OURS, PCODEC
from benchmarks.value_runs import TrainingOutcome, TrainingRun, add_runs_flag, run

UP_BAR, DOWN_BAR = 0.80, 0.79
FIRST = 2  # the first round that counts: the earliest ones change most
WORTH_IT = 0.03  # another library must save more than this share to be offered


def runs_of(data: Path, quick: bool, kept_in: Path | None) -> dict[str, TrainingRun]:
    full, some, large = (11, 12, 4) if quick else (51, 51, 11)
    return {
        "all of 100": TrainingRun(data, 0, LOSSLESS, NUM_CLIENTS, 0, full, True, kept_in),
        "10 of 100": TrainingRun(data, 0, LOSSLESS, NUM_CLIENTS, 10, some, kept_in=kept_in),
        "10 large clients": TrainingRun(data, 0, LOSSLESS, 10, 0, large, kept_in=kept_in),
    }


def summary(outcome: TrainingOutcome) -> dict[str, Any]:
    """Return the numbers of one run."""
    forms = outcome.forms(FIRST)
    return {
        "rounds": len(outcome.rounds),
        "plain": outcome.plain_bytes / outcome.paper_bytes,
        "up": float(np.mean(outcome.up()[FIRST:])),
        "down": float(np.mean(outcome.down()[FIRST:])),
        "down_forms": {
            form: {"share": share, "ratio": float(np.nanmean(outcome.down(form)[FIRST:]))}
            for form, share in forms.items()
        },
        "accuracy": outcome.final_accuracy,
        "up_by_round": outcome.up(),
        "down_by_round": outcome.down(),
    }


def met(results: dict[str, dict[str, Any]]) -> bool:
    """Return True if the run with all clients meets the bars."""
    bar = results["all of 100"]
    return bool(bar["up"] <= UP_BAR and bar["down"] <= DOWN_BAR)


def show(results: dict[str, dict[str, Any]], compared: dict[str, float]) -> None:
    """Print the tables."""
    print(f"{'share of 4sP, rounds 2 on':<28}{'up':>8}{'down':>8}{'plain':>8}{'accuracy':>10}")
    for name, row in results.items():
        print(
            f"{name:<28}{row['up']:>8.3f}{row['down']:>8.3f}{row['plain']:>8.3f}"
            f"{row['accuracy']:>10.3f}"
        )
        if len(row["down_forms"]) > 1:
            for form, download in row["down_forms"].items():
                share = f"{download['share']:.1%} of downloads"
                label = f"against {form}" if "base" in form else form
                print(f"  {label:<34}{download['ratio']:.3f}  ({share})")
    word = "met" if met(results) else "FAILED"
    print(f"bars, all of 100: {UP_BAR} up, {DOWN_BAR} down: {word}")
    print("\nthe same updates in other codes")
    for code, ratio in sorted(compared.items(), key=lambda pair: -pair[1]):
        print(f"  {code:<36}{ratio:>7.3f}")
    if PCODEC in compared:
        saved = 1 - compared[PCODEC] / compared[OURS]
        verdict = "worth an option" if saved > WORTH_IT else f"no gain of {WORTH_IT:.0%}"
        print(f"  pcodec saves {saved:.1%} of {OURS}: {verdict}")
    else:
        print("  pcodec is not installed: not measured")


def plot(results: dict[str, dict[str, Any]], compared: dict[str, float], path: Path) -> None:
    """Draw the ratio of each round, and a comparison of the codes."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, 4), layout="constrained", width_ratios=(3, 2)
    )
    for place, (name, row) in enumerate(results.items()):
        rounds = np.arange(row["rounds"])
        left.plot(rounds, row["up_by_round"], color=f"C{place}", label=f"{name}: up")
        left.plot(rounds[1:], row["down_by_round"][1:], color=f"C{place}", ls="--",
                  label=f"{name}: down")  # fmt: skip
    left.axhline(UP_BAR, color="grey", lw=0.8, label="bar up, all of 100")
    left.axhline(DOWN_BAR, color="grey", lw=0.8, ls="--", label="bar down")
    left.set(xlabel="round", ylabel="share of 4sP", ylim=(0.5, 1.05), title="lossless values")
    left.legend(fontsize=8, ncols=4, loc="upper center")
    codes = sorted(compared, key=lambda code: compared[code])
    colours = ["C3" if code == OURS else "C7" for code in codes]
    bars = right.barh(codes, [compared[code] for code in codes], color=colours)
    right.bar_label(bars, fmt="%.3f", fontsize=8, padding=2)
    right.set(xlabel="share of 4sP", xlim=(0, 1.12), title="the same updates in other codes")
    right.tick_params(axis="y", labelsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = training_parser(__doc__, "few rounds")
    add_runs_flag(parser)
    args = parsed(parser)
    runs = runs_of(args.data, args.quick, args.runs)
    work = list(runs.values())
    outcomes = run_all(run, work, [item.cost for item in work], args.processes, "training")
    results = {name: summary(outcome) for name, outcome in zip(runs, outcomes, strict=True)}
    compared = outcomes[0].compared
    environment.write(
        args.out / "value_bytes.json",
        {"runs": results, "compared": compared, "met": met(results), "quick": args.quick},
    )
    if not args.no_plot:
        plot(results, compared, args.out / "value_bytes.png")
    show(results, compared)
    return 0 if met(results) else 1


if __name__ == "__main__":
    sys.exit(main())
