"""New classes arrive: which trigger notices, and which way of refreshing the mask is worth it.

The data are those of newcomers.py. Runs with the kept mask and with one new mask are shared.
"""

from collections.abc import Iterable, Mapping, Sequence

from ssfl.experiments import newcomers
from ssfl.experiments.contract import Experiment, Result, Runs, difference
from ssfl.experiments.recipe import Recipe
from ssfl.program.settings.loading import Setting
from ssfl.study.alarms import WITHIN, detection
from ssfl.study.charts.accuracy import differences_picture, partition_picture
from ssfl.study.charts.style import sparsity_text
from ssfl.study.sweep import RunSpec

SPARSITY, BEFORE = "0.95", "0.98"  # BEFORE: of the mask that grows
FACTORS = (1.1, 1.2, 1.3, 1.5, 2.0)
FACTOR = 1.2  # of the runs with a trigger
DETECTED = ("0.5", "0.95")
KEPT, RENEWED = f"newcomers, kept mask {SPARSITY}", f"newcomers, new mask {SPARSITY}"
WAYS = {
    "one new mask": RENEWED,
    "periodic": "newcomers, periodic",
    "on a loss jump": "newcomers, loss jump",
    "growth": "newcomers, growth",
}


def _settings(recipe: Recipe) -> dict[str, Mapping[str, Setting]]:
    arrival, rounds = newcomers.arrival_round(recipe), newcomers.rounds_of(recipe)
    grow = {"refresh_mode": "grow", "sparsity_schedule": f"0:{BEFORE},{arrival}:{SPARSITY}"}
    return {
        "newcomers, periodic": {"refresh_every": max(1, rounds // 6)},
        "newcomers, loss jump": {"refresh_on_loss_jump": FACTOR},
        "newcomers, growth": grow,
    }


def specs(recipe: Recipe) -> Iterable[RunSpec]:
    yield from newcomers.masked_specs(recipe, SPARSITY)
    data, common = newcomers.late_data(recipe), newcomers.common_settings(recipe)
    for name, settings in _settings(recipe).items():
        yield from recipe.specs(name, {**common, "sparsity": SPARSITY, **settings}, data)


def conclude(recipe: Recipe, runs: Runs) -> Result:
    rows, cells = [], []
    kept = newcomers.end_accuracies(recipe, runs, KEPT)
    sent = _mean(runs.values(KEPT, "bytes"))
    for label, name in {"kept mask": KEPT, **WAYS}.items():
        found, masks = (
            newcomers.end_accuracies(recipe, runs, name),
            [len(document["masks"]) - 1 for document in runs.documents(name)],
        )
        if name != KEPT:
            rows += [
                difference(f"{group} classes: {label} − kept mask", found[group], kept[group])
                for group in ("new", "old")
            ]
        ratio = _mean(runs.values(name, "bytes")) / sent
        shares = [f"{100 * _mean(list(found[group].values())):.1f}" for group in ("new", "old")]
        cells.append([label, *shares, f"{_mean(masks):.1f}", f"{ratio:.2f}"])
    columns = ["mask", "new classes, %", "old classes, %", "refreshes", "bytes, times kept mask"]
    return {
        "accuracy": "accuracy of the global model, pooled, last 10 rounds",
        "table": {"columns": columns, "rows": cells},
        "rows": rows,
        "found": [
            f"Growth begins at {sparsity_text(BEFORE)} and has the others' "
            f"{sparsity_text(SPARSITY)} from the arrival on."
        ],
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


REFRESH = Experiment(
    "refresh",
    "One new mask, periodic ones, a trigger, or growth",
    "None measured: the appendix names periodic refinement and incremental growth as other ways "
    "to adapt, the first at a higher cost in bytes.",
    specs,
    conclude,
    differences_picture,
)


def detection_specs(recipe: Recipe) -> Iterable[RunSpec]:
    for sparsity in DETECTED:
        yield from newcomers.masked_specs(recipe, sparsity)


def conclude_detection(recipe: Recipe, runs: Runs) -> Result:
    arrival, cells = newcomers.arrival_round(recipe), []
    groups: dict[str, dict[str, list[float]]] = {}
    for sparsity in DETECTED:
        losses = [
            [entry["training_loss"] for entry in document["rounds"]]
            for document in runs.documents(f"newcomers, kept mask {sparsity}")
        ]
        for factor in FACTORS:
            found = [detection(own, factor, arrival) for own in losses]
            hits = [float(one.hit) for one in found]
            false = [one.false / one.rounds_before for one in found]
            delays = [one.delay for one in found if one.delay is not None]
            where = f"{factor:g}, {sparsity_text(sparsity)}"
            groups[where] = {"runs with a hit": hits, "rounds with a false alarm": false}
            cells.append(
                [
                    f"{factor:g}",
                    sparsity_text(sparsity),
                    f"{sum(one.hit for one in found)} of {len(found)}",
                    f"{_mean(delays):.1f}" if delays else "",
                    f"{sum(one.false for one in found)} in {len(found) * arrival} rounds",
                ]
            )
    columns = ["factor", "sparsity", "hits", "rounds until the hit", "false alarms"]
    return {
        "accuracy": f"a hit: within {WITHIN} rounds of the arrival",
        "groups": groups,
        "table": {"columns": columns, "rows": cells},
        "rows": [],
    }


DETECTION = Experiment(
    "detection",
    "Does the loss show that new classes have arrived?",
    "The mask is refreshed upon detecting a shift; how it is detected is left open, and no hits or "
    "false alarms are given.",
    detection_specs,
    conclude_detection,
    partition_picture,
)
