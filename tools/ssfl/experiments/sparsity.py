"""(a) Accuracy against sparsity, SSFL and dense; (h) the same runs, round by round."""

from typing import Any

from ssfl.experiments.contract import Experiment, Result, Runs
from ssfl.experiments.recipe import ACCURACY, FINE_TUNED, PERSONAL, Recipe
from ssfl.study.charts.accuracy import convergence_picture, sparsity_picture
from ssfl.study.charts.style import sparsity_text

SPARSITIES = ("0.5", "0.7", "0.8", "0.9", "0.95", "0.98")
RUNS = ("dense", *(f"ssfl {sparsity}" for sparsity in SPARSITIES))
BARS = {"0.5": -0.01, "0.8": -0.0275, "0.95": -0.075}
CURVES = {
    "dense": "dense",
    "SSFL, 50 %": "ssfl 0.5",
    "SSFL, 95 %": "ssfl 0.95",
    "shuffled, 95 %": "shuffled 0.95",
    "random, 80 %": "random 0.8",
}


def conclude(_recipe: Recipe, runs: Runs) -> Result:
    rows = [
        runs.difference(f"SSFL − dense, {sparsity_text(s)}", f"ssfl {s}", "dense", BARS.get(s))
        for s in SPARSITIES
    ]
    rows.append(
        runs.difference("… fine-tuned, 95 %", "ssfl 0.95", "dense", -0.035, measure=PERSONAL)
    )
    return {
        "accuracy": ACCURACY,
        "dense": runs.values("dense"),
        "series": {"ssfl": {s: runs.values(f"ssfl {s}") for s in SPARSITIES}},
        "fine_tuned": {
            "accuracy": FINE_TUNED,
            "dense": runs.values("dense", PERSONAL),
            "ssfl": {s: runs.values(f"ssfl {s}", PERSONAL) for s in SPARSITIES},
        },
        "bytes": {name: runs.values(name, "bytes")[0] for name in RUNS},
        "rows": rows,
    }


SPARSITY = Experiment(
    "sparsity",
    "Accuracy against sparsity",
    "SSFL is above dense FedAvg at 50 % (CIFAR-10 88.3 against 86.0 %) and loses 4.7 points from "
    "50 to 95 % (88.3, 87.0, 85.4, 85.1, 83.6 % at 50, 70, 80, 90, 95 %).",
    lambda recipe: recipe.methods(RUNS),
    conclude,
    sparsity_picture,
)


def conclude_curves(_recipe: Recipe, runs: Runs) -> Result:
    curves: dict[str, dict[str, Any]] = {}
    for label, name in CURVES.items():
        tests = [document["evaluations"] for document in runs.documents(name)]
        curves[label] = {
            "rounds": [test["rounds_done"] for test in tests[0]],
            "seeds": [[test["mean"] for test in evaluations] for evaluations in tests],
        }
    reached = {
        label: _first_round(curve["rounds"], curve["seeds"], 0.6) for label, curve in curves.items()
    }
    return {
        "accuracy": "mean over clients of the global model",
        "curves": curves,
        "first_evaluated_round_above_60": reached,
        "rows": [],
    }


def _first_round(rounds: list[int], seeds: list[list[float]], level: float) -> int | None:
    """Return the first round whose mean over seeds is above a level, or None."""
    means = [sum(values) / len(values) for values in zip(*seeds, strict=True)]
    return next((number for number, mean in zip(rounds, means, strict=True) if mean > level), None)


CONVERGENCE = Experiment(
    "convergence",
    "Convergence",
    "SSFL converges as fast as dense FedAvg and faster than the other sparse methods (500 rounds).",
    lambda recipe: recipe.methods(CURVES.values()),
    conclude_curves,
    convergence_picture,
)
