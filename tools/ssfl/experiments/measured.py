"""Few clients, weights and class mixes of clients, the meaning of the score, and noisy scores."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ssfl.experiments.contract import Experiment, Result, Runs, difference, no_runs
from ssfl.experiments.others import client_specs, few_clients
from ssfl.experiments.recipe import ACCURACY, Recipe
from ssfl.learning.device import client_torch_settings
from ssfl.method.density import kept_for_sparsity
from ssfl.method.streams import Stream
from ssfl.program.settings.loading import Setting
from ssfl.study.charts.accuracy import differences_picture, partition_picture
from ssfl.study.charts.clients import class_mix_picture, client_weights_picture, scatter_picture
from ssfl.study.charts.style import sparsity_text
from ssfl.study.class_mix import class_counts, effective_classes, shown_clients
from ssfl.study.data import build_shards
from ssfl.study.loss_change import (
    MINIBATCHES,
    REMOVED,
    SAME,
    TOP,
    compare_scores,
    rank_correlation,
)
from ssfl.study.mask_error import SPARSITIES, Doubles, InitialScores
from ssfl.study.noisy_mask import (
    RATIO,
    clients_needed,
    noise_of,
    noisy_overlap,
    signal_to_noise,
)
from ssfl.study.sweep import RunSpec

SHOWN = 10  # clients at each end


# ---- fewer clients, more minibatches


def _few_names(recipe: Recipe) -> dict[str, int]:
    """Return the configurations, and the minibatches that each client scores in them."""
    few = few_clients(recipe.data).clients
    return {f"{few} clients x {n}": n for n in (recipe.data.clients // few, 1)}


def few_specs(recipe: Recipe) -> Iterable[RunSpec]:
    data = few_clients(recipe.data)
    for name, batches in _few_names(recipe).items():
        settings: dict[str, Setting] = {**recipe.fewer_rounds(), "scoring_batches": batches}
        yield from recipe.specs(name, {**settings, "sparsity": "0.95"}, data)


def conclude_few(recipe: Recipe, runs: Runs) -> Result:
    more, one = _few_names(recipe)
    return {
        "accuracy": ACCURACY,
        "rows": [runs.difference(f"{more} − {one}, 95 %", more, one)],
    }


FEW_CLIENTS = Experiment(
    "few-clients",
    "Fewer clients, more minibatches",
    "With fewer clients, more minibatches of each keep the quality of the mask (no figure).",
    few_specs,
    conclude_few,
    differences_picture,
)


# ---- weights and class mixes of clients


def conclude_weights(recipe: Recipe, runs: Runs) -> Result:
    clients: list[dict[str, Any]] = []
    correlation, heavy, light = {}, {}, {}
    for seed, document in zip(recipe.seeds, runs.documents(_UNEQUAL), strict=True):
        weights = document["masks"][0]["votes"]
        rows = [row for row in document["personal"]["clients"] if row["personal"] is not None]
        own = [
            {"name": row["client"], "weight": weights[row["client"]], "accuracy": row["personal"]}
            for row in rows
        ]
        clients = clients or own
        ordered = [one["accuracy"] for one in sorted(own, key=lambda one: one["weight"])]
        light[seed], heavy[seed] = np.mean(ordered[:SHOWN]), np.mean(ordered[-SHOWN:])
        correlation[seed] = rank_correlation(
            [one["weight"] for one in own], [one["accuracy"] for one in own]
        )
    nothing = dict.fromkeys(recipe.seeds, 0.0)
    return {
        "accuracy": f"own models; picture: seed {recipe.seeds[0]}",
        "clients": clients,
        "rows": [
            difference("rank correlation of weight and accuracy, x 100", correlation, nothing),
            difference(f"{SHOWN} heaviest − {SHOWN} lightest clients", heavy, light),
        ],
    }


_UNEQUAL = "unequal clients, ssfl 0.5"
CLIENT_WEIGHTS = Experiment(
    "client-weights",
    "Client accuracy beside its weight in the mean of scores",
    "Clients of little weight do about as well as heavy ones (a figure).",
    client_specs,
    conclude_weights,
    client_weights_picture,
)


def conclude_mix(recipe: Recipe, runs: Runs) -> Result:
    panels: dict[str, list[dict[str, Any]]] = {}
    classes: dict[str, dict[int, float]] = {"best": {}, "worst": {}}
    accuracy: dict[str, dict[int, float]] = {"random": {}, "best": {}, "worst": {}}
    for seed, document in zip(recipe.seeds, runs.documents("ssfl 0.5"), strict=True):
        rows = document["personal"]["clients"]
        own = {row["client"]: row["personal"] for row in rows if row["personal"] is not None}
        counts = class_counts(recipe.data, seed)
        groups = shown_clients(own, SHOWN, Stream(seed, "study", "shown clients"))
        for group, names in groups.items():
            accuracy[group][seed] = float(np.mean([own[name] for name in names]))
            if group in classes:
                mixes = [effective_classes(counts[name]) for name in names]
                classes[group][seed] = float(np.mean(mixes))
        panels = panels or {
            f"{group} clients": [
                {"name": name, "counts": counts[name], "accuracy": own[name]} for name in names
            ]
            for group, names in groups.items()
        }
    nothing = dict.fromkeys(recipe.seeds, 0.0)
    effective = {group: sum(own.values()) / len(own) for group, own in classes.items()}
    return {
        "accuracy": f"own models; picture: seed {recipe.seeds[0]}",
        "panels": panels,
        "rows": [
            difference(f"{group} {SHOWN} clients", accuracy[group], nothing) for group in accuracy
        ],
        "found": [
            f"The best clients have as many classes as {effective['best']:.1f} equally frequent "
            f"ones, the worst {effective['worst']:.1f}."
        ],
    }


CLASS_MIX = Experiment(
    "class-mix",
    "Class mixes of random, best and worst clients",
    "Local accuracy is consistent, and respectable even at the ten worst clients (a figure).",
    lambda recipe: recipe.methods(["ssfl 0.5"]),
    conclude_mix,
    class_mix_picture,
)

ALPHAS = (1000.0, 1.0, 0.3, 0.1, 0.001)  # the paper does not name those of its panels


def conclude_dirichlet(recipe: Recipe, _runs: Runs) -> Result:
    panels, cells = {}, []
    for alpha in ALPHAS:
        data = replace(recipe.data, clients=SHOWN, alpha=alpha, partition="dirichlet")
        counts = class_counts(data, recipe.seeds[0])
        panels[f"alpha {alpha:g}"] = [{"name": name, "counts": own} for name, own in counts.items()]
        mean = np.mean([effective_classes(own) for own in counts.values()])
        cells.append([f"{alpha:g}", f"{mean:.1f}"])
    columns = ["alpha", "classes per client, as equally frequent ones"]
    return {
        "panels": panels,
        "table": {"columns": columns, "rows": cells},
        "rows": [],
        "found": [
            "All clients have as many samples. Near 0 several clients draw the same class, which "
            "runs out, so they get others, too."
        ],
    }


DIRICHLET = Experiment(
    "dirichlet",
    "Dirichlet mixes of ten clients",
    "A large alpha gives all clients the same mix, alpha near 0 one class to each (five panels).",
    no_runs,
    conclude_dirichlet,
    class_mix_picture,
)


# ---- the score, and noise on it


def conclude_saliency(recipe: Recipe, _runs: Runs) -> Result:
    settings = recipe.specs("saliency", {})[0].run_settings()
    with client_torch_settings():
        found = compare_scores(recipe.data, settings, recipe.seeds, REMOVED, device=recipe.device)
    nothing = dict.fromkeys(recipe.seeds, 0.0)
    rows = []
    for kind in (SAME, MINIBATCHES):
        own = {key: dict(zip(recipe.seeds, found[kind][key], strict=True)) for key in found[kind]}
        rows += [
            difference(f"rank correlation, x 100, {kind}", own["rank_correlation"], nothing),
            difference(f"share of the top {100 * TOP:g} % found, {kind}", own["top"], nothing),
        ]
    return {
        "points": found["points"],
        "axes": ["|g·w|", "change of the loss without the weight"],
        "rows": rows,
        "found": [
            f"{REMOVED} random weights of each seed, removed one at a time from the initial model."
        ],
    }


SALIENCY = Experiment(
    "saliency",
    "The score and the true change of the loss",
    "|g·w| is the first-order estimate of how the loss changes when a weight is removed "
    "(derived, not measured).",
    no_runs,
    conclude_saliency,
    scatter_picture,
)

EPSILONS, DELTA = (1.0, 4.0, 8.0), 1e-3
RESNET18 = 11_164_352  # masked weights with ten classes


def conclude_privacy(recipe: Recipe, _runs: Runs) -> Result:
    settings = recipe.specs("privacy", {})[0].run_settings()
    clients, noises = (
        recipe.data.clients,
        {epsilon: noise_of(epsilon, DELTA) for epsilon in EPSILONS},
    )
    overlaps: dict[tuple[str, float], list[float]] = {}
    weights = 0
    for seed in recipe.seeds:
        shards = build_shards(recipe.data, seed)
        with client_torch_settings():
            scores = InitialScores(shards, replace(settings, seed=seed), device=recipe.device)
            exact, unit = _sums(scores)
        weights = len(exact)
        for sparsity in SPARSITIES:
            kept = kept_for_sparsity(sparsity, weights)
            for epsilon, z in {**noises, 0.0: 0.0}.items():
                stream = Stream(seed, "study", "noise", str(epsilon))
                overlap = noisy_overlap(exact, unit, kept, z, stream)
                overlaps.setdefault((sparsity, epsilon), []).append(overlap)
    cells = [
        [
            sparsity_text(sparsity),
            f"{epsilon:g}",
            f"{z:.2f}",
            f"{signal_to_noise(clients, kept, z):.2f}",
            f"{100 * float(np.mean(overlaps[sparsity, epsilon])):.0f}",
            f"{clients_needed(kept, z):,}",
            f"{clients_needed(kept_for_sparsity(sparsity, RESNET18), z):,}",
        ]
        for sparsity in SPARSITIES
        for kept in (kept_for_sparsity(sparsity, weights),)
        for epsilon, z in noises.items()
    ]
    columns = [
        "sparsity", "epsilon", "noise z", "n / (z √k)", "of the mask found, %",
        f"clients for a ratio of {RATIO:g}", "the same, ResNet-18",
    ]  # fmt: skip
    groups = {
        sparsity_text(sparsity): {
            "no noise" if not epsilon else f"epsilon {epsilon:g}": overlaps[sparsity, epsilon]
            for epsilon in (0.0, *reversed(EPSILONS))
        }
        for sparsity in SPARSITIES
    }
    return {
        "accuracy": "share of the exact mask that the noisy one has",
        "groups": groups,
        "table": {"columns": columns, "rows": cells},
        "rows": [],
        "found": [
            f"Client level, delta {DELTA:g}. Each client scales its scores to norm 1; the sum gets "
            "Gaussian noise z, the smallest with Φ(1/2z − εz) − e^ε Φ(−1/2z − εz) ≤ δ. Of n "
            "clients that agree, a kept weight of k gets n/√k.",
            *(
                f"Without noise, scores of norm 1 find "
                f"{100 * float(np.mean(overlaps[sparsity, 0.0])):.0f} % of the mask at "
                f"{sparsity_text(sparsity)}; chance finds {100 * (1 - float(sparsity)):.0f} %."
                for sparsity in SPARSITIES
            ),
            "The noise covers the scores alone. The updates of every round are sent without noise: "
            "one noisy step does not make the run private.",
        ],
    }


def _sums(scores: InitialScores) -> tuple[Doubles, Doubles]:
    """Return the sum of the clients' scores, by samples, and that of scores of norm 1."""
    exact, unit = np.zeros(scores.size), np.zeros(scores.size)
    for samples, own in scores.of_clients():
        exact += samples * own
        unit += own / np.linalg.norm(own)
    return exact, unit


PRIVACY = Experiment(
    "privacy",
    "One noisy scoring step",
    "SSFL complements differential privacy, since it needs only one noisy aggregation of scores "
    "(outlook, no figure).",
    no_runs,
    conclude_privacy,
    partition_picture,
)
