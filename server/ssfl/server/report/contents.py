"""The report of a run: report.html, report.json and CSV tables, next to its history.

The report depends only on the files of the run, so it can be built again with the same result. The
coordinator writes it when the run ends; `ssfl report` writes it for any folder of a run. Memory
does not grow with the number of rounds, which are read one by one (source.py, run_view.py).
"""

import codecs
import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from ssfl.durable.files import atomic_file, write_atomic
from ssfl.method.settings import RunSettings
from ssfl.server.accounting.dense_equivalent import COMPARED
from ssfl.server.accounting.ledger import COUNTS, Direction
from ssfl.server.history.run_history import Entry
from ssfl.server.history.timing import PHASES
from ssfl.server.report.mask_image import mask_pictures
from ssfl.server.report.page import page, to_json
from ssfl.server.report.run_view import CLIENT_COLUMNS, RunView, layer_rows, sent_bytes
from ssfl.server.report.source import ReportError, Source, open_folder
from ssfl.server.report.traffic import DenseComparison, formulas, paper_break_even
from ssfl.strategies.registry import options_of, strategy_of

FORMAT = 1  # of report.json
HTML, JSON = "report.html", "report.json"
TABLES = ("rounds", "evaluations", "clients")  # names of the CSV files without .csv
MASK_COLUMNS = ("density", "changed", "client_density", "client_changed")
ROUND_COLUMNS = (
    "round", "began", "seconds", *(f"{phase}_s" for phase in PHASES), "last", "clients", "missing",
    "attempt", "accuracy", "mean_accuracy", "loss", "training_loss", "up_bytes", "down_bytes",
    "personal", *MASK_COLUMNS,
)  # fmt: skip
EVALUATION_COLUMNS = (
    "rounds_done", "began", "seconds", "clients", "missing", "accuracy", "mean_accuracy", "loss",
    "validation_accuracy", "validation_loss", "metrics", "sent_bytes",
)  # fmt: skip


def write_report(folder: Path, source: Source | None = None) -> Path:
    """Write the report of the run in `folder` to that folder; return the path of the HTML file."""
    write_files(source or open_folder(folder), folder / HTML)
    return folder / HTML


def write_files(source: Source, html: Path, prefix: str = "") -> None:
    """Write the report: the HTML file, a JSON file, and tables whose names begin with `prefix`."""
    rounds, evaluations, clients = (html.with_name(f"{prefix}{name}.csv") for name in TABLES)
    with atomic_file(rounds) as round_file, atomic_file(evaluations) as evaluation_file:
        round_table = _table(round_file, ROUND_COLUMNS)
        evaluation_table = _table(evaluation_file, EVALUATION_COLUMNS)

        def write_row(name: str, entry: Entry, point: Entry) -> None:
            if name == "rounds":
                round_table.writerow(_round_row(entry, point))
            elif name == "evaluations":
                evaluation_table.writerow(_evaluation_row(entry))

        document = report_document(source, write_row)
    with atomic_file(clients) as file:
        _table(file, CLIENT_COLUMNS).writerows(document["clients"])
    write_atomic(html.with_suffix(".json"), to_json(document))
    write_atomic(html, page(f"ssfl run {document['run_id']}", document))


def report_document(
    source: Source, on_entry: Callable[[str, Entry, Entry], None] | None = None
) -> dict[str, Any]:
    """Return the content of the report; its size is bounded for any number of rounds.

    `on_entry` is called for every entry, with the name of its list (masks, rounds or evaluations),
    the entry, and the newest point of the curve.
    """
    summary, settings = source.summary, source.summary["settings"]
    strategy = strategy_of(settings)
    view = RunView(own_masks=strategy is not None and strategy.has_own_masks)
    mask = summary.get("mask") or {}
    comparison = None
    if mask.get("num_masked"):
        comparison = DenseComparison(mask["num_values"], mask["num_masked"])
    newest_round: Entry = {}
    best, saved = None, summary.get("best")
    try:
        for name, entry in source.entries():
            view.add(name, entry)
            if comparison:
                comparison.add(name, entry, view)
            if name == "rounds":
                newest_round = entry
            elif name == "evaluations" and saved and entry["rounds_done"] == saved["rounds_done"]:
                best = _best(saved, entry)
            if on_entry:
                on_entry(name, entry, view.newest_round)
        view.add_bytes(source.ledger_rows())
    except (KeyError, TypeError, AttributeError) as error:
        text = f"{source.folder} has an entry that this version of ssfl cannot read: {error!r}"
        raise ReportError(text) from error
    return {
        "format": FORMAT,
        "kind": "run",
        "run_id": summary["run_id"],
        "software": summary.get("software", ""),
        "verdict": verdict(summary),
        "rounds_done": summary["rounds_done"],
        "rounds_planned": settings.get("rounds"),
        "strategy": settings.get("strategy", ""),
        "strategy_options": options_of(settings),
        "has_mask": strategy is None or not strategy.is_dense,
        "has_personal_models": strategy is not None and strategy.has_personal_models,
        "settings": setting_rows(settings),
        "encodings": encodings(summary["ledger"]),
        "quality": _quality(best, view, newest_round),
        "curve": view.curve.points(),
        "evaluations": view.evaluations.points(),
        "timeline": list(view.timeline),
        "times": _times(view),
        "bytes": _bytes(summary, view, comparison),
        "mask": {key: mask[key] for key in mask if key != "layers"} or None,
        "layers": layer_rows(mask.get("layers") or {}),
        "masks": list(view.masks),
        "num_masks": view.num_masks,
        "pictures": mask_pictures(*source.model) if source.model else [],
        "votes": summary.get("votes") or [],
        "not_voted": summary.get("not_voted") or [],
        "densities": summary.get("densities") or [],
        "clients": view.clients(summary["clients"]),
        "personal": summary.get("personal"),
        "incidents": list(view.incidents),
        "num_void": summary.get("num_void", 0),
        "model_digest": summary.get("model_digest", ""),
        "best": saved,
    }


def verdict(summary: Mapping[str, Any]) -> Entry:
    """Return whether and how the run ended, as a word and a sentence."""
    done, planned = summary["rounds_done"], summary["settings"].get("rounds")
    count = f"{done} of {planned} rounds"
    if summary.get("stopped"):
        return {"word": "stopped", "text": f"stopped by an operator after {count}"}
    if summary.get("ended_early"):
        return {"word": "ended early", "text": f"ended after {count}: {summary['ended_early']}"}
    if summary["finished"]:
        all_of_them = f"all {done} rounds" if done != 1 else "its one round"
        return {"word": "finished", "text": f"finished {all_of_them}"}
    return {"word": "not finished", "text": f"not finished: {count} so far"}


def setting_rows(settings: Mapping[str, Any]) -> list[Entry]:
    """Return the settings, those that differ from the defaults first."""
    defaults = asdict(RunSettings())
    rows = [
        {
            "name": name, "value": value, "default": defaults.get(name),
            "changed": name not in defaults or value != defaults[name],
        }
        for name, value in settings.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: not row["changed"])


def encodings(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the encodings of sent values by direction."""
    found: dict[str, set[str]] = {direction.value: set() for direction in Direction}
    for row in rows:
        if row["phase"] in COMPARED and row["payload_bytes"]:
            found[row["direction"]].add(row["encoding"])
    return {direction: sorted(names) for direction, names in found.items()}


def _best(saved: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Entry:
    """Return the metrics that all clients measured on test samples with the best saved model.

    `chosen_on` names the samples on which it was chosen: test or validation.
    """
    return {
        "rounds_done": evaluation["rounds_done"],
        "accuracy": evaluation["pooled"],
        "loss": evaluation["loss"],
        "chosen_on": saved.get("chosen_on", "test"),
        "chosen_accuracy": saved.get("accuracy"),
        "chosen_loss": saved.get("loss"),
    }


def _quality(best: Entry | None, view: RunView, newest_round: Entry) -> Entry:
    """Return test metrics: `final` of the newest tested model, `best` of the best saved one.

    `highest` is the best test by all clients, whether its model was saved or not.
    `mean_accuracy` and `personal_accuracy` are means over the clients of the newest round. The
    first is of the model with which the round began, the second of each client's own model after
    training.
    """
    tested = view.evaluations.points()
    final = tested[-1] if tested else None
    curve = view.curve.points()
    if final is None and curve:  # there is no test by all clients: use that of the newest round
        final = {"rounds_done": curve[-1]["round"], "metrics": newest_round.get("metrics") or {},
                 "accuracy": curve[-1]["accuracy"], "loss": curve[-1]["loss"]}  # fmt: skip
    return {
        "final": final,
        "by": "all clients" if tested else "the clients of the newest round",
        "best": best,
        "highest": view.best,
        "mean_accuracy": newest_round.get("mean"),
        "personal_accuracy": newest_round.get("personal"),
    }


def _times(view: RunView) -> Entry:
    known, began, ended = view.num_timed, view.began, view.ended
    return {
        "began": began,
        "ended": ended,
        "whole_s": None if began is None or ended is None else ended - began,
        "num_rounds": view.num_rounds,
        "num_timed": known,
        "seconds": view.seconds,
        "mean_s": view.seconds / known if known else None,
        "slowest_s": view.slowest_s if known else None,
        "phases": view.phase_seconds,
    }


def _bytes(summary: Mapping[str, Any], view: RunView, comparison: DenseComparison | None) -> Entry:
    rows: Sequence[Mapping[str, Any]] = summary["ledger"]
    found = view.bytes(rows, comparison.num_values if comparison else 0)
    found["total"] = {
        direction.value: {
            count: sum(row.get(count) or 0 for row in rows if row["direction"] == direction)
            for count in COUNTS
        }
        for direction in Direction
    }
    if comparison:
        found["formulas"] = formulas(comparison, rows, view, len(summary["clients"]))
        kept = summary["mask"]["num_kept"]
        by_paper = paper_break_even(comparison.num_values, comparison.num_masked, kept)
        found["break_even"] = {"round": comparison.break_even, "paper": by_paper}
    return found


def _table(file: BinaryIO, columns: Sequence[str]) -> "csv.DictWriter[str]":
    """Write the header of a CSV file; return a writer of its rows."""
    text = codecs.getwriter("utf-8")(file)
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    return writer


def _round_row(entry: Entry, point: Entry) -> Entry:
    """Return a row of rounds.csv from a round's entry and its point on the curve."""
    phases = entry.get("phases") or {}
    return {
        **entry,
        **(entry.get("mask") or {}),
        **{f"{phase}_s": phases.get(phase) for phase in PHASES},
        "clients": len(entry["clients"]),
        "missing": len(entry["missing"]),
        "mean_accuracy": entry.get("mean"),
        **{name: point[name] for name in ("accuracy", "up_bytes", "down_bytes")},
    }


def _evaluation_row(entry: Entry) -> Entry:
    """Return a row of evaluations.csv: a test of the global model by all clients."""
    validation = entry.get("validation") or {}
    return {
        **entry,
        "clients": len(entry["clients"]),
        "missing": len(entry["missing"]),
        "accuracy": entry["pooled"],
        "mean_accuracy": entry.get("mean"),
        "validation_accuracy": validation.get("pooled"),
        "validation_loss": validation.get("loss"),
        "metrics": json.dumps(entry.get("metrics") or {}),
        "sent_bytes": sent_bytes(entry["ledger"]),
    }
