"""The results of a study: summary.json for programs, runs.csv for spreadsheets.

`write_results` also writes the tables as Markdown, LaTeX and CSV and, with matplotlib, the curves.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ssfl.durable.files import write_atomic
from ssfl.method.density import parse_sparsity
from ssfl.program.settings.command_line import closest
from ssfl.strategies.registry import strategy_for
from ssfl.study.errors import StudyError
from ssfl.study.intervals import ACCURACIES, spread
from ssfl.study.outcome import GOSSIP, LAST
from ssfl.study.result_tables import tables_of
from ssfl.study.sweep import RunResult
from ssfl.study.tables import csv_text, latex, markdown

SUMMARY = "summary.json"
TABLE = "runs.csv"
# The measures that are averaged over seeds.
MEASURED = (
    *ACCURACIES, *(f"{name}_last_{LAST}" for name in ACCURACIES), "loss",
    "bytes", "bytes_up", "bytes_down", "bytes_one_off",
    *GOSSIP, "seconds", "cpu_seconds",
    "bytes_training", "bytes_rounds_up", "bytes_rounds_down", "bytes_masks_up", "bytes_masks_down",
    "bytes_first_masks", "bytes_tests", "client_updates", "local_steps", "flops_executed",
    "flops_sparse", "mask_seconds", "before_bytes", "before_seconds", "before_client_updates",
    "density_tested", "density_up", "density_down", "density_up_last",
)  # fmt: skip
_NESTED = ("spec", "metrics", "gossip", "curve", "transfers")  # not columns of the table


def summary_of(results: Sequence[RunResult]) -> dict[str, Any]:
    """Return every run, and every configuration with mean, sd and 95 % interval over seeds."""
    return {
        "format": 1,
        "software": version("ssfl"),
        "configurations": configurations(results),
        "runs": [_run(result) for result in results],
    }


def configurations(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return one entry per configuration, in the order of the specs."""
    found = []
    for name, runs in by_name(results).items():
        good = [run for run in runs if not run.error]
        found.append(
            {
                "name": name,
                "seeds": [run.spec.seed for run in good],
                "failed_seeds": [run.spec.seed for run in runs if run.error],
                **{name: _spread(run.outcome.get(name) for run in good) for name in MEASURED},
                "metrics": {
                    metric: _spread(run.outcome["metrics"].get(metric) for run in good)
                    for metric in sorted({key for run in good for key in run.outcome["metrics"]})
                },
            }
        )
    return found


def by_name(results: Iterable[RunResult]) -> dict[str, list[RunResult]]:
    """Return the runs of each configuration."""
    found: dict[str, list[RunResult]] = {}
    for result in results:
        found.setdefault(result.spec.name, []).append(result)
    return found


def by_seed(results: Iterable[RunResult], name: str, measure: str) -> dict[int, float]:
    """Return a measure of a configuration's runs by seed, for `paired_difference`.

    Raises StudyError if the configuration does not exist, or if a run failed or lacks the measure.
    """
    runs = by_name(results)
    if name not in runs:
        raise StudyError(f"there is no configuration {name!r}{closest(name, runs)}")
    found = {}
    for run in runs[name]:
        if run.error:
            raise StudyError(f"{run.spec.label} has no result: {run.error}")
        if run.outcome.get(measure) is None:
            raise StudyError(f"{run.spec.label} has no {measure}{closest(measure, run.outcome)}")
        found[run.spec.seed] = float(run.outcome[measure])
    return found


def write_summary(
    folder: Path, results: Sequence[RunResult], more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write both files, each replaced atomically; return the summary, which also has `more`."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = {**summary_of(results), **(more or {})}
    write_atomic(folder / SUMMARY, json.dumps(summary, indent=1, allow_nan=False).encode())
    write_atomic(folder / TABLE, _csv(results).encode())
    return summary


def write_results(
    folder: Path, results: Sequence[RunResult], more: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write summary, tables and curves; return the files."""
    summary = write_summary(folder, results, more)
    tables = tables_of(summary)
    files = {"tables.md": markdown(tables), "tables.tex": latex(tables)}
    files |= {f"{table.name}.csv": csv_text(table) for table in tables}
    for name, text in files.items():
        write_atomic(folder / name, text.encode())
    written = [folder / name for name in (SUMMARY, TABLE, *files)]
    if find_spec("matplotlib"):
        from ssfl.study.charts.curves import draw_curves

        written += draw_curves(summary, folder)
    return written


def _run(result: RunResult) -> dict[str, Any]:
    spec, settings = result.spec.document(), result.spec.run_settings()
    strategy = strategy_for(settings)
    is_fixed = not (strategy.is_dense or settings.bytes_per_round or settings.sparsity_schedule)
    return {
        "name": spec["name"],
        "seed": spec["seed"],
        "mode": spec["mode"],
        "spec": {key: spec[key] for key in ("data", "settings", "arrivals", "task")},
        "file": "" if result.error else f"{result.path.parent.name}/{result.path.name}",
        "error": result.error,
        "learning_rate": settings.learning_rate,
        "target_density": float(1 - parse_sparsity(settings.sparsity)) if is_fixed else None,
        "personalize_epochs": settings.personalize_epochs,
        "keeps_personal_models": strategy.has_personal_models and not settings.personalize_epochs,
        **result.outcome,
    }


def _spread(values: Iterable[float | None]) -> dict[str, float | int | None] | None:
    """Return mean, sd and interval (None for a single seed); None if no run measured it."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    found = asdict(spread(known))
    return {name: None if math.isnan(value) else value for name, value in found.items()}


def _csv(results: Sequence[RunResult]) -> str:
    """Return one row per run: the settings that vary between runs, then the results."""
    rows = [_run(result) for result in results]
    specs = _columns(results)
    varying = [
        name for name in next(iter(specs), {}) if len({str(spec[name]) for spec in specs}) > 1
    ]
    metrics = sorted({name for row in rows for name in _metrics(row)})
    plain = dict.fromkeys(key for row in rows for key in row if key not in _NESTED)
    names = ["name", "seed", "mode", *varying, *metrics]
    names += [key for key in plain if key not in ("name", "seed", "mode", "error")] + ["error"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row, spec in zip(rows, specs, strict=True):
        writer.writerow({**row, **_metrics(row), **spec})
    return text.getvalue()


def _metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    return {f"metrics.{name}": value for name, value in row.get("metrics", {}).items()}


def _columns(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return data, task and settings of each run; only settings that were given to some run.

    A run that was not given a setting has the value of its profile, or the default.
    """
    given = dict.fromkeys(name for result in results for name in result.spec.settings)
    columns = []
    for result in results:
        settings = result.spec.all_settings()
        columns.append(
            {
                **{f"data.{key}": value for key, value in asdict(result.spec.data).items()},
                **{f"settings.{name}": settings[name] for name in given},
                "task": result.spec.task,
            }
        )
    return columns
