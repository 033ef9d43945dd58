"""(c) New classes arrive in the middle of a run, with and without a new mask.

80 clients have classes 0 to 7; 20 clients with classes 8 and 9 join before round 30 of 60. Two of
them are among the ten clients of each round, so that old and new classes are always trained. The
new mask is agreed when they join.
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
from ssfl.study.data import DataSpec
from ssfl.study.sweep import RunSpec

SPARSITIES = ("0.5", "0.95", "0.98")
MIN_NEW = {"0.5": 0.78, "0.95": 0.65}
MAX_LOST = 0.04  # accuracy on the old classes, lost after the newcomers joined
LAST = 10
OURS: Mapping[str, Setting] = {"momentum": 0.5, "clip_norm": 10.0}  # training of profile `ours`


def rounds_of(recipe: Recipe) -> int:
    return recipe.rounds * 6 // 5  # more rounds, to learn the new classes


def arrival_round(recipe: Recipe) -> int:
    return rounds_of(recipe) // 2


def late_data(recipe: Recipe) -> DataSpec:
    late = recipe.data.clients // 5
    return replace(
        recipe.data, late_classes="8,9", late_clients=late, late_round=arrival_round(recipe)
    )


def common_settings(recipe: Recipe) -> dict[str, Setting]:
    return {
        "rounds": rounds_of(recipe), "evaluate_every": 2, "newcomers_per_round": 2,
        "personalize_epochs": 0,
    }  # fmt: skip


def masked_specs(recipe: Recipe, sparsity: str) -> Iterable[RunSpec]:
    """Yield the runs that keep the mask and those that renew it on arrival."""
    data, settings = late_data(recipe), {**common_settings(recipe), "sparsity": sparsity}
    yield from recipe.specs(f"newcomers, kept mask {sparsity}", settings, data)
    refreshing = {**settings, "refresh_rounds": str(arrival_round(recipe))}
    yield from recipe.specs(f"newcomers, new mask {sparsity}", refreshing, data)


def specs(recipe: Recipe) -> Iterable[RunSpec]:
    data, common = late_data(recipe), common_settings(recipe)
    for sparsity in SPARSITIES:
        yield from masked_specs(recipe, sparsity)
        if sparsity in MIN_NEW:
            ours = {
                **common,
                "sparsity": sparsity,
                "refresh_rounds": str(arrival_round(recipe)),
                **OURS,
            }
            yield from recipe.specs(f"newcomers, ours {sparsity}", ours, data)
    yield from recipe.specs("newcomers, dense", {**common, **DENSE}, data)


def end_accuracies(recipe: Recipe, runs: Runs, name: str) -> dict[str, dict[int, float]]:
    """Return the accuracies of a configuration on the new and old classes, at its end."""
    return _ends(recipe, _groups(runs.documents(name)))


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
        "arrival": arrival_round(recipe),
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
        # Every client present at the start tested the first model.
        first = {row["client"] for row in document["evaluations"][0]["clients"]}
        late = set(document["clients"]) - first
        for group in ("new", "old"):
            curve = [
                _pooled(test["clients"], late, is_late=group == "new")
                for test in document["evaluations"]
            ]
            found[group].append(curve)
    return found


def _pooled(clients: list[dict[str, Any]], late: set[str], *, is_late: bool) -> float | None:
    tests = [row["evaluation"] for row in clients if (row["client"] in late) == is_late]
    total = sum(test["total"] for test in tests)
    return sum(test["correct"] for test in tests) / total if total else None


def _ends(recipe: Recipe, curves: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Return the mean accuracies of each seed on the new and old classes.

    `new` and `old` are means of the last ten rounds, or of those since the newcomers joined if
    these are fewer. `before` is the mean on the old classes in the ten rounds before they joined.
    """
    arrival, found = arrival_round(recipe), {}
    end = (max(rounds_of(recipe) - LAST, arrival), math.inf)
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
    "is maintained (CIFAR-10, round 225).",
    specs,
    conclude,
    ood_picture,
)
