"""The terminal as our commands use it: what they print is text, never markup."""

import os
import sys

from rich.console import Console

WIDE = 120  # columns of what goes to a file or a pipe


def console() -> Console:
    """Return a console that prints names as they are, wide where no terminal says how wide."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(markup=False, highlight=False, emoji=False, width=wide)
