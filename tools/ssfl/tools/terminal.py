"""The terminal as our commands use it: what they print is text, never markup."""

from rich.console import Console


def console() -> Console:
    """Return a console that prints names as they are, whatever brackets they hold."""
    return Console(markup=False, highlight=False, emoji=False)
