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
        kept = _groups(runs.documents(f"newcomers, kept mask {sparsity}"))
        new = _groups(runs.documents(f"newcomers, new mask {sparsity}"))
        effects = [
            difference(
                f"{group} classes: new mask − kept mask, {sparsity_text(sparsity)}",
                _last(recipe, new, group), _last(recipe, kept, group),
            )
            for group in ("new", "old")
        ]  # fmt: skip
        panels[sparsity] = {"refresh": new, "no refresh": kept, "difference": effects[0]["values"]}
        rows += [*effects, *_bars(recipe, sparsity, new, "new mask")]
        if sparsity in MIN_NEW:
            ours = _groups(runs.documents(f"newcomers, ours {sparsity}"))
            rows += _bars(recipe, sparsity, ours, "new mask, trained as ours")
        masks = [run["masks"] for run in runs.documents(f"newcomers, new mask {sparsity}")]
        replaced[sparsity] = [entries[-1]["renewed"]["replaced"] for entries in masks]
        found.append(_sentence(recipe, sparsity, new, kept))
    dense = _groups(runs.documents("newcomers, dense"))
    nothing = dict.fromkeys(recipe.seeds, 0.0)
    rows.append(difference("new classes reach, dense", _last(recipe, dense, "new"), nothing))
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


def _last(recipe: Recipe, curves: dict[str, Any], group: str) -> dict[int, float]:
    """Return the mean of the last ten rounds by seed, or of fewer since the newcomers joined."""
    return _means(recipe, curves, group, max(_rounds(recipe) - LAST, _arrival(recipe)))


def _before(recipe: Recipe, curves: dict[str, Any]) -> dict[int, float]:
    """Return the accuracy on the old classes in the ten rounds before the arrival, by seed."""
    arrival = _arrival(recipe)
    return _means(recipe, curves, "old", arrival - LAST, arrival)


def _means(
    recipe: Recipe, curves: dict[str, Any], group: str, after: int, until: float = math.inf
) -> dict[int, float]:
    places = [i for i, number in enumerate(curves["rounds"]) if after < number <= until]
    return {
        seed: sum(curve[i] for i in places) / len(places)
        for seed, curve in zip(recipe.seeds, curves[group], strict=True)
    }


def _bars(recipe: Recipe, sparsity: str, new: dict[str, Any], how: str) -> list[dict[str, Any]]:
    if sparsity not in MIN_NEW:
        return []
    nothing = dict.fromkeys(recipe.seeds, 0.0)
    text = sparsity_text(sparsity)
    return [
        difference(
            f"new classes reach, {text}, {how}", _last(recipe, new, "new"), nothing,
            MIN_NEW[sparsity],
        ),
        difference(
            f"old classes: end − before, {text}, {how}", _last(recipe, new, "old"),
            _before(recipe, new), -MAX_LOST,
        ),
    ]  # fmt: skip


def _sentence(recipe: Recipe, sparsity: str, new: dict[str, Any], kept: dict[str, Any]) -> str:
    def mean(values: dict[int, float]) -> str:
        return f"{100 * sum(values.values()) / len(values):.1f}"

    refreshed, before = mean(_last(recipe, new, "new")), mean(_before(recipe, new))
    return (
        f"At {sparsity_text(sparsity)} the new classes reach {refreshed} % with a new mask and "
        f"{mean(_last(recipe, kept, 'new'))} % with the old one; the old classes go from "
        f"{before} to {mean(_last(recipe, new, 'old'))} %."
    )


NEWCOMERS = Experiment(
    "newcomers",
    "Two classes arrive later",
    "After one new mask the two new classes rise from 0 to over 80 % while the global accuracy "
    "stays (CIFAR-10, round 225).",
    specs,
    conclude,
    ood_picture,
)
