"""Shared parts of the charts: colours, names of methods, intervals, files.

Colours come from `ssfl.program.palette`; methods also differ in their markers. Accuracies are
shares 0 … 1, one for each seed, and are drawn in per cent. The interval around a mean is its 95 %
interval over seeds; a single seed has none.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ssfl.durable.files import atomic_file
from ssfl.program.palette import (
    BLACK,
    BLUE,
    DENSE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    SSFL,
    VERMILION,
)
from ssfl.study.errors import StudyError
from ssfl.study.intervals import Spread, spread

Result = Mapping[str, Any]  # in JSON types

_MIN_SPAN = 10.0  # points of accuracy that an axis shows at least
INTERVAL = "95 % interval over seeds"


@dataclass(frozen=True, slots=True)
class Look:
    """Label, colour, marker and line of a method, the same in every chart."""

    label: str
    colour: str
    marker: str
    line: str = "-"


LOOKS = {
    "dense": Look("dense", DENSE, "P", "--"),
    "fedavg": Look("dense", DENSE, "P", "--"),
    "FedAvg (dense)": Look("FedAvg (dense)", DENSE, "P", "--"),
    "ssfl": Look("SSFL", SSFL, "o"),
    "SSFL": Look("SSFL", SSFL, "o"),
    "saliency": Look("SSFL", SSFL, "o"),
    "shuffled": Look("shuffled in each layer", GREEN, "s"),
    "one-client": Look("one client's SNIP", PURPLE, "^"),
    "random": Look("global random", ORANGE, "D"),
    "client-random-holders": Look("client-wise random,\nmean over holders", SKY, "v"),
    "client-random-zeros": Look("client-wise random,\nothers as zeros", GREY, "X"),
    "magnitude": Look("magnitude", BLACK, "d"),
    "synflow": Look("SynFlow", SKY, "<"),
    "grasp": Look("GraSP", GREY, ">"),
}
FEW_POINTS = 3  # a curve with at most this many has a marker at each
_MORE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GREY, BLACK)
_MARKERS = "osD^vPX*"
_LINES = ("-", "--", ":", "-.")  # the next kind of line when the colours begin again


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Return the look of each name; an unknown name gets the next free colour."""
    taken = {LOOKS[name].colour for name in names if name in LOOKS}
    free = [colour for colour in _MORE if colour not in taken] or list(_MORE)
    unknown = [name for name in names if name not in LOOKS]
    new = {
        name: Look(
            name,
            free[place % len(free)],
            _MARKERS[place % len(_MARKERS)],
            _LINES[place // len(free) % len(_LINES)],
        )
        for place, name in enumerate(unknown)
    }
    return {name: LOOKS.get(name) or new[name] for name in names}


def in_usual_order(names: Iterable[str]) -> list[str]:
    """Return names in the order of LOOKS, unknown ones last."""
    order = list(LOOKS)
    return sorted(names, key=lambda name: order.index(name) if name in LOOKS else len(order))


def side_by_side(names: Iterable[str], width: float) -> list[tuple[str, Look, float]]:
    """Return names in the usual order, with their looks and their offsets around zero."""
    chosen = looks(in_usual_order(names))
    offsets = (np.arange(len(chosen)) - (len(chosen) - 1) / 2) * width
    return [
        (name, look, float(offset))
        for (name, look), offset in zip(chosen.items(), offsets, strict=True)
    ]


def percent(values: Sequence[float]) -> Spread:
    """Return mean and interval over seeds, in per cent."""
    return spread([100 * value for value in values])


def band(seeds: Sequence[Sequence[float | None]]) -> list[Spread]:
    """Return the mean and interval over seeds at each place of a curve, in per cent.

    A curve may lack values; places without a value of any seed are left out of the line.
    """
    lengths = [len(curve) for curve in seeds]
    if len(set(lengths)) > 1:
        raise StudyError(f"curves of one method differ in length: {lengths}")
    return [
        percent([value for value in values if value is not None and not math.isnan(value)])
        for values in zip(*seeds, strict=True)
    ]


def draw_band(
    axes: Axes, x: Sequence[float], drawn: Sequence[Spread], colour: str, **more: Any
) -> None:
    """Draw a line with its interval around it; mark the points that a line would not show."""
    means = [place.mean for place in drawn]
    markers = {} if "marker" in more else _marked(means)
    axes.plot(x, means, color=colour, **markers, **more)
    low, high = [place.low for place in drawn], [place.high for place in drawn]
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def _marked(means: Sequence[float]) -> dict[str, Any]:
    """Return markers for every point of a short curve, and for points without a neighbour."""
    known = [place for place, mean in enumerate(means) if not math.isnan(mean)]
    alone = [place for place in known if not {place - 1, place + 1} & set(known)]
    shown = known if len(known) <= FEW_POINTS else alone
    return {"marker": "o", "markersize": 4, "markevery": shown} if shown else {}


def whiskers(spreads: Sequence[Spread]) -> list[list[float]]:
    """Return the lengths of the error bars below and above; 0 for a single seed."""
    halves = [spread.half_width for spread in spreads]
    widths = [0.0 if math.isnan(half) else half for half in halves]
    return [widths, widths]


def signed(value: float) -> str:
    """Return points with their sign, and two decimals if one would show zero."""
    return f"{value:+.{1 if abs(value) >= 0.05 else 2}f}".replace("-", "−")


def interval_text(found: Spread) -> str:
    """Return a difference and its interval as text: +1.9 [+1.2, +2.6]."""
    if math.isnan(found.low):
        return signed(found.mean)
    return f"{signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]"


def accuracy_floor(values: Sequence[float]) -> float | None:
    """Return where an axis of percentages begins, so that most values can be distinguished.

    This is the lower quartile if the values above it lie close together, and at least 10 points
    below the largest value, so that noise stays small. A curve that climbs from 10 to 98 % is
    drawn from 88 % on. None means that the axis shows every value.
    """
    low, quarter, high = np.quantile(values, [0.0, 0.25, 1.0])
    floor = float(min(quarter, high - _MIN_SPAN))
    return None if high - quarter > (high - low) / 2 or floor <= low else floor


def by_number(names: Iterable[str]) -> list[str]:
    """Return sparsities in ascending order, as they are written."""
    return sorted(names, key=float)


def sparsity_text(sparsity: str) -> str:
    return f"{100 * float(sparsity):g} %"


def finish_axes(axes: Axes) -> None:
    """Draw a light grid, and remove the frame at the top and right."""
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def handle(label: str, **style: Any) -> Line2D:
    """Return a legend entry that stands for several lines."""
    return Line2D([], [], label=label, **style)


def new_figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def new_chart(
    result: Result, title: str, width: float, height: float, accuracy: str = ""
) -> tuple[Figure, Axes]:
    """Return a figure with one chart; a result may have its own title and name of its accuracy."""
    figure = new_figure(width, height)
    axes = figure.subplots()
    axes.set_title(result.get("title", title))
    if accuracy:
        axes.set_ylabel(f"{result.get('accuracy', accuracy)}, %")
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write the chart atomically; the same results give the same bytes."""
    with atomic_file(path) as file:
        figure.savefig(file, dpi=130, format="png", metadata={"Software": None})


def require_data(what: str, found: object) -> None:
    """Raise StudyError if there is nothing to draw."""
    if not found:
        raise StudyError(f"there is nothing to draw: the result has no {what}")


def not_empty(result: Result, name: str) -> dict[str, Any]:
    """Return the entries of a part of the result that have data; raise StudyError if none has."""
    found = {key: entry for key, entry in result.get(name, {}).items() if entry}
    require_data(name, found)
    return found
