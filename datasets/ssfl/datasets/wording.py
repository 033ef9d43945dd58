"""Shared formatting of messages."""

from collections.abc import Collection
from typing import Any

_SHOWN = 12  # names listed in a message before "…"
_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6))


def plural(number: int, thing: str) -> str:
    """Return a number and a noun: 1 sample, 2 samples, 1 class, 2 classes."""
    ending = "" if number == 1 else "es" if thing.endswith("s") else "s"
    return f"{number:,} {thing}{ending}"


def join_names(names: Collection[str]) -> str:
    """Return the names joined by commas; of more than twelve, the first twelve and the total."""
    more = f" … ({len(names):,} in all)" if len(names) > _SHOWN else ""
    return ", ".join(list(names)[:_SHOWN]) + more


def format_bytes(num_bytes: int) -> str:
    """Return a number of bytes with a suitable unit, such as 3.1 MB."""
    for unit, factor in _UNITS:
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.1f} {unit}"
    return f"{num_bytes / 1000:.1f} kB"


def class_name(label: Any) -> str:
    """Return the name of a class whose label is a boolean, a number or text."""
    if isinstance(label, bool):
        return "true" if label else "false"
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return str(label)
