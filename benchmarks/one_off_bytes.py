"""How few bytes can the one-off phase take before the mask or the accuracy suffers?

    python -m benchmarks.one_off_bytes            # about 10 minutes on two cores
    python -m benchmarks.one_off_bytes --quick    # 2 minutes: few codes, one seed, few rounds

Once per run a client receives the initial weights, sends its scores and receives the mask: 4P +
4W + W/8 bytes in the paper. Here initial weights are rebuilt from the seed (0 bytes), scores use a
logarithmic code of m mantissa bits that covers only the largest (scores.py), and masks are sorted
bits. Reported for every code: bits per coordinate, and the overlap of the kept coordinates with the
exact mask at 90 %, for the CNN of fashion_task.py with 5, 20 and 100 clients and ResNet-18 with
20; and the accuracy of a run (10 of 100 clients, 30 rounds) with the mask of each code, paired by
seed with that of the exact mask. Bar for at least 20 clients with the default code: at most 0.10 of
the paper's bytes, and an overlap of 0.99. Writes benchmarks/results/one_off_bytes.json and .png;
exit code 1 if a bar is missed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import environment
from benchmarks.fashion import parsed, training_parser
from benchmarks.one_off_runs import CodeResult, Codings, ScoreCoding, Short, code_scores, run_short
from benchmarks.parallel import run_all
from benchmarks.resnet_scores import add_scores_flag, score_clients

from ssfl.codec.scores import MANTISSA_BITS
from ssfl.strategies.mask_source import DECISIVE

BYTES_BAR, OVERLAP_BAR = 0.10, 0.99
FACTOR = DECISIVE  # coded scores, as a multiple of the kept ones
DEFAULT = ScoreCoding(MANTISSA_BITS, FACTOR)
CNN_CODINGS = tuple(ScoreCoding(bits, factor) for factor in (2, 3, 5, 0) for bits in range(6))
RESNET_CODINGS = (
    *(ScoreCoding(bits, FACTOR) for bits in range(6)),
    *(ScoreCoding(MANTISSA_BITS, factor) for factor in (2, 5, 0)),
)
TRAINED = (None, ScoreCoding(0, FACTOR), ScoreCoding(1, FACTOR), DEFAULT)  # None: the exact mask
SEEDS = (0, 1, 2)
ROUNDS = 30


def overlaps(args: argparse.Namespace) -> list[CodeResult]:
    """Code the scores of both networks with every code."""
    voters = 5 if args.quick else 20
    resnet = (DEFAULT,) if args.quick else RESNET_CODINGS
    cnn = RESNET_CODINGS if args.quick else CNN_CODINGS
    with score_clients(args, voters) as paths:
        work = [Codings(args.data, None, clients, cnn) for clients in (5, 20, 100)]
        work += [Codings(args.data, tuple(paths), voters, (coding,)) for coding in resnet]
        costs = [10 if item.paths else 4 for item in work]
        parts = run_all(code_scores, work, costs, args.processes, "coding scores")
    return [result for part in parts for result in part]


def accuracies(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Train with the mask of each code, and with the exact one."""
    seeds, rounds = (SEEDS[:1], 6) if args.quick else (SEEDS, ROUNDS)
    work = [Short(args.data, seed, coding, rounds) for seed in seeds for coding in TRAINED]
    costs = [rounds] * len(work)
    reached = run_all(run_short, work, costs, args.processes, "training")
    rows: dict[ScoreCoding | None, list[float]] = {coding: [] for coding in TRAINED}
    for item, accuracy in zip(work, reached, strict=True):
        rows[item.coding].append(accuracy)
    exact = np.array(rows[None])
    return [
        {
            "code": coding.name if coding else "exact",
            "accuracy": float(np.mean(rows[coding])),
            "minus_exact": (np.array(rows[coding]) - exact).tolist(),
            "seed_deviation": float(np.std(exact, ddof=1)) if exact.size > 1 else None,
        }
        for coding in TRAINED
    ]


def judged(results: Sequence[CodeResult]) -> list[CodeResult]:
    """Return the results to which the bar applies: the default code, at least 20 clients."""
    return [result for result in results if result.coding == DEFAULT and result.clients >= 20]


def met(results: Sequence[CodeResult]) -> bool:
    return all(
        result.share <= BYTES_BAR and result.overlap >= OVERLAP_BAR for result in judged(results)
    )


def show(results: Sequence[CodeResult], trained: list[dict[str, Any]]) -> None:
    """Print the tables."""
    print(f"{'network, clients':<22}{'code':<14}{'coded':>7}{'bits':>7}{'overlap':>9}{'scores':>12}"
          f"{'mask':>10}{'of the paper':>14}")  # fmt: skip
    for result in results:
        mark = " *" if result in judged(results) else ""
        print(f"{f'{result.network}, {result.clients}':<22}{result.coding.name:<14}"
              f"{result.coded:>6.2f}k{result.bits:>7.2f}{result.overlap:>9.4f}"
              f"{result.score_bytes:>12,.0f}{result.mask_bytes:>10,}"
              f"{result.share:>14.4f}{mark}")  # fmt: skip
    if judged(results):
        word = "met" if met(results) else "FAILED"
        print(f"* bars: {BYTES_BAR} of 4P + 4W + W/8, overlap {OVERLAP_BAR}: {word}")
    else:
        print("no bar: --quick has too few clients")
    print(f"\n{'mask of':<22}{'accuracy':>10}   minus the exact mask's, by seed")
    for row in trained:
        minus = "  ".join(f"{100 * difference:+.2f}" for difference in row["minus_exact"])
        print(f"{row['code']:<22}{row['accuracy']:>10.2%}   {minus} %")
    deviation = trained[0]["seed_deviation"]
    if deviation is not None:
        print(f"standard deviation between seeds, exact mask: {100 * deviation:.2f} %")


def plot(results: Sequence[CodeResult], trained: list[dict[str, Any]], path: Path) -> None:
    """Draw overlap against bits, and accuracy against the code."""
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13, 4), layout="constrained", width_ratios=(3, 3, 2)
    )
    for place, group in enumerate(
        dict.fromkeys((result.network, result.clients) for result in results)
    ):
        some = [result for result in results if (result.network, result.clients) == group]
        label = f"{group[0]}, {group[1]} clients"
        _draw_line(left, [o for o in some if o.coding.factor == FACTOR], f"C{place}", label)
        if group == ("CNN", 20):
            for shade, factor in enumerate(dict.fromkeys(result.coding.factor for result in some)):
                label = f"the {factor}k largest coded" if factor else "all coded"
                line = [result for result in some if result.coding.factor == factor]
                _draw_line(middle, line, f"C{4 + shade}", label)
    left.set_title(f"the {FACTOR}k largest coded, m mantissa bits")
    middle.set_title("CNN, 20 clients")
    for axis in (left, middle):
        axis.axhline(1 - OVERLAP_BAR, color="grey", lw=0.8, ls="--")
        axis.set_yscale("log")
        axis.set_ylim(5e-4, 0.1)
        axis.margins(x=0.12)
        axis.set(xlabel="bits per coordinate", ylabel="share of kept coordinates that differ")
        axis.legend(fontsize=8)
    _draw_accuracy(right, trained)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_line(axis: Any, line: list[CodeResult], colour: str, label: str) -> None:
    """Draw codes in the order of m; a cross marks codes whose 255 levels have too small a range."""
    widest = max(o.coded for o in line)
    reaching = [o for o in line if o.coded > 0.9 * min(widest, o.coding.factor or widest)]
    short = [o for o in line if o not in reaching]
    axis.plot([o.bits for o in reaching], [1 - o.overlap for o in reaching], marker="o", ms=4,
              color=colour, label=label)  # fmt: skip
    axis.plot([o.bits for o in short], [1 - o.overlap for o in short], "x", ms=5, color=colour)
    for o in line:
        axis.annotate(str(o.coding.mantissa_bits), (o.bits, 1 - o.overlap), xytext=(4, 3),
                      textcoords="offset points", fontsize=7, color=colour)  # fmt: skip


def _draw_accuracy(axis: Any, trained: list[dict[str, Any]]) -> None:
    names = [row["code"] for row in trained[1:]]
    for place, row in enumerate(trained[1:]):
        minus = [100 * difference for difference in row["minus_exact"]]
        axis.plot([place] * len(minus), minus, "o", ms=4, color="C0")
    if trained[0]["seed_deviation"]:
        deviation = 100 * trained[0]["seed_deviation"]
        axis.axhspan(-deviation, deviation, color="C2", alpha=0.15, label="± seed deviation")
        axis.legend(fontsize=8)
    axis.axhline(0, color="black", lw=0.8)
    axis.set_xticks(range(len(names)), names, fontsize=8)
    axis.margins(x=0.2, y=0.2)
    axis.set(ylabel="accuracy minus the exact mask's, points", title="after training, by seed")


def main() -> int:
    parser = training_parser(__doc__, "few codes, one seed, few rounds")
    add_scores_flag(parser)
    args = parsed(parser)
    results = overlaps(args)
    trained = accuracies(args)
    rows = [result.as_row() for result in results]
    environment.write(
        args.out / "one_off_bytes.json",
        {"codes": rows, "trained": trained, "met": met(results), "quick": args.quick},
    )
    if not args.no_plot:
        plot(results, trained, args.out / "one_off_bytes.png")
    show(results, trained)
    return 0 if met(results) else 1


if __name__ == "__main__":
    sys.exit(main())
