"""`ssfl compare`: methods on the same data, seeds and sampled clients."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as ScreenTable
from rich.text import Text

from ssfl.comparison.comparison import (
    BUDGETS,
    METHODS,
    Comparison,
    read_comparison,
    read_rates,
    stored_rates,
)
from ssfl.datasets.wording import plural
from ssfl.durable.files import write_atomic
from ssfl.learning.cores import usable_cores
from ssfl.method.errors import MethodError
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, Terminated, raise_on_sigterm, usage_error
from ssfl.program.printable import printable
from ssfl.study.errors import StudyError
from ssfl.study.grid import read_seeds
from ssfl.study.result_tables import tables_of
from ssfl.study.run_spec import RunSpec
from ssfl.study.summary import write_results
from ssfl.study.sweep import RunResult, run_all
from ssfl.study.tables import NONE, Number, Table
from ssfl.tools.local.local_run import require_modules
from ssfl.tools.plan.budget import write_budget
from ssfl.tools.simulate.view import StudyProgress
from ssfl.tools.terminal import console

DESCRIPTION = (
    "Compares methods: each is simulated on the same data, partition, initial weights, sampled "
    "clients and seeds. The tables have the accuracy of the global model at equal rounds, equal "
    "bytes and equal client-updates, the accuracy of personal models apart from it, bytes by "
    "direction and phase, and work. Every finished run is stored at once; after a stop, the same "
    "command resumes."
)
EXPLANATION = """\
Without a file, all built-in methods are compared at 90 % sparsity: a small CNN, Fashion-MNIST, \
100 clients, 10 of them in a round. A file has the form of a sweep of `ssfl simulate`; its \
[[variant]] tables are the methods (docs/compare.md).

--grid first runs every method with each learning rate of [choose], on other seeds, and chooses by \
validation samples. Without it the rates stored next to the file are used, or those of --rates.

For example: ssfl compare --only "SSFL,FedAvg (dense)" --seeds 1 --rounds 10

For example: ssfl compare my-methods.toml --grid --out runs/mine

`ssfl report RUN RUN` compares two finished runs of a coordinator."""
RATES = "rates.json"
SHOWN = ("global-model", "personal-models")


@dataclass(frozen=True, slots=True)
class CompareConfig:
    """Which methods, on which seeds, and where to store the results."""

    methods: Path | None = setting(
        None, "file with the methods; default: all built-in ones", positional=True,
        metavar="METHODS.toml",
    )  # fmt: skip
    only: str = setting("", "names of methods, separated by commas; default: all of the file")
    seeds: str = setting(
        "", "number of seeds; a list such as 0,1,2 names them; default: those of the file",
        metavar="N|LIST",
    )  # fmt: skip
    rounds: int = setting(0, "rounds of all methods that have not fewer; 0: those of the file")
    budget: bool = setting(
        False, "what methods reach with a budget of megabytes, or of seconds on a link; without a "
        "file, of built-in methods with 10 of 100 clients a round, then with all of 20",
    )  # fmt: skip
    grid: bool = setting(False, "choose the learning rate of each method by trials first")
    rates: Path | None = setting(None, "learning rates: a rates.json that --grid wrote")
    out: Path = setting(Path("runs/compare"), "folder for the results")
    workers: int = setting(0, "runs at once; 0: one for each CPU core", le=1024)
    json: bool = setting(False, "print the summary as JSON instead of tables")


def compare(argv: Sequence[str]) -> int:
    """Run the command."""
    _refuse_folders(argv)
    config = settings.load(CompareConfig, argv, None, "ssfl compare", DESCRIPTION, EXPLANATION)
    raise_on_sigterm()
    require_modules("torch", extra="client")
    if config.grid and config.rates:
        raise usage_error("--grid chooses the learning rates, and --rates names them: give one")
    try:
        done = [_compare(part) for part in _parts(config)]
    except (MethodError, StudyError) as error:
        raise usage_error(str(error)) from error
    if config.json:
        summaries = [summary for summary, _ in done]
        print(json.dumps(summaries[0] if len(done) == 1 else summaries, indent=1))
    return max(code for _, code in done)


def _parts(config: CompareConfig) -> list[CompareConfig]:
    """Return the comparisons of a command: one, but with --budget each of the built-in files."""
    if not config.budget or config.methods:
        return [config]
    return [
        replace(config, methods=file, out=config.out / file.stem.removeprefix("budget-"))
        for file in BUDGETS
    ]


def _compare(config: CompareConfig) -> tuple[dict[str, Any], int]:
    """Run a comparison, write and print its results; return its summary and the exit code."""
    began_s = time.monotonic()
    results, rates = _run(config)
    more = {
        "title": _title(results),
        "rates": rates,
        "cores": usable_cores(),
        "duration_s": time.monotonic() - began_s,  # of this call; stored runs were reused
        "reused": sum(result.reused for result in results),
    }
    files = write_results(config.out, results, more)
    summary: dict[str, Any] = json.loads(files[0].read_bytes())
    tables = [table for table in tables_of(summary) if table.name in SHOWN]
    if config.budget:
        tables = write_budget(config.out, summary)
    if not config.json:
        _print(tables, results, config.out)
    if failed := [result for result in results if result.error]:
        return summary, ExitCode.BUG if any(run.is_bug for run in failed) else ExitCode.BAD_DATA
    return summary, ExitCode.DONE


def _refuse_folders(argv: Sequence[str]) -> None:
    """Name the command for finished runs, if the arguments are their folders."""
    folders = [word for word in argv if not word.startswith("-") and Path(word).is_dir()]
    if argv and folders and argv[0] == folders[0]:
        raise usage_error(
            f"{folders[0]} is a folder: `ssfl report RUN RUN` compares two finished runs; "
            "`ssfl compare` runs methods, built-in ones or those of a TOML file"
        )


def _run(config: CompareConfig) -> tuple[list[RunResult], dict[str, Any]]:
    """Return the results to report, and the document of the learning rates; empty: none chosen."""
    file = config.methods or METHODS
    comparison = _comparison(config, file)
    rates: dict[str, Any] = {}
    if config.grid:
        trials = comparison.trials()
        comparison.specs()  # raises before the trials if a method is invalid
        rates = comparison.chosen(_results(trials, config, "to choose learning rates"))
        text = json.dumps(rates, indent=1)
        write_atomic(config.out / RATES, text.encode())
    elif stored := config.rates or stored_rates(file):
        rates = read_rates(stored)
    return _results(comparison.specs(rates), config, "to report"), rates


def _comparison(config: CompareConfig, file: Path) -> Comparison:
    comparison = read_comparison(file)
    if names := [name.strip() for name in config.only.split(",") if name.strip()]:
        comparison = comparison.only(names)
    if config.seeds:
        comparison = comparison.with_seeds(read_seeds(config.seeds, "--seeds"))
    return comparison.with_rounds(config.rounds) if config.rounds else comparison


def _results(specs: Sequence[RunSpec], config: CompareConfig, purpose: str) -> list[RunResult]:
    methods = plural(len({spec.name for spec in specs}), "configuration")
    seeds = plural(len({spec.seed for spec in specs}), "seed")
    title = f"{plural(len(specs), 'run')} {purpose} ({methods} x {seeds}), results in {config.out}"
    with StudyProgress(title) as progress:
        try:
            return run_all(specs, config.out, config.workers, progress)
        except (KeyboardInterrupt, Terminated):
            progress.print_line(
                f"stopped after {plural(progress.done, 'new run')}; the same command resumes"
            )
            raise


def _title(results: Sequence[RunResult]) -> str:
    spec = results[0].spec
    run, seeds = spec.run_settings(), len({result.spec.seed for result in results})
    data = f"{spec.data.source}, {run.clients} clients, model {run.model}"
    return f"{data}, sparsity {run.sparsity}, {plural(seeds, 'seed')}"


def _print(tables: Sequence[Table], results: Sequence[RunResult], out: Path) -> None:
    screen = console()
    for table in tables:
        screen.print(_screen_table(table))
    for result in results:
        if result.error:
            text = printable(f"{result.spec.label}: {result.error}")
            screen.print(f"failed: {text}", soft_wrap=True)
    files = "tables.md, tables.tex, *.csv, curves-*.png, summary.json"
    screen.print(f"bytes, work and settings of the methods: {out}/{files}", soft_wrap=True)


def _screen_table(table: Table) -> ScreenTable:
    shown = ScreenTable(
        title=table.title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left",
        caption=" ".join(table.notes).replace("*", ""), caption_justify="left",
    )  # fmt: skip
    for at, heading in enumerate(table.columns):
        numeric = any(isinstance(row[at], Number) for row in table.rows)
        shown.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(printable(NONE if cell is None else str(cell))) for cell in row))
    return shown
