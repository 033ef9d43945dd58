"""Progress and results of a study on the terminal."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rich import box
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from ssfl.datasets.wording import plural
from ssfl.program.printable import printable
from ssfl.study.errors import StudyError
from ssfl.study.estimate import StudyEstimate, estimate, is_long
from ssfl.study.outcome import LAST
from ssfl.study.run_spec import RunSpec
from ssfl.study.summary import configurations
from ssfl.study.sweep import RunResult, SweepProgress
from ssfl.tools.terminal import console

NONE = "·"
MAX_SHOWN = 4  # running runs that are named
MAX_SILENCE_S = 30.0  # between two lines without a terminal

WIDE = 100  # columns of a screen that shows every column of the table
SHOWN_ACCURACIES = {
    "pooled %": f"pooled_last_{LAST}",
    "mean %": f"mean_last_{LAST}",
    "personal %": "personal",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: the keys of its number, and its format."""

    keys: tuple[str, ...]
    factor: float
    digits: int
    with_sd: bool = False

    def cell(self, row: Mapping[str, Any]) -> str:
        found: Any = row
        for key in self.keys:
            found = found.get(key) if found else None
        if not found:
            return NONE
        mean, sd = f"{self.factor * found['mean']:.{self.digits}f}", found["sd"]
        if sd is None or not self.with_sd:
            return mean
        return f"{mean} ± {self.factor * sd:.{self.digits}f}"


class StudyProgress(SweepProgress):
    """A progress bar on a terminal, lines elsewhere; on stderr, since stdout has the results.

    Before a long study it prints what that will take; `workers` is the number of runs at once.
    """

    def __init__(
        self, title: str, clock: Callable[[], float] = time.monotonic, workers: int = 0
    ) -> None:
        self._title = title
        self._workers = workers
        self.done = 0  # runs that have ended, of those to run
        self._console = console(stderr=True)
        self._clock = clock
        self._began_s = self._printed_s = clock()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[running]}"),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._rounds: dict[str, int] = {}  # rounds done, by running run
        self._totals: dict[str, int] = {}  # rounds to do, by run
        self._rounds_done = 0
        self._resumed = 0  # of these, rounds of earlier calls

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._task is not None:
            self._bar.stop()

    def begin(self, todo: Sequence[RunSpec], reused: int) -> None:
        self._totals = {spec.label: spec.run_settings().rounds for spec in todo}
        self._began_s = self._printed_s = self._clock()
        before = f"; {reused:,} stored before, {len(todo):,} to go" if reused else ""
        self.print_line(self._title + before)
        if todo and is_long(todo):
            self._print_estimate(todo)
        if todo and self._console.is_terminal:
            total = sum(self._totals.values())
            self._task = self._bar.add_task("", total=total, left="", running="")
            self._bar.start()
            self._show()

    def resumed(self, spec: RunSpec, rounds_done: int, problem: str) -> None:
        self._resumed += rounds_done
        self._rounds_done += rounds_done
        self._rounds[spec.label] = rounds_done
        what = f"warning: {problem}" if problem else f"resumes after round {rounds_done}"
        self.print_line(f"{spec.label}: {what}")

    def _print_estimate(self, todo: Sequence[RunSpec]) -> None:
        try:
            self.print_line(estimate_text(estimate(todo, self._workers)))
        except StudyError as error:  # the runs will report it, too
            self.print_line(f"no estimate of hours and memory: {error}")
        self._began_s = self._clock()

    def round_done(self, spec: RunSpec, rounds_done: int) -> None:
        self._rounds_done += rounds_done - self._rounds.get(spec.label, 0)
        self._rounds[spec.label] = rounds_done
        self._show()
        if self._task is None and self._clock() - self._printed_s >= MAX_SILENCE_S:
            self.print_line(f"{self._runs()}, {self._running()}{self._left(', ')}")

    def run_done(self, result: RunResult) -> None:
        label = result.spec.label
        self._rounds_done += self._totals[label] - self._rounds.pop(label, 0)
        self.done += 1
        self._show()
        if result.error:
            self.print_line(f"{self._runs()}: {label} failed: {result.error}")
        elif self._task is None:
            seconds = f"{result.outcome['seconds']:.1f} s"
            self.print_line(
                f"{self._runs()}: {label}, {_result_text(result)}, {seconds}{self._left('; ')}"
            )

    def print_line(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._console.print(Text(printable(text)), soft_wrap=True)
        self._printed_s = self._clock()

    def _runs(self) -> str:
        return f"{self.done} of {plural(len(self._totals), 'run')}"

    def _running(self) -> str:
        running = [f"{run}: round {done}/{self._totals[run]}" for run, done in self._rounds.items()]
        more = f" and {len(running) - MAX_SHOWN} more" if len(running) > MAX_SHOWN else ""
        return "; ".join(running[:MAX_SHOWN]) + more

    def _left(self, before: str = "") -> str:
        """Return the estimated time left, from the mean time of a round."""
        remaining = sum(self._totals.values()) - self._rounds_done
        done = self._rounds_done - self._resumed
        if not remaining or not done:
            return ""
        seconds = (self._clock() - self._began_s) * remaining / done
        return f"{before}about {_duration(seconds)} left"

    def _show(self) -> None:
        if self._task is not None:
            self._bar.update(
                self._task,
                completed=self._rounds_done,
                description=self._runs(),
                left=self._left(),
                running=self._running(),
            )


def study_table(results: Sequence[RunResult], width: int) -> Table:
    """Return a table with mean ± sd over seeds by configuration, for `width` columns."""
    rows = configurations(results)
    columns = _columns(rows, narrow=width < WIDE)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    table.add_column("configuration", overflow="fold", min_width=len("configuration"))
    for heading in ("seeds", *columns):
        table.add_column(heading, justify="right")
    for row in rows:
        good, failed = len(row["seeds"]), len(row["failed_seeds"])
        table.add_row(
            Text(printable(row["name"])),
            f"{good} of {good + failed}" if failed else f"{good}",
            *(column.cell(row) for column in columns.values()),
        )
    table.caption = _caption(results, rows)
    return table


def _columns(rows: Sequence[Mapping[str, Any]], *, narrow: bool) -> dict[str, Column]:
    accuracies = {
        heading: Column((name,), 100.0, 1 if narrow else 2, with_sd=True)
        for heading, name in SHOWN_ACCURACIES.items()
        if any(row[name] for row in rows)
    }
    metrics = {
        name: Column(("metrics", name), 1.0, 4, with_sd=True)
        for name in sorted({key for row in rows for key in row["metrics"]})
    }
    loss = {} if accuracies else {"loss": Column(("loss",), 1.0, 4, with_sd=True)}
    sent = {
        "MB up": Column(("bytes_up",), 1e-6, 2),
        "MB down": Column(("bytes_down",), 1e-6, 2),
        "one-off MB": Column(("bytes_one_off",), 1e-6, 2),
    }
    if narrow:
        sent = {"MB": Column(("bytes",), 1e-6, 2)}
    return {**accuracies, **loss, **metrics, **sent, "CPU s": Column(("cpu_seconds",), 1.0, 1)}


def _caption(results: Sequence[RunResult], rows: Sequence[Mapping[str, Any]]) -> str:
    parts = ["Mean ± sd over seeds."] if any(len(row["seeds"]) > 1 for row in rows) else []
    counts = {result.outcome[f"evaluations_last_{LAST}"] for result in results if result.outcome}
    if counts == {1}:
        more = f"--evaluate-last {LAST} makes pooled and mean those of {LAST} rounds."
        parts.append(f"Accuracies are those after the last round; {more}")
    elif counts and max(counts):
        tests = f"{' or '.join(map(str, sorted(counts)))} evaluations in the last {LAST} rounds"
        parts.append(f"Pooled and mean accuracy: of {tests}; personal: after the last.")
    return " ".join(parts)


def estimate_text(found: StudyEstimate) -> str:
    """Return the estimate of a study as a line."""
    gpu = f" and {found.gpu_memory / 1e9:.1f} GB on the GPU" if found.gpu_memory else ""
    return (
        f"{plural(found.runs, 'run')} to do: about {_duration(found.seconds)} on this machine, "
        f"{found.memory / 1e9:.1f} GB of memory{gpu}; measured on a few steps"
    )


def _result_text(result: RunResult) -> str:
    outcome = result.outcome
    if outcome["pooled"] is not None:
        return f"pooled accuracy {100 * outcome['pooled']:.1f} %"
    return f"loss {outcome['loss']:.4g}" if outcome["loss"] is not None else "not tested"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
