"""Tables shown after scoring: the cost of each sparsity by client link, and the layers."""

from collections.abc import Mapping, Sequence
from typing import Any

BAR = 20  # characters of the longest bar
MAX_LAYERS = 30
SHOWN = 6  # clients with a column: those with the slowest links


def link_speeds(votes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return bytes per second of every client's link, measured by its upload of scores."""
    return {
        row["client"]: row["upload_bytes"] / row["upload_s"]
        for row in votes
        if row.get("upload_bytes") and row.get("upload_s", 0) > 0
    }


def density_table(
    rows: Sequence[Mapping[str, Any]], speeds: Mapping[str, float], chosen: int
) -> str:
    """Return the table as text; `chosen` is the number of weights that the run keeps."""
    slowest = sorted(speeds, key=lambda client: speeds[client])[:SHOWN]
    heads = ["sparsity", "kept", "per round", "", *slowest, "thinnest layer"]
    most = max((row["update_bytes"] for row in rows), default=1)
    lines = [heads]
    for row in rows:
        layer, num_bytes = row["thinnest"], row["update_bytes"]
        mark = "*" if row["num_kept"] == chosen else " "
        share = f"{100 * layer['kept'] / layer['size']:.2f} %"
        lines.append(
            [
                f"{100 * float(row['sparsity']):g} %{mark}",
                f"{row['num_kept']:,}",
                _size(num_bytes),
                "█" * max(1, round(BAR * num_bytes / most)),
                *(_time(num_bytes / speeds[client]) for client in slowest),
                f"{layer['name']}: {layer['kept']:,} of {layer['size']:,} ({share})",
            ]
        )
    text = _aligned(lines, left=(3, len(heads) - 1))
    notes = ["* this run. Per round: one client's update, as plain values; its base is as large."]
    if slowest:
        more = f" ({len(speeds) - len(slowest)} faster ones not shown)" * (len(speeds) > SHOWN)
        notes.append(f"Times: one way, at the speed of the client's upload of scores{more}.")
    return "\n".join([text, *notes])


def layer_table(layers: Mapping[str, tuple[int, int]]) -> str:
    """Return a table of what each layer keeps; of many layers, only the sparsest.

    >>> print(layer_table({"conv": (10, 10), "linear": (5, 100)}))
      conv  10 of   10  100.00 %  ████████████████████
    linear   5 of  100    5.00 %  █
    """
    shown = sorted(layers, key=lambda name: layers[name][0] / layers[name][1])[:MAX_LAYERS]
    lines = []
    for name, (kept, size) in layers.items():
        if name in shown:
            bar = "█" * max(1 if kept else 0, round(BAR * kept / size))
            lines.append([name, f"{kept:,} of", f"{size:,}", f"{100 * kept / size:.2f} %", bar])
    more = len(layers) - len(shown)
    rest = [f"({more} layers that keep more are not shown)"] if more else []
    return "\n".join([_aligned(lines, left=(4,)), *rest])


def _aligned(lines: list[list[str]], left: tuple[int, ...]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _size(num_bytes: float) -> str:
    """Return a size in decimal units.

    >>> _size(4504180), _size(9708)
    ('4.50 MB', '9.71 kB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.2f} {unit}"
    return f"{num_bytes:.0f} B"


def _time(seconds: float) -> str:
    if seconds < 0.0095:
        return "< 10 ms"
    if seconds < 0.95:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
