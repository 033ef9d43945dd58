"""The paper's tables: every method on two partitions, by sparsity, and what each costs.

A method whose clients have models of their own is compared with SSFL's own models, any other with
SSFL's global model. Gossip methods (D-PSGD, DisPFL, FedFOMO) train all clients in every round; they
have a fifth of the rounds, which is twice the client-updates of the others.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ssfl.experiments.contract import Experiment, Result, Runs
from ssfl.experiments.recipe import FEWER, MEAN, PERSONAL, Recipe
from ssfl.program.settings.loading import Setting
from ssfl.study.charts.accuracy import (
    convergence_picture,
    partition_picture,
    sparsity_picture,
)
from ssfl.study.charts.style import sparsity_text
from ssfl.study.intervals import mean_and_sd, percent_text
from ssfl.study.sweep import RunSpec

BOTH = "mean over clients: of the global model in the last 10 rounds, or of their own models"
OWN = "mean over clients of their own models, after the last round"
SWEEP = ("0.5", "0.7", "0.8", "0.9", "0.95")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table of methods: its runs, and which accuracy it has."""

    run: str
    measure: str = MEAN


SSFL = "ssfl 0.5"
TABLE_2: Mapping[str, Row] = {
    "FedAvg": Row("dense"),
    "FedAvg-FT": Row("dense", PERSONAL),
    "D-PSGD-FT": Row("d-psgd-ft", PERSONAL),
    "Ditto": Row("ditto", PERSONAL),
    "FedFOMO": Row("fedfomo", PERSONAL),
    "SSFL": Row(SSFL),
    "SSFL, fine-tuned": Row(SSFL, PERSONAL),
    "DisPFL": Row("dispfl 0.5", PERSONAL),
    "Sub-FedAvg": Row("sub-fedavg 0.5", PERSONAL),
    "Random": Row("client-random-zeros 0.5"),
}
TABLE_1: Mapping[str, Row] = {
    **TABLE_2,
    "SparsyFed": Row("sparsyfed 0.5"),
    "FLASH-SPDST": Row("flash-spdst 0.5"),
    "FLASH-JMWST": Row("flash-jmwst 0.5"),
    "FedPM": Row("fedpm"),
}
KINDS = {MEAN: "global model", PERSONAL: "own models"}


def _names(table: Mapping[str, Row]) -> dict[str, None]:
    return dict.fromkeys(row.run for row in table.values())


def _conclude_table(runs: Runs, table: Mapping[str, Row], prefix: str = "") -> Result:
    cells, rows = [], []
    groups: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS.values()}
    for label, row in table.items():
        name, kind = prefix + row.run, KINDS[row.measure]
        found = runs.values(name, row.measure)
        groups[kind][label] = found
        cells.append([label, kind, percent_text(found)])
        if row.run != SSFL:
            rows.append(
                runs.difference(f"SSFL − {label}, {kind}", prefix + SSFL, name, measure=row.measure)
            )
    table_of_all = {"columns": ["method", "accuracy of", "%"], "rows": cells}
    return {"accuracy": BOTH, "groups": groups, "table": table_of_all, "rows": rows}


METHODS = Experiment(
    "methods",
    "All methods at 50 %, Dirichlet mixes",
    "SSFL is above every other method (CIFAR-10, in %: SSFL 88.3; FedAvg 86.0, fine-tuned 88.0; "
    "D-PSGD-FT 83.1; Ditto 83.5; FOMO 66.2; DisPFL 85.1; SparsyFed 80.9; Flash 81.1; SubFedAvg "
    "76.5; Random 41.6; FedPM 46.4).",
    lambda recipe: recipe.methods(_names(TABLE_1)),
    lambda _recipe, runs: _conclude_table(runs, TABLE_1),
    partition_picture,
)


def _pathological(recipe: Recipe) -> Iterable[RunSpec]:
    data = replace(recipe.data, partition="classes", classes_per_client=2)
    return recipe.methods(_names(TABLE_2), data, "2 classes, ")


METHODS_PATHOLOGICAL = Experiment(
    "methods-pathological",
    "All methods at 50 %, two classes per client",
    "SSFL is above every other method (CIFAR-10, in %: SSFL 94.6; FedAvg 92.5, fine-tuned 92.9; "
    "D-PSGD-FT 88.7; Ditto 83.5; FOMO 88.3; DisPFL 91.3; SubFedAvg 91.2; Random 55.3); on "
    "CIFAR-100 it is 0.5 points below FedAvg.",
    _pathological,
    lambda _recipe, runs: _conclude_table(runs, TABLE_2, "2 classes, "),
    partition_picture,
)

SWEPT = {
    "SSFL": "ssfl", "DisPFL": "dispfl", "Sub-FedAvg": "sub-fedavg", "Random": "client-random-zeros",
}  # fmt: skip


def _sweep(recipe: Recipe) -> Iterable[RunSpec]:
    swept = [f"{method} {sparsity}" for method in SWEPT.values() for sparsity in SWEEP]
    return recipe.methods([*swept, "fedpm", "dense"])


def _conclude_sweep(_recipe: Recipe, runs: Runs) -> Result:
    rows = [
        runs.difference(
            f"SSFL − {label}, {sparsity_text(sparsity)}", f"ssfl {sparsity}",
            f"{method} {sparsity}", measure=PERSONAL,
        )
        for label, method in SWEPT.items() if label != "SSFL"
        for sparsity in SWEEP
    ]  # fmt: skip
    rows.append(runs.difference("SSFL, 50 % − FedPM, global models", SSFL, "fedpm"))
    kept = mean_and_sd(runs.values("fedpm", "density_tested"))[0]
    reached = {
        sparsity: mean_and_sd(runs.values(f"sub-fedavg {sparsity}", "density_up_last"))[0]
        for sparsity in SWEEP
    }
    found = [f"FedPM finds its own sparsity: {100 * (1 - kept):.0f} %."]
    found += [
        f"Sub-FedAvg at {sparsity_text(sparsity)}: its clients send {100 * share:.0f} % of the "
        "weights in the last round."
        for sparsity, share in reached.items()
        if share > 1.05 * (1 - float(sparsity))
    ]
    return {
        "accuracy": OWN,
        "dense": runs.values("dense", PERSONAL),
        "series": {
            label: {s: runs.values(f"{method} {s}", PERSONAL) for s in SWEEP}
            for label, method in SWEPT.items()
        },
        "rows": rows,
        "found": found,
    }


SPARSE_METHODS = Experiment(
    "sparse-methods",
    "Sparse methods from 50 to 95 %",
    "SSFL is above DisPFL, SubFedAvg, FedPM and random masks at every sparsity, and the others "
    "degrade (a figure; at 50 % on CIFAR-10 88.3, 85.1, 76.5, 46.4, 41.6 %).",
    _sweep,
    _conclude_sweep,
    sparsity_picture,
)

LARGER: Mapping[str, Setting] = {"width": 16}  # four times the weights
LARGER_PREFIX = "larger, "


def _larger(recipe: Recipe) -> Iterable[RunSpec]:
    wide = replace(recipe, settings={**recipe.settings, **LARGER})
    both = [f"{method} {sparsity}" for method in ("ssfl", "dispfl") for sparsity in SWEEP]
    return wide.methods([*both, "dense"], prefix=LARGER_PREFIX)


def _conclude_larger(_recipe: Recipe, runs: Runs) -> Result:
    prefix = LARGER_PREFIX
    return {
        "accuracy": OWN,
        "dense": runs.values(f"{prefix}dense", PERSONAL),
        "series": {
            label: {s: runs.values(f"{prefix}{method} {s}", PERSONAL) for s in SWEEP}
            for label, method in (("SSFL", "ssfl"), ("DisPFL", "dispfl"))
        },
        "rows": [
            runs.difference(
                f"SSFL − DisPFL, {sparsity_text(s)}", f"{prefix}ssfl {s}", f"{prefix}dispfl {s}",
                measure=PERSONAL,
            )
            for s in SWEEP
        ],
    }  # fmt: skip


LARGER_NETWORK = Experiment(
    "larger-network",
    "SSFL and DisPFL in a network of four times the weights",
    "ResNet-50 on CIFAR-100: SSFL is 23.2, 27.9, 26.1, 34.1, 35.5 points above DisPFL at 50, 70, "
    "80, 90, 95 %, and 2.3 to 14.5 below dense FedAvg.",
    _larger,
    _conclude_larger,
    sparsity_picture,
)


def _conclude_convergence(_recipe: Recipe, runs: Runs) -> Result:
    curves = {
        f"{label} (own)" if row.measure == PERSONAL else label: _curve(runs, row)
        for label, row in TABLE_1.items()
        if label not in ("FedAvg-FT", "SSFL, fine-tuned")  # fine-tuned after the last round
    }
    return {
        "accuracy": "mean over clients of the global or of their own models",
        "axis": "client-updates",
        "curves": curves,
        "rows": [],
        "found": ["Own models are those of the clients that trained in the round."],
    }


def _curve(runs: Runs, row: Row) -> dict[str, Any]:
    """Return the accuracies of each seed by client-updates."""
    documents = runs.documents(row.run)
    if row.measure == PERSONAL:
        places = [len(entry["clients"]) for entry in documents[0]["rounds"]]
        updates = [sum(places[: number + 1]) for number in range(len(places))]
        seeds = [[entry["personal"] for entry in doc["rounds"]] for doc in documents]
        return {"rounds": updates, "seeds": seeds}
    curves = runs.outcomes(row.run, "curve")
    return {
        "rounds": [point[2] for point in curves[0]],
        "seeds": [[point[4] for point in curve] for curve in curves],
    }


CONVERGENCE_ALL = Experiment(
    "convergence-all",
    "Convergence of all methods",
    "SSFL converges faster than the other methods over 500 rounds; Ditto has not converged after "
    "500 and is run for 800 (figures only).",
    METHODS.specs,
    _conclude_convergence,
    convergence_picture,
)

ENCODINGS: Mapping[str, Callable[[float], float]] = {
    "dense": lambda _density: 1.0,
    "bitmask": lambda density: density + 1 / 32,
    "COO": lambda density: 2 * density,
    "values of a fixed mask": lambda density: density,
}
COSTED = {
    "FedAvg": "dense", "SSFL": SSFL, "SparsyFed": "sparsyfed 0.5", "DisPFL": "dispfl 0.5",
    "FLASH-JMWST": "flash-jmwst 0.5", "FLASH-SPDST": "flash-spdst 0.5", "FedPM": "fedpm",
}  # fmt: skip
FLOPS = ("flops_sparse", "flops_executed")
COSTS_PREFIX = "costs, "
WITHOUT_TESTS: Mapping[str, Setting] = {
    "evaluate_every": 0, "evaluate_last": 0, "personalize_epochs": 0,
}  # fmt: skip


def encoding_shares(density: float) -> dict[str, float]:
    """Return the bytes of an update relative to dense float32, as the paper counts them.

    >>> {name: round(100 * share, 1) for name, share in encoding_shares(0.05).items()}
    {'dense': 100.0, 'bitmask': 8.1, 'COO': 10.0, 'values of a fixed mask': 5.0}
    """
    return {name: share(density) for name, share in ENCODINGS.items()}


def _cost_specs(recipe: Recipe) -> Iterable[RunSpec]:
    """Return short runs without tests, so that every model is sent for its round."""
    rounds = max(2, recipe.rounds // FEWER)
    own = {**recipe.settings, **WITHOUT_TESTS}
    for spec in replace(recipe, settings=own).methods(COSTED.values(), prefix=COSTS_PREFIX):
        yield replace(spec, settings={**spec.settings, **WITHOUT_TESTS, "rounds": rounds})


def _conclude_costs(_recipe: Recipe, runs: Runs) -> Result:
    dense = _per_update(runs, COSTS_PREFIX + "dense")
    groups: dict[str, dict[str, list[float]]] = {"up": {}, "down": {}}
    cells = []
    for label, run in COSTED.items():
        name = COSTS_PREFIX + run
        shares = [own / other for own, other in zip(_per_update(runs, name), dense, strict=True)]
        for way, share in zip(groups, shares, strict=True):
            groups[way][label] = [share]
        total = {
            measure: sum(runs.values(name, measure))
            for measure in ("before_bytes", "before_client_updates", "mask_seconds", *FLOPS)
        }
        seeds = len(runs.values(name, "bytes"))
        cells.append(
            [
                label,
                *(f"{100 * share:.1f}" for share in shares),
                f"{total['before_bytes'] / seeds / 1e6:.2f}",
                f"{total['before_client_updates'] / seeds:.0f}",
                f"{100 * total['flops_sparse'] / total['flops_executed']:.0f}",
                f"{total['mask_seconds'] / seeds:.1f}",
            ]
        )
    formula = [
        f"By formula, at {sparsity_text(f'{1 - density:g}')}: "
        + ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
        + " of dense float32."
        for density, shares in ((d, encoding_shares(d)) for d in (0.5, 0.05))
    ]
    columns = [
        "method, 50 %", "up, % of dense", "down, % of dense", "MB before round 1",
        "client-updates before round 1", "operations inside the mask, %", "mask work, s",
    ]  # fmt: skip
    return {
        "accuracy": "bytes of a client in a round, relative to dense",
        "groups": groups,
        "table": {"columns": columns, "rows": cells},
        "rows": [],
        "found": ["Bytes are those of values as they are coded here.", *formula],
    }


def _per_update(runs: Runs, name: str) -> tuple[float, float]:
    """Return the bytes of a client in a round, up and down, masks included."""
    updates = sum(runs.values(name, "client_updates"))
    up, down = (
        sum(runs.values(name, f"bytes_rounds_{way}")) + sum(runs.values(name, f"bytes_masks_{way}"))
        for way in ("up", "down")
    )
    return up / updates, down / updates


COSTS = Experiment(
    "costs",
    "What a round costs, by method",
    "Up and down, SSFL and FLASH-SPDST send values only (s of dense), the others also indices; "
    "SSFL has no work on masks in the rounds and one minibatch before them, FLASH a warm-up of "
    "several epochs. Bytes by encoding, at 50 and 95 %: bitmask 53.1 and 8.1, COO 100 and 10, a "
    "fixed mask 50 and 5 % of dense.",
    _cost_specs,
    _conclude_costs,
    partition_picture,
)
