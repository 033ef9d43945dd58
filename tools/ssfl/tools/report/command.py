"""`ssfl report`: the report of a run as one HTML file, or the comparison of two runs."""

import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ssfl.durable.files import write_atomic
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, ProgramError, usage_error
from ssfl.program.settings.options import source_file
from ssfl.server.report.contents import HTML, report_document, write_files, write_report
from ssfl.server.report.from_state_dir import open_state
from ssfl.server.report.page import page, to_json
from ssfl.server.report.source import HISTORY, ReportError, Source, open_folder
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.tools.model.folder import folders_with
from ssfl.tools.report.compare import comparison_document
from ssfl.tools.terminal import console

DESCRIPTION = (
    "Writes the report of a run from the files of its coordinator: one self-contained HTML file, "
    "and the same as JSON and CSV. If the run is not over, name the coordinator's state directory. "
    "With two runs, the report compares them."
)
EPILOG = (
    "The report of a run is written into its folder; that of a state directory, or of two runs, "
    "into the current folder. --out names another HTML file. JSON and CSV files go next to it: for "
    "x.html, x.json, x-rounds.csv, x-evaluations.csv and x-clients.csv. A comparison has no CSV."
)
WHERE_RUNS_ARE = "a coordinator writes history.json into runs/<run>/coordinator/"


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """Which run, or which two runs."""

    run: Path = setting(MISSING, "the folder of a run, or a state directory", positional=True)
    other: str = setting("", "another run to compare with", positional=True)
    strategy: str = source_file("strategy")
    criterion: str = source_file("criterion")
    out: str = setting("", "the HTML file to write", metavar="FILE")
    json: bool = setting(False, "print the report as JSON and write no files")
    open: bool = setting(False, "show the report in a browser")


def report(argv: Sequence[str]) -> None:
    """Run the command."""
    config = settings.load(ReportConfig, argv, None, "ssfl report", DESCRIPTION, EPILOG)
    try:
        source = open_run(config.run)
        other = open_run(Path(config.other)) if config.other else None
        comparison = comparison_document(source, other) if other else None
        if config.json:
            print(to_json(comparison or report_document(source)).decode(), end="")
            return
        written = _write(config, source, comparison)
    except ReportError as error:
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error
    console().print(f"report: {written}", soft_wrap=True)
    if config.open and not webbrowser.open(written.absolute().as_uri()):
        console().print("no browser could be started: open the file by hand")


def _write(config: ReportConfig, source: Source, comparison: Mapping[str, Any] | None) -> Path:
    """Write the report of a run, or the comparison of two; return the HTML file."""
    if not (comparison or config.out) and (source.folder / HISTORY).is_file():
        with _writing(source.folder / HTML):
            return write_report(source.folder)
    default = "comparison.html" if comparison else f"report-{source.summary['run_id']}.html"
    html = Path(config.out or default)
    if html.suffix.lower() not in (".html", ".htm"):
        raise usage_error(f"--out must end in .html, got {html}")
    with _writing(html):
        if comparison:
            write_comparison(html, comparison)
        else:
            write_files(source, html, f"{html.stem}-")
    return html


@contextmanager
def _writing(html: Path) -> Iterator[None]:
    """Raise ProgramError with the name of the report if it cannot be written."""
    try:
        yield
    except OSError as error:
        folder = "" if html.parent.is_dir() else f" (there is no folder {html.parent})"
        raise usage_error(
            f"cannot write {html}: {error.strerror}{folder}; --out names another file"
        ) from error


def write_comparison(html: Path, document: Mapping[str, Any]) -> None:
    """Write the HTML file of a comparison, and its JSON next to it."""
    write_atomic(html, page(document["title"], document))
    write_atomic(html.with_suffix(".json"), to_json(document))


def open_run(where: Path) -> Source:
    """Return the run in or just below a folder; raise ReportError with the remedy."""
    if where.name == HISTORY:
        where = where.parent
    if not where.is_dir():
        raise ReportError(f"there is no folder {where}: {WHERE_RUNS_ARE}{_runs_in(Path('runs'))}")
    for pattern in (".", "coordinator", "*/coordinator", "models/*/coordinator"):
        if found := _only(where, pattern):
            return open_folder(found)
    for state in (where, where / "state"):
        if StateDirectory(state).journal.is_file():
            source = open_state(state)
            results = where / "runs" / source.summary["run_id"] / "coordinator"
            return open_folder(results) if (results / HISTORY).is_file() else source
    if found := _only(where, "runs/*/coordinator"):
        return open_folder(found)
    raise ReportError(
        f"{where} is not a run: it has neither {HISTORY} nor a journal; "
        f"{WHERE_RUNS_ARE}{_runs_in(where)}"
    )


def _only(where: Path, pattern: str) -> Path | None:
    """Return the result folder that matches; raise ReportError if several do."""
    found = [file.parent for file in islice(where.glob(f"{pattern}/{HISTORY}"), 2)]
    if len(found) > 1:
        raise ReportError(f"{where} has several runs: name one of them{_runs_in(where)}")
    return found[0] if found else None


def _runs_in(folder: Path) -> str:
    return folders_with("runs", folder, HISTORY, 4)
