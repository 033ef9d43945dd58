"""The results of a study in two files: summary.json for programs, runs.csv for spreadsheets."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ssfl.durable.files import write_atomic
from ssfl.program.settings.command_line import closest
from ssfl.study.errors import StudyError
from ssfl.study.intervals import ACCURACIES, spread
from ssfl.study.outcome import LAST
from ssfl.study.sweep import RunResult

SUMMARY = "summary.json"
TABLE = "runs.csv"
# The measures that are averaged over seeds.
MEASURED = (
    *ACCURACIES, *(f"{name}_last_{LAST}" for name in ACCURACIES), "loss",
    "bytes", "bytes_up", "bytes_down", "bytes_one_off", "seconds", "cpu_seconds",
)  # fmt: skip


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
                **{measure: _spread(run.outcome[measure] for run in good) for measure in MEASURED},
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


def write_summary(folder: Path, results: Sequence[RunResult]) -> None:
    """Write both files; each is replaced atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary_of(results), indent=1, allow_nan=False)
    write_atomic(folder / SUMMARY, text.encode())
    write_atomic(folder / TABLE, _csv(results).encode())


def _run(result: RunResult) -> dict[str, Any]:
    spec = result.spec.document()
    return {
        "name": spec["name"],
        "seed": spec["seed"],
        "mode": spec["mode"],
        "spec": {key: spec[key] for key in ("data", "settings", "arrivals", "task")},
        "file": "" if result.error else f"{result.path.parent.name}/{result.path.name}",
        "error": result.error,
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
    plain = dict.fromkeys(key for row in rows for key in row if key not in ("spec", "metrics"))
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
