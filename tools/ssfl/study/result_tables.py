"""The tables of a study, from the document that summary.json has.

The accuracy of the global model and that of personal models are never in the same table. The global
model is read at equal rounds, at equal training bytes and at equal client-updates; the place is the
smallest that all configurations have reached, so that each has a value there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ssfl.datasets.wording import plural
from ssfl.method.settings import RunSettings
from ssfl.strategies.registry import options_of
from ssfl.study.costs import CURVE, value_at
from ssfl.study.outcome import LAST, final
from ssfl.study.tables import Cell, Number, Table, number

Run = Mapping[str, Any]
Groups = Mapping[str, Sequence[Run]]
_MEGA, _GIGA = 1e-6, 1e-9
_CLOSE = 1.05  # a density up to this many times the target still reaches it


def tables_of(summary: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a study; empty if no run succeeded."""
    groups = runs_by_name(summary)
    if not groups:
        return []
    made = [_global(groups), _personal(groups), _bytes(groups), _work(groups), _gossip(groups)]
    made.append(_settings(groups, summary))
    return [table.without_empty_columns() for table in made if table and table.rows]


def runs_by_name(summary: Mapping[str, Any]) -> dict[str, list[Run]]:
    """Return the successful runs of each configuration, in the order of the summary."""
    groups: dict[str, list[Run]] = {}
    for run in summary["runs"]:
        if not run["error"]:
            groups.setdefault(run["name"], []).append(run)
    return groups


def labels(groups: Groups) -> dict[str, str]:
    """Return the name of each configuration; with its rounds if others have more."""
    rounds = {name: max(run["rounds"] for run in runs) for name, runs in groups.items()}
    most = max(rounds.values())
    return {
        name: name if count == most else f"{name} ({plural(count, 'round')})"
        for name, count in rounds.items()
    }


def equal_place(groups: Groups, axis: str) -> float:
    """Return the largest place on an axis that every run with tests has reached; 0: none has."""
    at = CURVE.index(axis)
    ends = [run["curve"][-1][at] for runs in groups.values() for run in runs if run["curve"]]
    return min(ends, default=0)


def _has_accuracy(groups: Groups) -> bool:
    return any(run["pooled"] is not None for runs in groups.values() for run in runs)


def _global(groups: Groups) -> Table:
    named, is_accuracy = labels(groups), _has_accuracy(groups)
    sent, updates = equal_place(groups, "bytes"), equal_place(groups, "client_updates")
    shown = [("pooled %", "pooled"), ("mean %", "mean")] if is_accuracy else [("loss", "loss")]
    factor, digits = (100.0, 1) if is_accuracy else (1.0, 4)
    places = [(f"at {sent * _MEGA:,.3g} MB", "bytes", sent)]
    places += [(f"at {updates:,g} client-updates", "client_updates", updates)]
    metrics = sorted({key for runs in groups.values() for run in runs for key in run["metrics"]})
    columns = ["configuration", "seeds"]
    columns += [heading for heading, _ in shown] + metrics
    columns += [f"{heading} {where}" for where, _, _ in places for heading, _ in shown]
    columns += ["weights tested %", "note"]
    rows = []
    for name, runs in groups.items():
        cells: list[Cell] = [named[name], Number(len(runs), digits=0)]
        for _, key in shown:
            ends = [final(run, key) if is_accuracy else run[key] for run in runs]
            cells.append(number(ends, factor, digits, with_sd=True))
        cells += [number([run["metrics"].get(m) for run in runs], 1, 4, with_sd=True)
                  for m in metrics]  # fmt: skip
        for _, axis, place in places:
            for _, key in shown:
                read = [value_at(run["curve"], axis, place, key) for run in runs]
                cells.append(number(read, factor, digits, with_sd=True))
        cells += [number(_all(runs, "density_tested"), 100), _note(runs)]
        rows.append(cells)
    most = max(run["rounds"] for runs in groups.values() for run in runs)
    last = (
        f", as means over the tests of the last {LAST} rounds in runs of {2 * LAST} or more"
        if is_accuracy
        else ""
    )
    notes = [
        f"Mean ± standard deviation over seeds. The first columns are those after {most} rounds"
        f"{last}. The others are read at the newest test up to the bytes, or client-updates, "
        "that every configuration reaches."
    ]
    return Table("global-model", "Global model", columns, rows, notes)


def _note(runs: Sequence[Run]) -> str:
    """Return what is above the sparsity of the configuration; empty if nothing is.

    Clients reach it if what they send does. A union of their masks is denser. The mean of all
    models of a gossip method is only tested: nothing trains from it.
    """
    target = runs[0].get("target_density")
    if target is None:
        return ""
    is_gossip = any(run.get("gossip") for run in runs)
    tested, sent = _largest(runs, "density_tested"), _largest(runs, "density_up_last")
    most, notes = target * _CLOSE, list[str]()
    what, reached = ("tests", tested) if sent is None and not is_gossip else ("sends", sent)
    if reached is not None and reached > most:
        share = f"{what} {100 * reached:.3g} % of the weights"
        notes.append(f"sparsity {100 * (1 - target):.3g} % not reached: {share}")
    if tested and sent and not is_gossip and tested > max(most, sent * _CLOSE):
        union = f"the union of the clients' masks is tested, with {100 * tested:.3g} %"
        notes.append(f"{union} of the weights")
    return "; ".join(notes)


def _largest(runs: Sequence[Run], key: str) -> float | None:
    return max((value for value in _all(runs, key) if value is not None), default=None)


def _personal(groups: Groups) -> Table:
    named = labels(groups)
    rows: list[list[Cell]] = [
        [
            named[name],
            _kind(runs[0]),
            number(_all(runs, "personal"), 100, with_sd=True),
            _own_models(runs),
            number(_all(runs, "density_up_last"), 100),
        ]
        for name, runs in groups.items()
        if all(run["has_personal_models"] for run in runs)
    ]
    notes = ["Accuracy of each client's own model on its own test samples, after the last round; "
             "mean over the clients that have one, ± standard deviation over seeds. A client that "
             "no round has sampled has no model that the method keeps. Not comparable with the "
             "accuracy of a global model."]  # fmt: skip
    columns = ["configuration", "personal model", "personal %", "clients that have one",
               "weights sent in the last round %"]  # fmt: skip
    return Table("personal-models", "Personal models", columns, rows, notes)


def _own_models(runs: Sequence[Run]) -> str:
    """Return how many clients have a model of their own, over all seeds; empty if not known."""
    counts = {(run.get("own_models"), run.get("own_models_of")) for run in runs}
    known = [(count, asked) for count, asked in counts if count is not None and asked is not None]
    if not known:
        return ""
    ends = [sorted(values) for values in zip(*known, strict=True)]
    have, asked = (f"{low[0]}" if low[0] == low[-1] else f"{low[0]}–{low[-1]}" for low in ends)
    return f"{have} of {asked}"


def _kind(run: Run) -> str:
    epochs = run.get("personalize_epochs") or 0
    tuned = f"the global model, trained for {epochs} more epoch{'s' * (epochs != 1)}"
    return "kept by the method" if run.get("keeps_personal_models") else tuned


def _bytes(groups: Groups) -> Table:
    kinds = {
        "rounds up": "bytes_rounds_up", "rounds down": "bytes_rounds_down",
        "masks up": "bytes_masks_up", "masks down": "bytes_masks_down",
        "one-off": "bytes_first_masks", "training": "bytes_training",
        "tests and delivery": "bytes_tests",
    }  # fmt: skip
    rows = [
        [labels(groups)[name], *(_unless_zero(number(_all(runs, key), _MEGA, 2))
                                 for key in kinds.values())]
        for name, runs in groups.items()
    ]  # fmt: skip
    notes = [
        "Megabytes of encoded tensors, all clients together, mean over seeds. *training* is the "
        "sum of the columns before it. *one-off* is what agrees on the first mask; *masks* are "
        "those that rounds move. *tests and delivery* is what tests of the global model, and the "
        "delivery of the final one, send."
    ]
    return Table("bytes", "Bytes", ["configuration", *kinds], rows, notes)


def _work(groups: Groups) -> Table:
    kinds: dict[str, Any] = {  # column: key, factor and digits
        "client-updates": ("client_updates", 1, 0),
        "local steps": ("local_steps", 1, 0),
        "GFLOP executed": ("flops_executed", _GIGA, 1),
        "GFLOP sparse": ("flops_sparse", _GIGA, 1),
        "mask work s": ("mask_seconds", 1, 1),
        "before round 1: MB": ("before_bytes", _MEGA, 2),
        "before round 1: s": ("before_seconds", 1, 1),
        "before round 1: updates": ("before_client_updates", 1, 0),
        "weights sent up %": ("density_up", 100, 1),
        "weights sent down %": ("density_down", 100, 1),
        "CPU s": ("cpu_seconds", 1, 0),
    }
    rows = [
        [labels(groups)[name], *(number(_all(runs, key), *more) for key, *more in kinds.values())]
        for name, runs in groups.items()
    ]
    notes = ["Of a whole run, mean over seeds. *executed*: floating-point operations of conv and "
             "linear layers in training as computed here, with dense kernels; *sparse*: those with "
             "weights of the mask alone. *mask work*: seconds of scoring, pruning and growing, on "
             "one core, all clients together. *before round 1*: bytes, seconds and client-updates "
             "before the first round."]  # fmt: skip
    return Table("work", "Work", ["configuration", *kinds], rows, notes)


def _gossip(groups: Groups) -> Table | None:
    names = dict.fromkeys(
        key for runs in groups.values() for run in runs for key in run.get("gossip", {})
    )
    rows = [
        [labels(groups)[name],
         *(number([run["gossip"].get(key) for run in runs], _MEGA, 2) for key in names)]
        for name, runs in groups.items()
        if any(run.get("gossip") for run in runs)
    ]  # fmt: skip
    columns = ["configuration", *(name.replace("_", " ") for name in names)]
    return Table("gossip", "Gossip, megabytes", columns, rows) if names else None


def _settings(groups: Groups, summary: Mapping[str, Any]) -> Table:
    chosen = summary.get("rates", {}).get("methods", {})
    rows: list[list[Cell]] = []
    for name, runs in groups.items():
        trials = chosen.get(name, {}).get("trials", {})
        how = f"best of {len(trials)}" if trials else "not chosen here"
        native = _native(runs[0]["spec"]["settings"])
        apart = {"learning_rate", *(["strategy_options"] if native else [])}
        given = {
            key: value
            for key, value in runs[0]["spec"]["settings"].items()
            if any(other[0]["spec"]["settings"].get(key) != value for other in groups.values())
            and key not in apart
        }
        rate: Cell = f"{float(runs[0]['learning_rate']):g}" if "learning_rate" in runs[0] else None
        words = [_setting(key, value) for key, value in given.items()]
        rows.append([labels(groups)[name], rate, how, ", ".join(words), native])
    notes = ["*other settings* are those that differ between configurations. *native "
             "hyper-parameters* are all settings of the strategy itself, also unchanged "
             "ones."]  # fmt: skip
    columns = [
        "configuration",
        "learning rate",
        "rate",
        "other settings",
        "native hyper-parameters",
    ]
    return Table("settings", "Settings", columns, rows, notes)


def _native(settings: Mapping[str, Any]) -> str:
    """Return the strategy's own settings, given and default; empty if it has none or is unknown."""
    known = {"strategy": RunSettings().strategy, "strategy_options": "", **settings}
    found = {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in options_of(known).items()
    }
    return ", ".join(f"{known['strategy']}.{name}={value}" for name, value in found.items())


def _setting(key: str, value: Any) -> str:
    return str(value) if key == "strategy_options" else f"{key.replace('_', '-')} {value}"


def _unless_zero(found: Number | None) -> Number | None:
    return found if found and found.mean else None


def _all(runs: Sequence[Run], key: str) -> list[float | None]:
    return [run.get(key) for run in runs]
