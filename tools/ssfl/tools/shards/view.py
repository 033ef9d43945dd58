"""Output of `ssfl shards`: the data set, the progress, and the table of shards."""

import sys
import time
from typing import Self

import numpy as np
import numpy.typing as npt
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.shards.summary import ShardSummary
from ssfl.datasets.wording import plural
from ssfl.program.printable import printable
from ssfl.tools.terminal import console, right

_MAX_COLUMNS = 12  # with more classes, only the largest are named
_MAX_HEADING = 60  # characters of all class names together
_MAX_NAME_LENGTH = 20
_NUM_LARGEST = 4  # classes named per shard if classes have no columns
_MAX_ROWS, _FIRST_ROWS, _LAST_ROWS = 40, 20, 10
_QUIET_S = 10.0  # seconds between lines of progress without a terminal

Counts = npt.NDArray[np.int64]


class ProgressView:
    """Progress of long work: a bar on a terminal, otherwise a line every ten seconds."""

    def __init__(self) -> None:
        screen = console(stderr=True)
        self._is_terminal = screen.is_terminal
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeRemainingColumn(),
            console=screen,
            transient=True,
            disable=not self._is_terminal,
        )
        self._what = ""
        self._bar = TaskID(0)
        self._last_line_s = time.monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bars.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """Update the progress of task `what`; a total of 0 is unknown."""
        what = printable(what)
        if self._is_terminal:
            if what != self._what:
                if self._what:
                    self._bars.remove_task(self._bar)
                self._what, self._bar = what, self._bars.add_task(what)
            self._bars.update(self._bar, completed=done, total=total or None)
        elif time.monotonic() - self._last_line_s > _QUIET_S:
            self._last_line_s = time.monotonic()
            share = f"{done / total:.0%}" if total else f"{done:,}"
            print(f"{what}: {share}", file=sys.stderr, flush=True)


def data_set_line(data: DataSet) -> str:
    """Return a one-line description of a data set."""
    train, test = len(data.train_y), len(data.test_y)
    shape = "x".join(map(str, data.input_shape))
    kind = plural(data.num_classes, "class") if data.num_classes else "numbers as targets"
    return (
        f"{printable(data.name)}: {plural(train + test, 'sample')} of {shape} "
        f"({data.train_x.dtype}), {kind}; {train:,} for training, {test:,} for testing"
    )


def summary_table(summary: ShardSummary) -> Table:
    """Return the table of samples per shard, by class or with the range of targets."""
    names = [printable(name) for name in summary.group_names]
    if not summary.num_classes:
        title, columns = "samples and their targets", [*map(right, ("min", "mean", "max"))]
        cells = _range_cells(summary)
    elif len(names) <= _MAX_COLUMNS and sum(map(len, names)) <= _MAX_HEADING:
        title, columns = "training samples per class", [right(Text(name)) for name in names]
        rows = [*summary.train_counts, summary.train_counts.sum(axis=0)]
        cells = [[Text(f"{count:,}" if count else "·") for count in row] for row in rows]
    else:
        title, columns = "samples and their classes", [right("classes"), Column("largest")]
        cells = _largest_cells(summary.train_counts, names)
    columns = [Column("shard"), *columns, *map(right, ("train", "val", "test"))]
    table = Table(*columns, title=title, title_justify="left")
    parts = (summary.train_counts, summary.val_counts, summary.test_counts)
    totals = [[f"{count:,}" for count in part.sum(axis=1)] for part in parts]
    stems = [path.stem for path in summary.paths]
    for client in _visible_clients(len(stems)):
        if client < 0:
            table.add_row("…")
        else:
            table.add_row(stems[client], *cells[client], *(part[client] for part in totals))
    table.add_section()
    table.add_row("all", *cells[-1], *(f"{part.sum():,}" for part in parts))
    return table


def _visible_clients(clients: int) -> list[int]:
    """Return the clients that get a row; -1 stands for the omitted ones."""
    if clients <= _MAX_ROWS:
        return list(range(clients))
    return [*range(_FIRST_ROWS), -1, *range(clients - _LAST_ROWS, clients)]


def _largest_cells(counts: Counts, names: list[str]) -> list[list[Text]]:
    cells = []
    for row in [*counts, counts.sum(axis=0)]:
        held = int(np.count_nonzero(row))
        largest = np.argsort(-row, kind="stable")[: min(held, _NUM_LARGEST)]
        listed = ", ".join(f"{_short(names[label])}: {row[label]:,}" for label in largest)
        cells.append([Text(f"{held:,}"), Text(listed + (", …" if held > _NUM_LARGEST else ""))])
    return cells


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LENGTH else name[: _MAX_NAME_LENGTH - 1] + "…"


def _range_cells(summary: ShardSummary) -> list[list[Text]]:
    low, mean, high = summary.target_ranges.T
    weights = summary.train_counts.sum(axis=1)
    whole = [low.min(), np.average(mean, weights=weights), high.max()]
    return [[Text(f"{value:.4g}") for value in row] for row in [*summary.target_ranges, whole]]
