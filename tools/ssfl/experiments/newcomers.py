"""(c) New classes arrive in the middle of a run, with and without a new mask.

80 clients have classes 0 to 7; 20 clients with classes 8 and 9 join before round 30 of 60. Two of
them are among the ten clients of each round, so that old and new classes are always trained. With
`refresh` the mask is refreshed once, when they join.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ssfl.experiments.contract import Experiment, Result, Runs, difference
from ssfl.experiments.recipe import DENSE, Recipe
from ssfl.program.settings.loading import Setting
from ssfl.study.charts.runs import ood_picture
from ssfl.study.charts.style import sparsity_text
from ssfl.study.sweep import RunSpec

SPARSITIES = ("0.5", "0.95", "0.98")
MIN_NEW = {"0.5": 0.78, "0.95": 0.65}
MAX_LOST = 0.04  # accuracy on the old classes since the newcomers joined
LAST = 10
OURS: Mapping[str, Setting] = {"momentum": 0.5, "clip_norm": 10.0}  # training of profile `ours`


def _rounds(recipe: Recipe) -> int:
    return recipe.rounds * 6 // 5  # more rounds, to learn the new classes


def _arrival(recipe: Recipe) -> int:
    return _rounds(recipe) // 2


def specs(recipe: Recipe) -> Iterable[RunSpec]:
    late = recipe.data.clients // 5
    data = replace(recipe.data, late_classes="8,9", late_clients=late, late_round=_arrival(recipe))
    common = {"rounds": _rounds(recipe), "evaluate_every": 2, "newcomers_per_round": 2}
    for sparsity in SPARSITIES:
        settings: dict[str, Setting] = {**common, "sparsity": sparsity, "personalize_epochs": 0}
        yield from recipe.specs(f"newcomers, kept mask {sparsity}", settings, data)
        refreshing = {**settings, "refresh_rounds": str(_arrival(recipe))}
        yield from recipe.specs(f"newcomers, new mask {sparsity}", refreshing, data)
        if sparsity in MIN_NEW:
            yield from recipe.specs(f"newcomers, ours {sparsity}", {**refreshing, **OURS}, data)
    dense: dict[str, Setting] = {**common, **DENSE, "personalize_epochs": 0}
    yield from recipe.specs("newcomers, dense", dense, data)


def conclude(recipe: Recipe, runs: Runs) -> Result:
    panels, rows, found, replaced = {}, [], [], {}
    for sparsity in SPARSITIES:
        text = sparsity_text(sparsity)
        kept = _groups(runs.documents(f"newcomers, kept mask {sparsity}"))
        new = _groups(runs.documents(f"newcomers, new mask {sparsity}"))
        ends, kept_ends = _ends(recipe, new), _ends(recipe, kept)
        effects = [
            difference(
                f"{group} classes: new mask − kept mask, {text}", ends[group], kept_ends[group]
            )
            for group in ("new", "old")
        ]
        panels[sparsity] = {"refresh": new, "no refresh": kept, "difference": effects[0]["values"]}
        rows += effects
        if sparsity in MIN_NEW:
            rows += _bars(sparsity, ends, "new mask")
            ours = _groups(runs.documents(f"newcomers, ours {sparsity}"))
            rows += _bars(sparsity, _ends(recipe, ours), "new mask, trained as ours")
        masks = [run["masks"] for run in runs.documents(f"newcomers, new mask {sparsity}")]
        replaced[sparsity] = [entries[-1]["renewed"]["replaced"] for entries in masks]
        found.append(
            f"At {text} the new classes reach {_mean(ends['new'])} % with a new mask and "
            f"{_mean(kept_ends['new'])} % with the old one; the old classes go from "
            f"{_mean(ends['before'])} to {_mean(ends['old'])} %."
        )
    dense = _ends(recipe, _groups(runs.documents("newcomers, dense")))["new"]
    rows.append(difference("new classes reach, dense", dense, dict.fromkeys(dense, 0.0)))
    return {
        "accuracy": "accuracy of the global model, pooled",
        "arrival": _arrival(recipe),
        "panels": panels,
        "share_of_mask_replaced": replaced,
        "rows": rows,
        "found": found,
    }


def _groups(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the accuracy curves of old and new clients, whose classes are disjoint, per seed."""
    rounds = [test["rounds_done"] for test in documents[0]["evaluations"]]
    found: dict[str, Any] = {"rounds": rounds, "new": [], "old": []}
    for document in documents:
        # All clients of the start tested the first model.
        first = {row["client"] for row in document["evaluations"][0]["clients"]}
        late = set(document["clients"]) - first
        for group in ("new", "old"):
            curve = [
                _pooled(test["clients"], late, wanted=group == "new")
                for test in document["evaluations"]
            ]
            found[group].append(curve)
    return found


def _pooled(clients: list[dict[str, Any]], late: set[str], *, wanted: bool) -> float | None:
    tests = [row["evaluation"] for row in clients if (row["client"] in late) == wanted]
    total = sum(test["total"] for test in tests)
    return sum(test["correct"] for test in tests) / total if total else None


def _ends(recipe: Recipe, curves: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Return the mean accuracies of each seed on the new and old classes.

    `new` and `old` are means of the last ten rounds, or of fewer since the newcomers joined.
    `before` is the mean on the old classes in the ten rounds before.
    """
    arrival, found = _arrival(recipe), {}
    end = (max(_rounds(recipe) - LAST, arrival), math.inf)
    spans = {"new": end, "old": end, "before": (arrival - LAST, arrival)}
    for name, (first, last) in spans.items():
        places = [i for i, number in enumerate(curves["rounds"]) if first < number <= last]
        found[name] = {
            seed: sum(curve[i] for i in places) / len(places)
            for seed, curve in zip(recipe.seeds, curves.get(name, curves["old"]), strict=True)
        }
    return found


def _bars(sparsity: str, ends: dict[str, dict[int, float]], how: str) -> list[dict[str, Any]]:
    new, old, before = ends["new"], ends["old"], ends["before"]
    what, nothing = f"{sparsity_text(sparsity)}, {how}", dict.fromkeys(new, 0.0)
    return [
        difference(f"new classes reach, {what}", new, nothing, MIN_NEW[sparsity]),
        difference(f"old classes: end − before, {what}", old, before, -MAX_LOST),
    ]


def _mean(values: dict[int, float]) -> str:
    return f"{100 * sum(values.values()) / len(values):.1f}"


NEWCOMERS = Experiment(
    "newcomers",
    "Two classes arrive later",
    "After one new mask the two new classes rise from 0 to over 80 % while the global accuracy "
    "stays (CIFAR-10, round 225).",
    specs,
    conclude,
    ood_picture,
)
