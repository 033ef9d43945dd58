"""The terminal as our commands use it: what they print is text, never markup."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from rich.console import Console

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


def console() -> Console:
    """Return a console that prints names as they are, wide where no terminal says how wide."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(markup=False, highlight=False, emoji=False, width=wide)
