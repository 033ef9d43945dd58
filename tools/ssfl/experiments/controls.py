"""(b) Does the structure of the mask matter? SSFL and masks that lack some of it."""

from ssfl.experiments.contract import Experiment, Result, Runs
from ssfl.experiments.recipe import ACCURACY, Recipe
from ssfl.study.charts.accuracy import sparsity_picture
from ssfl.study.charts.masks import layer_density_picture

OTHER_CRITERIA = ("magnitude", "synflow", "grasp")  # at 95 % only
CONTROLS = {
    "ssfl": ("0.5", "0.8", "0.95", "0.98"),
    "shuffled": ("0.8", "0.95", "0.98"),
    "random": ("0.5", "0.8", "0.95"),
    "client-random-holders": ("0.5", "0.8"),
    "client-random-zeros": ("0.5", "0.8"),
    "one-client": ("0.8", "0.95", "0.98"),
    **dict.fromkeys(OTHER_CRITERIA, ("0.95",)),
}
RUNS = [
    "dense",
    *(f"{name} {sparsity}" for name, sparsities in CONTROLS.items() for sparsity in sparsities),
]
LAYER_MASKS = {
    "saliency": "ssfl 0.95",
    **{name: f"{name} 0.95" for name in ("random", *OTHER_CRITERIA)},
}


def conclude(_recipe: Recipe, runs: Runs) -> Result:
    rows = [
        runs.difference("SSFL − shuffled, 80 %", "ssfl 0.8", "shuffled 0.8", 0.01),
        runs.difference("SSFL − shuffled, 95 %", "ssfl 0.95", "shuffled 0.95", 0.02),
        runs.difference("SSFL − shuffled, 98 %", "ssfl 0.98", "shuffled 0.98", 0.10),
        runs.difference("shuffled − global random, 80 %", "shuffled 0.8", "random 0.8", 0.01),
        runs.difference(
            "global − client-wise random, 80 %, over holders",
            "random 0.8", "client-random-holders 0.8", 0.15,
        ),
        runs.difference(
            "global − client-wise random, 80 %, zeros", "random 0.8", "client-random-zeros 0.8"
        ),
        runs.difference(
            "client-wise random, 50 %: over holders − zeros",
            "client-random-holders 0.5", "client-random-zeros 0.5",
        ),
        *(
            runs.difference(f"SSFL − one client's SNIP, {text}", f"ssfl {s}", f"one-client {s}")
            for s, text in (("0.8", "80 %"), ("0.95", "95 %"), ("0.98", "98 %"))
        ),
        *(
            runs.difference(f"SSFL − {name}, 95 %", "ssfl 0.95", f"{name} 0.95")
            for name in OTHER_CRITERIA
        ),
    ]  # fmt: skip
    series = {
        name: {sparsity: runs.values(f"{name} {sparsity}") for sparsity in sparsities}
        for name, sparsities in CONTROLS.items()
    }
    return {"accuracy": ACCURACY, "dense": runs.values("dense"), "series": series, "rows": rows}


STRUCTURE = Experiment(
    "controls",
    "SSFL and masks that lack some of its structure",
    "SSFL > layer-shuffled SSFL > one random mask for all > a random mask for each client "
    "(figures only; a random mask for each client reaches 41.6 % on CIFAR-10).",
    lambda recipe: recipe.methods(RUNS),
    conclude,
    sparsity_picture,
)


def conclude_layers(_recipe: Recipe, runs: Runs) -> Result:
    masks = {
        name: runs.documents(run)[0]["masks"][-1]["layers"] for name, run in LAYER_MASKS.items()
    }
    return {"masks": masks, "rows": []}


LAYERS = Experiment(
    "layers",
    "What each layer keeps at 95 %",
    "The scores find their own density for every layer; a shuffled mask keeps it, a random one "
    "does not.",
    lambda recipe: recipe.methods(LAYER_MASKS.values()),
    conclude_layers,
    layer_density_picture,
)
