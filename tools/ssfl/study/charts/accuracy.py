"""Charts of accuracy: against sparsity, by round, by partition, and as differences."""

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import blended_transform_factory

from ssfl.program.palette import BLUE, VERMILION
from ssfl.study.charts.style import (
    INTERVAL,
    LOOKS,
    Look,
    Result,
    accuracy_label,
    band,
    by_number,
    draw_band,
    finish_axes,
    handle,
    in_usual_order,
    interval_text,
    looks,
    new_figure,
    percent,
    require_data,
    save,
    spaced,
    sparsity_text,
    whiskers,
)
from ssfl.study.intervals import Spread, spread

_GLOBAL = "mean accuracy over clients, global model"
_FAR = 10.0  # points; larger differences are drawn on a logarithmic scale
_LAST = 10  # rounds whose mean is in the legend
_TICKS = (-80, -40, -20, -10, -5, 0, 5, 10, 20, 40, 80)


def sparsity_picture(result: Result, path: Path) -> None:
    """Draw accuracy against sparsity, one line per method.

        {"accuracy": label, "dense": [one per seed],
         "series": {"ssfl": {"0.5": [one per seed], …}, "shuffled": {…}, …}}

    A method may lack some or all sparsities; `dense` may be missing.
    """
    series = {name: curve for name, curve in result.get("series", {}).items() if curve}
    require_data("series", series)
    figure = new_figure(8.4, 4.6)
    axes = figure.subplots()
    names = in_usual_order(list(series))
    chosen = looks(names)
    dodges = spaced(len(names), 0.035)
    for name, dodge in zip(names, dodges, strict=True):
        _sparsity_line(axes, series[name], chosen[name], float(dodge))
    if result.get("dense"):
        _dense_line(axes, percent(result["dense"]))
    sparsities = by_number(list({sparsity for curve in series.values() for sparsity in curve}))
    axes.set_xticks([_place(s) for s in sparsities], [sparsity_text(s) for s in sparsities])
    axes.set_xlabel("sparsity: share of conv and linear weights that is pruned")
    axes.set_ylabel(accuracy_label(result, _GLOBAL))
    axes.set_title(result.get("title", "What each mask is worth"))
    finish_axes(axes)
    figure.legend(loc="outside right center", frameon=False, title=INTERVAL, title_fontsize=8)
    save(figure, path)


def _place(sparsity: str) -> float:
    """Return the position of a sparsity on the axis: one step for each halving of the density."""
    return -math.log2(1 - float(sparsity))


def _sparsity_line(axes: Axes, curve: dict[str, list[float]], look: Look, dodge: float) -> None:
    sparsities = by_number(list(curve))
    spreads = [percent(curve[sparsity]) for sparsity in sparsities]
    axes.errorbar(
        [_place(sparsity) + dodge for sparsity in sparsities],
        [spread.mean for spread in spreads],
        yerr=whiskers(spreads),
        color=look.colour,
        marker=look.marker,
        markersize=5,
        linestyle=look.line,
        capsize=2.5,
        label=look.label,
    )


def _dense_line(axes: Axes, dense: Spread) -> None:
    look = LOOKS["dense"]
    axes.axhline(
        dense.mean, color=look.colour, linestyle=look.line, label=f"{look.label}: {dense.mean:.1f}"
    )
    if not math.isnan(dense.low):
        axes.axhspan(dense.low, dense.high, color=look.colour, alpha=0.12, linewidth=0)


def convergence_picture(result: Result, path: Path) -> None:
    """Draw accuracy by round, a line with a band for each method.

        {"accuracy": label,
         "curves": {"ssfl": {"rounds": [1, 2, …], "seeds": [[one per round], …]}, …}}

    A value is None where nothing was measured. The legend has the mean of the last ten rounds.
    """
    curves = {name: c for name, c in result.get("curves", {}).items() if c.get("seeds")}
    require_data("curves", curves)
    figure = new_figure(8.4, 4.4)
    axes = figure.subplots()
    names = in_usual_order(list(curves))
    for name, look in looks(names).items():
        drawn = band(curves[name]["seeds"])
        rounds = curves[name]["rounds"]
        draw_band(
            axes,
            rounds,
            drawn,
            look.colour,
            linestyle=look.line,
            label=f"{look.label}: {_last_rounds(rounds, drawn.mean)}",
        )
    axes.set_xlabel("rounds of training")
    axes.set_ylabel(accuracy_label(result, _GLOBAL))
    axes.set_title(result.get("title", "How fast each method learns"))
    axes.margins(x=0.01)
    finish_axes(axes)
    figure.legend(
        loc="outside right center", frameon=False, fontsize=9, title_fontsize=8,
        title=f"mean of the last\n10 rounds, %\n(band: {INTERVAL})",
    )  # fmt: skip
    save(figure, path)


def _last_rounds(rounds: list[int], means: list[float]) -> str:
    """Return the mean of the values measured in the last ten rounds, as text."""
    last = [
        mean
        for number, mean in zip(rounds, means, strict=True)
        if number > rounds[-1] - _LAST and not math.isnan(mean)
    ]
    return f"{math.fsum(last) / len(last):.1f}" if last else "not measured"


def partition_picture(result: Result, path: Path) -> None:
    """Draw bars of accuracy, a group for each partition.

        {"accuracy": label,
         "groups": {"Dirichlet 0.3": {"dense": [one per seed], "SSFL, 50 %": […], …}, …}}

    A group may lack methods.
    """
    groups = {name: group for name, group in result.get("groups", {}).items() if group}
    require_data("groups", groups)
    names = in_usual_order(list(dict.fromkeys(name for group in groups.values() for name in group)))
    figure = new_figure(8.4, 4.2)
    axes = figure.subplots()
    width = 0.82 / len(names)
    offsets = spaced(len(names), width)
    for offset, (name, look) in zip(offsets, looks(names).items(), strict=True):
        held = [
            (place, group[name]) for place, group in enumerate(groups.values()) if name in group
        ]
        spreads = [percent(values) for _, values in held]
        places = [place + float(offset) for place, _ in held]
        means = [spread.mean for spread in spreads]
        axes.bar(
            places, means, width * 0.92, yerr=whiskers(spreads), capsize=2.5, color=look.colour,
            label=look.label, error_kw={"linewidth": 1},
        )  # fmt: skip
        for place, found in zip(places, spreads, strict=True):
            top = found.mean if math.isnan(found.high) else found.high
            axes.annotate(
                f"{found.mean:.1f}", (place, top), (0, 2), textcoords="offset points",
                ha="center", va="bottom", fontsize=8,
            )  # fmt: skip
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel(accuracy_label(result, _GLOBAL))
    axes.set_title(result.get("title", "How the data are spread"))
    axes.margins(y=0.1)
    finish_axes(axes)
    axes.grid(visible=False, axis="x")
    figure.legend(loc="outside right center", frameon=False, title=INTERVAL, title_fontsize=8)
    save(figure, path)


def differences_picture(result: Result, path: Path) -> None:
    """Draw paired differences with their intervals and the bar that each should reach.

        {"accuracy": label,
         "rows": [{"label": "SSFL − dense, 50 %", "values": [one per seed], "bar": -0.01}, …]}

    Differences and bars are shares: 0.01 is one point. `bar` may be missing.
    """
    rows = [row for row in result.get("rows", []) if row.get("values")]
    require_data("rows", rows)
    spreads = [spread([100 * value for value in row["values"]]) for row in rows]
    bars = [None if row.get("bar") is None else 100 * row["bar"] for row in rows]
    figure = new_figure(8.4, 1.5 + 0.36 * len(rows))
    axes = figure.subplots()
    axes.axvline(0, color="0.4", linewidth=0.8)
    right_of_axes = blended_transform_factory(axes.transAxes, axes.transData)
    for place, (found, bar) in enumerate(zip(spreads, bars, strict=True)):
        missed = bar is not None and found.mean < bar
        colour = VERMILION if missed else BLUE
        axes.errorbar(
            found.mean, place, xerr=[[w[0]] for w in whiskers([found])], fmt="D" if missed else "o",
            color=colour, markersize=5, capsize=3,
        )  # fmt: skip
        if bar is not None:
            axes.plot([bar, bar], [place - 0.32, place + 0.32], color="black", linewidth=2)
        axes.text(
            1.01, place, interval_text(found), transform=right_of_axes, va="center", fontsize=9
        )
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    what = f"difference in {result.get('accuracy', _GLOBAL)}, points"
    if _spread_far(
        axes, [found.mean for found in spreads] + [bar for bar in bars if bar is not None]
    ):
        what += f"\n(logarithmic beyond ±{_FAR:g})"
    axes.set_xlabel(what)
    axes.set_title(result.get("title", "Differences, paired by seed"))
    finish_axes(axes)
    figure.legend(
        handles=_difference_handles(spreads, bars), loc="outside lower center", ncols=3,
        frameon=False, fontsize=9,
    )  # fmt: skip
    save(figure, path)


def _spread_far(axes: Axes, values: list[float]) -> bool:
    """Use a logarithmic scale beyond _FAR if small differences would be unreadable."""
    if max(abs(value) for value in values) <= 2 * _FAR:
        return False
    axes.set_xscale("symlog", linthresh=_FAR, linscale=1.0)
    low, high = min(values) * 1.3 - 1, max(values) * 1.3 + 1
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in ticks])
    axes.minorticks_off()
    return True


def _difference_handles(spreads: list[Spread], bars: list[float | None]) -> list[Line2D]:
    point: dict[str, Any] = {"linestyle": "none", "markersize": 6}
    handles = [handle(f"mean, {INTERVAL}", color=BLUE, marker="o", **point)]
    if any(bar is not None for bar in bars):
        tick: dict[str, Any] = {"linestyle": "none", "markersize": 12, "markeredgewidth": 2}
        handles.append(handle("required minimum", color="black", marker="|", **tick))
    pairs = zip(spreads, bars, strict=True)
    if any(bar is not None and found.mean < bar for found, bar in pairs):
        handles.append(handle("below the minimum", color=VERMILION, marker="D", **point))
    return handles
