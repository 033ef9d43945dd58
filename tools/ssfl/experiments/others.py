"""(d) mask error, (e) warm-up, (f) partitions, (g) client accuracy, and the three profiles."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ssfl.experiments.contract import Experiment, Result, Runs, difference, no_runs
from ssfl.experiments.recipe import ACCURACY, PERSONAL, Recipe
from ssfl.learning.device import client_torch_settings
from ssfl.program.settings.loading import Setting
from ssfl.study.charts.accuracy import differences_picture, partition_picture
from ssfl.study.charts.masks import mask_error_picture
from ssfl.study.charts.runs import client_accuracy_picture
from ssfl.study.charts.style import sparsity_text
from ssfl.study.data import DataSpec
from ssfl.study.mask_error import FULL_GRADIENT, MEAN_OF_SCORES, MINIBATCHES, mask_error
from ssfl.study.sweep import RunSpec

WARM_SPARSITIES = ("0.5", "0.7", "0.8", "0.9", "0.95")
FEW = 10  # times fewer clients, each of which scores as many times more minibatches


def conclude_mask_error(recipe: Recipe, _runs: Runs) -> Result:
    settings = recipe.specs("mask error", {})[0].run_settings()
    few, many = few_clients(recipe.data), recipe.data.clients
    minibatches = sorted({*MINIBATCHES, many})
    with client_torch_settings():
        result = mask_error(recipe.data, settings, recipe.seeds, minibatches, device=recipe.device)
        of_few = mask_error(few, settings, recipe.seeds, (few.clients, many), device=recipe.device)
    numbers: list[int] = result["minibatches"]
    first, hundred = numbers.index(1), numbers.index(100)
    rows, found = [], []
    for oracle in (MEAN_OF_SCORES, FULL_GRADIENT):
        for sparsity, curve in result["oracles"][oracle].items():
            errors = dict(zip(recipe.seeds, curve["errors"], strict=True))
            half = {seed: values[first] / 2 for seed, values in errors.items()}
            at_100 = {seed: values[hundred] for seed, values in errors.items()}
            last = {seed: values[-1] for seed, values in errors.items()}
            where = f"{sparsity_text(sparsity)}, {oracle}"
            rows += [
                difference(f"half the error at 1 − error at 100, {where}", half, at_100, 0.0),
                difference(f"error at 100 − error at {numbers[-1]}, {where}", at_100, last),
            ]
            found.append(
                f"{oracle}, {sparsity_text(sparsity)}: {curve['mean'][first]:.3f} with 1 "
                f"minibatch, {curve['mean'][hundred]:.3f} with 100, {curve['mean'][-1]:.3f} with "
                f"{numbers[-1]}; flat from {curve['flat_at']} on"
            )
    for sparsity in result["oracles"][MEAN_OF_SCORES]:
        one, more = (_errors(of_few, sparsity, number, recipe) for number in (few.clients, many))
        all_clients = _errors(result, sparsity, many, recipe)
        what, per = f"{few.clients} clients x", many // few.clients
        rows += [
            difference(f"{what} {per} − {many} x 1, {sparsity_text(sparsity)}", more, all_clients),
            difference(f"{what} 1 − {what} {per}, {sparsity_text(sparsity)}", one, more),
        ]
    return {**result, "rows": rows, "found": found}


def few_clients(data: DataSpec) -> DataSpec:
    """Return the same data for fewer clients."""
    clients = max(2, data.clients // FEW)
    samples = data.samples_per_client * data.clients // clients
    return replace(data, clients=clients, samples_per_client=samples)


def _errors(
    result: Mapping[str, Any], sparsity: str, number: int, recipe: Recipe
) -> dict[int, float]:
    """Return the error of each seed with a number of minibatches."""
    place, found = result["minibatches"].index(number), result["oracles"][MEAN_OF_SCORES]
    errors = found[sparsity]["errors"]
    return {seed: own[place] for seed, own in zip(recipe.seeds, errors, strict=True)}


MASK_ERROR = Experiment(
    "mask-error",
    "How many minibatches find the mask",
    "The error against the mask of the full data falls about exponentially with the number of "
    "minibatches and is flat after 80 to 100.",
    no_runs,
    conclude_mask_error,
    mask_error_picture,
)


def warm_specs(recipe: Recipe) -> Iterable[RunSpec]:
    yield from recipe.methods(f"ssfl {sparsity}" for sparsity in WARM_SPARSITIES)
    for sparsity in WARM_SPARSITIES:
        warm: dict[str, Setting] = {"sparsity": sparsity, "warmup_rounds": recipe.warmup_rounds}
        yield from recipe.specs(f"warm-up {sparsity}", warm)


def conclude_warm(recipe: Recipe, runs: Runs) -> Result:
    rows = [
        runs.difference(f"warm-up − SSFL, {sparsity_text(s)}", f"warm-up {s}", f"ssfl {s}")
        for s in WARM_SPARSITIES
    ]
    ratios = {
        s: runs.values(f"warm-up {s}", "bytes")[0] / runs.values(f"ssfl {s}", "bytes")[0]
        for s in WARM_SPARSITIES
    }
    found = [
        f"A warm-up of {recipe.warmup_rounds} dense rounds of {recipe.rounds} takes {ratio:.2f} "
        f"times the bytes at {sparsity_text(sparsity)}."
        for sparsity, ratio in ratios.items()
    ]
    return {"accuracy": ACCURACY, "bytes_ratio": ratios, "rows": rows, "found": found}


WARM_UP = Experiment(
    "warm-up",
    "Dense rounds before the weights are scored",
    "Negligible: 83.12 against 83.57 % at 95 % sparsity, 86.34 against 85.35 at 80 %, 88.30 "
    "against 88.29 at 50 % (warm-up against none).",
    warm_specs,
    conclude_warm,
    differences_picture,
)

PARTITIONED = {
    "dense": "dense",
    "SSFL, 50 %": "ssfl 0.5",
    "SSFL, 95 %": "ssfl 0.95",
    "shuffled, 95 %": "shuffled 0.95",
}


def partition_specs(recipe: Recipe) -> Iterable[RunSpec]:
    yield from recipe.methods(PARTITIONED.values())
    pathological = replace(recipe.data, partition="classes", classes_per_client=2)
    yield from recipe.methods(PARTITIONED.values(), pathological, "2 classes, ")


def conclude_partitions(recipe: Recipe, runs: Runs) -> Result:
    rows = [
        runs.difference(
            f"2 classes each: SSFL − dense, {text}", f"2 classes, ssfl {sparsity}",
            "2 classes, dense", bar,
        )
        for sparsity, text, bar in (("0.5", "50 %", -0.0125), ("0.95", "95 %", -0.085))
    ]  # fmt: skip
    rows += [
        runs.difference(
            "2 classes each: SSFL − shuffled, 95 %",
            "2 classes, ssfl 0.95", "2 classes, shuffled 0.95",
        ),
        runs.difference(
            "2 classes each, own models: SSFL − dense, 95 %",
            "2 classes, ssfl 0.95", "2 classes, dense", measure=PERSONAL,
        ),
    ]  # fmt: skip
    groups = {
        group: {label: runs.values(prefix + name) for label, name in PARTITIONED.items()}
        for group, prefix in (
            (f"Dirichlet {recipe.data.alpha:g}", ""),
            ("2 classes per client", "2 classes, "),
        )
    }
    return {"accuracy": ACCURACY, "groups": groups, "rows": rows}


PARTITIONS = Experiment(
    "partitions",
    "Dirichlet mixes and two classes per client",
    "CIFAR-10 at 50 %: SSFL 88.3 against dense 86.0 % with Dirichlet 0.3, 94.6 against 92.5 % "
    "with two classes per client.",
    partition_specs,
    conclude_partitions,
    partition_picture,
)


def client_specs(recipe: Recipe) -> Iterable[RunSpec]:
    unequal = replace(recipe.data, partition="dirichlet-unbalanced")
    return recipe.methods(["ssfl 0.5"], unequal, "unequal clients, ")


def conclude_clients(recipe: Recipe, runs: Runs) -> Result:
    documents = runs.documents("unequal clients, ssfl 0.5")
    rows_of = [document["personal"]["clients"] for document in documents]
    drawn = {"client": "name", "num_samples": "samples", "global": "global", "personal": "personal"}
    clients = [{name: row[key] for key, name in drawn.items()} for row in rows_of[0]]
    gain, best, worst = {}, {}, {}
    for seed, rows in zip(recipe.seeds, rows_of, strict=True):
        tested = [row for row in rows if row["personal"] is not None]
        gain[seed] = sum(row["personal"] - row["global"] for row in tested) / len(tested)
        ranked = sorted(row["personal"] for row in tested)
        best[seed], worst[seed] = sum(ranked[-10:]) / 10, sum(ranked[:10]) / 10
    nothing = dict.fromkeys(recipe.seeds, 0.0)
    return {
        "accuracy": f"of seed {recipe.seeds[0]}: each client's test samples",
        "clients": clients,
        "rows": [
            difference("own model − global model, mean over clients", gain, nothing),
            difference("ten best clients, own model", best, nothing),
            difference("ten worst clients, own model", worst, nothing),
        ],
    }


CLIENTS = Experiment(
    "clients",
    "Client accuracy against its data size",
    "One mask serves all: accuracy hardly depends on how much data a client has (figures: top and "
    "bottom ten clients).",
    client_specs,
    conclude_clients,
    client_accuracy_picture,
)

# Changes to each profile for the 50 rounds of the recipe: the learning rate falls as far as over
# the rounds of the profile (0.998^500, 0.998^999). Profile `ours` keeps its decay.
SCALED: dict[str, Mapping[str, Setting]] = {
    "paper": {"lr_decay": 0.98},
    "released": {"lr_decay": 0.961},
    "ours": {},
    "ours, the paper's decay": {"lr_decay": 0.98},
}


def profile_specs(recipe: Recipe) -> Iterable[RunSpec]:
    plain = {name: value for name, value in recipe.settings.items() if name != "lr_decay"}
    scaled = Recipe(recipe.data, plain, recipe.seeds)
    for profile, settings in SCALED.items():
        own: dict[str, Setting] = {
            "profile": profile.partition(",")[0], "sparsity": "0.95",
            "client_fraction": recipe.settings.get("client_fraction", 0.1), **settings,
        }  # fmt: skip
        yield from scaled.specs(f"profile {profile}", own)


def conclude_profiles(_recipe: Recipe, runs: Runs) -> Result:
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
    profile_specs,
    conclude_profiles,
    partition_picture,
)
