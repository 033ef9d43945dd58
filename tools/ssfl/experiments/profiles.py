"""The profiles paper, released and ours on the same data, at 95 % sparsity."""

from collections.abc import Iterable, Mapping

from ssfl.experiments.contract import Experiment, Result, Runs
from ssfl.experiments.recipe import ACCURACY, PERSONAL, Recipe
from ssfl.program.settings.loading import Setting
from ssfl.study.charts import partition_picture
from ssfl.study.sweep import RunSpec

SPARSITY = "0.95"
# Changes to each profile for the 50 rounds of the recipe: the learning rate falls as far as over
# the rounds of the profile (0.998^500, 0.998^999). Profile `ours` keeps its decay.
SCALED: dict[str, Mapping[str, Setting]] = {
    "paper": {"lr_decay": 0.98},
    "released": {"lr_decay": 0.961},
    "ours": {},
    "ours, the paper's decay": {"lr_decay": 0.98},
}


def specs(recipe: Recipe) -> Iterable[RunSpec]:
    plain = {name: value for name, value in recipe.settings.items() if name != "lr_decay"}
    scaled = Recipe(recipe.data, plain, recipe.seeds)
    for profile, settings in SCALED.items():
        own: dict[str, Setting] = {
            "profile": profile.partition(",")[0], "sparsity": SPARSITY,
            "client_fraction": recipe.settings.get("client_fraction", 0.1), **settings,
        }  # fmt: skip
        yield from scaled.specs(f"profile {profile}", own)


def conclude(_recipe: Recipe, runs: Runs) -> Result:
    groups = {
        "global model": {name: runs.values(f"profile {name}") for name in SCALED},
        "own models": {name: runs.values(f"profile {name}", PERSONAL) for name in SCALED},
    }
    return {
        "accuracy": ACCURACY,
        "groups": groups,
        "bytes": {name: runs.values(f"profile {name}", "bytes")[0] for name in SCALED},
        "rows": [
            runs.difference("ours − paper, 95 %", "profile ours", "profile paper", 0.01),
            runs.difference(
                "ours at the paper's decay − paper, 95 %",
                "profile ours, the paper's decay",
                "profile paper",
            ),
            runs.difference("released − paper, 95 %", "profile released", "profile paper"),
        ],
    }


PROFILES = Experiment(
    "profiles",
    "The profiles paper, released and ours at 95 %",
    "None: the paper does not compare its text with its code. Ours was chosen on validation data.",
    specs,
    conclude,
    partition_picture,
)
