"""The report of a run: report.html, report.json and CSV tables, next to its history.

The report depends only on the files of the run, so it can be built again with the same result. The
coordinator writes it when the run ends; `ssfl report` writes it for any folder. Memory does not
grow with the rounds, which are read one by one (source.py, run_view.py).
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
from ssfl.server.accounting.dense_equivalent import COMPARED, has_own_masks
from ssfl.server.accounting.ledger import COUNTS, Direction
from ssfl.server.history.run_history import Entry
from ssfl.server.history.timing import PHASES
from ssfl.server.report.mask_image import mask_pictures
from ssfl.server.report.page import page, to_json
from ssfl.server.report.run_view import CLIENT_COLUMNS, RunView, layer_rows, sent_bytes
from ssfl.server.report.source import ReportError, Source, open_folder
from ssfl.server.report.traffic import DenseComparison, formulas, paper_break_even

FORMAT = 1  # of report.json
HTML, JSON = "report.html", "report.json"
TABLES = ("rounds", "evaluations", "clients")  # with .csv behind
ROUND_COLUMNS = (
    "round", "began", "seconds", *(f"{phase}_s" for phase in PHASES), "last", "clients", "missing",
    "attempt", "accuracy", "mean_accuracy", "loss", "training_loss", "up_bytes", "down_bytes",
)  # fmt: skip
EVALUATION_COLUMNS = (
    "rounds_done", "began", "seconds", "clients", "missing", "accuracy", "mean_accuracy", "loss",
    "validation_accuracy", "validation_loss", "metrics", "sent_bytes",
)  # fmt: skip


def write_report(folder: Path) -> Path:
    """Write the report of the run in `folder` to that folder; return the path of the HTML file."""
    write_files(open_folder(folder), folder / HTML)
    return folder / HTML


def write_files(source: Source, html: Path, before: str = "") -> None:
    """Write the report: the HTML file, its JSON and tables, whose names begin with `before`."""
    rounds, evaluations, clients = (html.with_name(f"{before}{name}.csv") for name in TABLES)
    with atomic_file(rounds) as file, atomic_file(evaluations) as other:
        round_table, test_table = _table(file, ROUND_COLUMNS), _table(other, EVALUATION_COLUMNS)

        def write_row(name: str, entry: Entry, point: Entry) -> None:
            if name == "rounds":
                round_table.writerow(_round_line(entry, point))
            elif name == "evaluations":
                test_table.writerow(_test_line(entry))

        document = report_document(source, write_row)
    with atomic_file(clients) as file:
        _table(file, CLIENT_COLUMNS).writerows(document["clients"])
    write_atomic(html.with_suffix(".json"), to_json(document))
    write_atomic(html, page(f"ssfl run {document['run_id']}", document))


def report_document(
    source: Source, on_entry: Callable[[str, Entry, Entry], None] | None = None
) -> dict[str, Any]:
    """Return the content of the report; its size does not depend on the number of rounds.

    `on_entry` is called with every entry, the name of its list and the newest point of the curve.
    """
    summary, settings = source.summary, source.summary["settings"]
    own_masks = has_own_masks(settings.get("strategy", ""), settings.get("criterion", ""))
    view = RunView(own_masks=own_masks)
    mask = summary.get("mask") or {}
    against = None
    if mask.get("num_masked"):
        against = DenseComparison(mask["num_values"], mask["num_masked"])
    newest: Entry = {}
    best, saved = None, summary.get("best")
    try:
        for name, entry in source.entries():
            view.add(name, entry)
            if against:
                against.add(name, entry, view)
            if name == "rounds":
                newest = entry
            elif name == "evaluations" and saved and entry["rounds_done"] == saved["rounds_done"]:
                best = _best(saved, entry)
            if on_entry:
                on_entry(name, entry, view.newest_round)
        view.add_bytes(source.ledger_rows())
    except (KeyError, TypeError, AttributeError) as error:
        text = f"{source.folder} holds an entry of another kind: {error!r}"
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
        "settings": setting_rows(settings),
        "encodings": encodings(summary["ledger"]),
        "quality": _quality(best, view, newest),
        "curve": view.curve.points(),
        "evaluations": view.evaluations.points(),
        "timeline": list(view.timeline),
        "times": _times(view),
        "bytes": _bytes(summary, view, against),
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
    """Return how the run ended, or that it has not, as a word and a sentence."""
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
    """Return the encodings of values by direction: the effect of --reference-coding."""
    found: dict[str, set[str]] = {way.value: set() for way in Direction}
    for row in rows:
        if row["phase"] in COMPARED and row["payload_bytes"]:
            found[row["direction"]].add(row["encoding"])
    return {way: sorted(words) for way, words in found.items()}


def _best(saved: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Entry:
    """Return the test by all clients of the saved best model, which other data may have chosen."""
    return {
        "rounds_done": evaluation["rounds_done"],
        "accuracy": evaluation["pooled"],
        "loss": evaluation["loss"],
        "chosen_on": saved.get("chosen_on", "test"),
        "chosen_accuracy": saved.get("accuracy"),
        "chosen_loss": saved.get("loss"),
    }


def _quality(best: Entry | None, view: RunView, newest: Entry) -> Entry:
    """Return the test metrics of the final model, of the best saved one, and the best in a test.

    `mean_accuracy` and `personal_accuracy` are of the clients of the newest round: of the model it
    began with, and of each one's own after training.
    """
    tested = view.evaluations.points()
    final = tested[-1] if tested else None
    curve = view.curve.points()
    if final is None and curve:  # only the clients of each round have tested anything yet
        final = {"rounds_done": curve[-1]["round"], "metrics": newest.get("metrics") or {},
                 "accuracy": curve[-1]["accuracy"], "loss": curve[-1]["loss"]}  # fmt: skip
    return {
        "final": final,
        "by": "all clients" if tested else "the clients of the newest round",
        "best": best,
        "highest": view.best,
        "mean_accuracy": newest.get("mean"),
        "personal_accuracy": newest.get("personal"),
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


def _bytes(summary: Mapping[str, Any], view: RunView, against: DenseComparison | None) -> Entry:
    rows: Sequence[Mapping[str, Any]] = summary["ledger"]
    found = view.bytes(rows, against.num_values if against else 0)
    found["total"] = {
        way.value: {
            count: sum(row.get(count) or 0 for row in rows if row["direction"] == way)
            for count in COUNTS
        }
        for way in Direction
    }
    if against:
        found["formulas"] = formulas(against, rows, view, len(summary["clients"]))
        kept = summary["mask"]["num_kept"]
        by_paper = paper_break_even(against.num_values, against.num_masked, kept)
        found["break_even"] = {"round": against.break_even, "paper": by_paper}
    return found


def _table(file: BinaryIO, columns: Sequence[str]) -> "csv.DictWriter[str]":
    """Return a writer of CSV rows; it has written the header."""
    text = codecs.getwriter("utf-8")(file)
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    return writer


def _round_line(entry: Entry, point: Entry) -> Entry:
    """Return a row of rounds.csv from a round's entry and its point of the curve."""
    phases = entry.get("phases") or {}
    return {
        **entry,
        **{f"{phase}_s": phases.get(phase) for phase in PHASES},
        "clients": len(entry["clients"]),
        "missing": len(entry["missing"]),
        "mean_accuracy": entry.get("mean"),
        **{name: point[name] for name in ("accuracy", "up_bytes", "down_bytes")},
    }


def _test_line(entry: Entry) -> Entry:
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
