"""The terminal as our commands use it: what they print is text, never markup or a control code."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ssfl.program.printable import printable

WIDE = 120  # columns of what goes to a file or a pipe


@contextmanager
def stdout_aside() -> Iterator[None]:
    """Let whatever is printed inside go to stderr, also by libraries and by other programs."""
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
    """A console that escapes control characters in what it prints; names come from strangers."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable, each with safe text."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text == "\n" or text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, text.split("\n"))), style)


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints names as they are, wide where no terminal says how wide."""
    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
    return SafeConsole(markup=False, highlight=False, emoji=False, width=wide, stderr=stderr)
