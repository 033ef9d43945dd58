"""Terminal output of the commands: text without markup and control codes."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table

from ssfl.program.printable import printable

WIDE = 120  # columns of output to a file or a pipe


@contextmanager
def stdout_aside() -> Iterator[None]:
    """Redirect stdout to stderr, also for libraries and child processes."""
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


class SafeConsole(Console):
    """A console that escapes control characters; names may come from strangers."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable with escaped text."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text == "\n" or text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, text.split("\n"))), style)


def console(*, stderr: bool = False) -> Console:
    """Return a console without markup; WIDE columns if the output is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
    return SafeConsole(markup=False, highlight=False, emoji=False, width=wide, stderr=stderr)


def right(heading: RenderableType = "") -> Column:
    """Return a column for numbers."""
    return Column(heading, justify="right")


def plain_table(*columns: Column | str) -> Table:
    """Return a table without lines."""
    return Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
