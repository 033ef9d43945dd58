"""A run on this machine, watched to its end: shared by `ssfl demo` and `ssfl rehearse`."""

import importlib.util
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ssfl.durable.lock import DirectoryLock
from ssfl.program.exits import ExitCode, ProgramError, usage_error
from ssfl.server.report.source import open_folder
from ssfl.tools.local.processes import LocalFederation
from ssfl.tools.operate.screen import megabytes, status_line, status_view
from ssfl.tools.report.command import write_comparison
from ssfl.tools.report.compare import comparison_document
from ssfl.v1 import admin_pb2

POLL_S = 0.25
STALL_S = 300.0
ENDED = ("finished", "stopped")  # phases in which clients may leave
MARKER = ".ssfl-run-here"
DENSE = "dense"  # the name of a run to compare with
_MEANINGS = {
    DENSE: "dense: float32 values, as other systems send them",
    "ssfl": "ssfl: kept values, coded against the base, as over a network",
}


@dataclass(frozen=True, slots=True)
class LocalRunResult:
    """The result of one federation."""

    name: str
    status: admin_pb2.GetStatusResponse
    history: dict[str, Any]
    models: Path


def require_modules(*modules: str, extra: str) -> None:
    """Raise ProgramError unless all modules can be imported."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise usage_error(f"this needs {', '.join(missing)}: pip install 'ssfl[{extra}]'")


def fresh_folder(out: Path) -> None:
    """Empty the output folder of an earlier command; refuse a folder with other files."""
    marker = out / MARKER
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not marker.exists())):
        raise usage_error(f"{out} is not an output folder of ssfl: choose another with --out")
    for lock in out.glob("*/state/lock"):
        with DirectoryLock(lock.parent):  # raises and names the process that uses it
            pass
    try:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        marker.touch()
    except OSError as error:
        raise usage_error(f"cannot write into {out}: {error}") from error


def federate(
    federation: LocalFederation,
    console: Console,
    title: str,
    disturb: Callable[[LocalFederation], None] | None = None,
) -> LocalRunResult:
    """Run a federation to its end and show its progress; call `disturb` first, if given."""
    with federation:
        if federation.status_url:
            console.print(f"{title}: status page  {federation.status_url}", soft_wrap=True)
        if disturb:
            disturb(federation)
        status = _watch(federation, console, title)
        federation.admin.close()
    models = Path(status.out_dir)
    history = json.loads((models / "history.json").read_bytes())
    return LocalRunResult(federation.folder.name, status, history, models)


def _watch(
    federation: LocalFederation, console: Console, title: str
) -> admin_pb2.GetStatusResponse:
    """Show the progress until every site has the final model; return the last status."""
    shown, progress, progress_s = "", ("", 0), time.monotonic()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            ended = federation.ended()
            status = federation.admin.status()  # after ended(): clients leave when a run is over
            if status.delivered:
                break
            if ended and status.phase not in ENDED:
                text = f"{ended[0]} ended before the run was over; does its task end the process?"
                log = f"(its log: {federation.folder / ended[0]}.log)"
                raise ProgramError(f"{text} {log}", ExitCode.BAD_DATA)
            if console.is_terminal:
                live.update(status_view(status, title), refresh=True)
            now = f"{status.phase} {status.rounds_done}"
            if now != shown and not console.is_terminal:
                console.print(status_line(status, title), soft_wrap=True)
            shown = now
            if progress != (progress := (now, sum(client.steps_done for client in status.clients))):
                progress_s = time.monotonic()
            if time.monotonic() - progress_s > STALL_S:
                text = f"no progress for {STALL_S:g} s, waiting for {status.waiting_for}"
                raise ProgramError(f"{text}; the logs are in {federation.folder}", ExitCode.BUG)
            time.sleep(POLL_S)
    console.print(f"{title}: done, {status.rounds_done} rounds, {_outcome(status)}")
    return status


def _outcome(status: admin_pb2.GetStatusResponse) -> str:
    if status.HasField("accuracy"):
        return f"{100 * status.accuracy:.1f} %"
    return f"loss {status.loss:.4g}" if status.HasField("loss") else "not tested: no test samples"


def show_results(
    console: Console, out: Path, results: Sequence[LocalRunResult], title: str
) -> None:
    """Print the table and all locations, draw the charts, and compare with the dense run if any."""
    console.print(_results_table(results, title))
    (first,) = (result for result in results if result.name != DENSE)
    _print_locations(console, out, first, _draw(out, results))
    for dense in (result for result in results if result.name == DENSE):
        sources = open_folder(dense.models), open_folder(first.models)
        page = out / "comparison.html"
        write_comparison(page, comparison_document(*sources, names=(DENSE, "ssfl")))
        console.print(f"{'comparison':<12}  {page}", soft_wrap=True)


def _results_table(results: Sequence[LocalRunResult], title: str) -> Table:
    table = Table("", title=title, title_justify="left", caption_justify="left")
    tests = [result.history["evaluations"][-1] for result in results]
    names = sorted({name for test in tests for name in test["metrics"]})
    measured = [
        name
        for name, key in (("accuracy", "pooled"), ("loss", "loss"))
        if any(test[key] is not None for test in tests)
    ][:1]
    columns = ("MB up", "MB down", "one-off MB", "s/round", "server MB")
    for column in (*measured, *names, *columns):
        table.add_column(column, justify="right", overflow="fold")
    for result, last in zip(results, tests, strict=True):
        status, rounds = result.status, result.history["rounds"]
        table.add_row(
            result.name,
            *(_shown(name, last) for name in measured),
            *(f"{last['metrics'].get(name, float('nan')):.4g}" for name in names),
            f"{megabytes(status, 'up', one_off=False):.2f}",
            f"{megabytes(status, 'down', one_off=False):.2f}",
            f"{megabytes(status, one_off=True):.2f}",
            f"{sum(entry['seconds'] for entry in rounds) / len(rounds):.2f}",
            f"{status.peak_memory_bytes / 1e6:.0f}",
        )
    shown = {result.name for result in results}
    table.caption = "; ".join(text for name, text in _MEANINGS.items() if name in shown)
    return table


def _shown(name: str, last: dict[str, Any]) -> str:
    if name == "accuracy":
        return "" if last["pooled"] is None else f"{100 * last['pooled']:.1f} %"
    return f"{last['loss']:.4g}"


def _draw(out: Path, results: Sequence[LocalRunResult]) -> list[str]:
    """Draw every chart that the runs have data for; return the file names."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    from ssfl.tools.report.plots import plot_accuracy, plot_densities, plot_layers, plot_timeline

    histories = {result.name: result.history for result in results}
    drawn = ["accuracy.png"] if plot_accuracy(histories, out / "accuracy.png") else []
    if sparse := histories.get("ssfl"):
        plot_layers(sparse, out / "layers.png")
        plot_timeline(sparse, out / "timeline.png")
        plot_densities(sparse, out / "densities.png")
        drawn += ["layers.png", "timeline.png", "densities.png"]
    return drawn


def status_flags(status_port: int | None) -> list[str]:
    """Return the flags of ssfl-coordinator for the status page, if there is one."""
    return [] if status_port is None else ["--status-port", str(status_port)]


def _print_locations(
    console: Console, out: Path, result: LocalRunResult, drawn: Sequence[str]
) -> None:
    console.print(f"model digest  {result.status.model_digest.hex()}")
    console.print("(the same for every run with this seed on this kind of machine)")
    pictures = f"{out}/{', '.join(drawn)}" if drawn else "none: pip install matplotlib"
    models, here = result.models, Path.cwd()
    models = models.relative_to(here) if models.is_relative_to(here) else models
    for name, place in {
        "final model": models / "model.safetensors",
        "mask": models / "mask.bin",
        "manifest": models / "manifest.json",
        "history": models / "history.json",
        "report": models / "report.html",
        "plots": pictures,
        "logs": f"{out}/{result.name}/*.log",
    }.items():
        console.print(f"{name:<12}  {place}", soft_wrap=True)
