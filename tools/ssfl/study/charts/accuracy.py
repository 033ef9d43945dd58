"""Charts of accuracy: against sparsity, by round, by partition, and as differences."""

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import blended_transform_factory

from ssfl.program.palette import BLUE, VERMILION
from ssfl.study.charts import style
from ssfl.study.charts.style import INTERVAL, Result
from ssfl.study.intervals import Spread

_GLOBAL = "mean accuracy over clients, global model"
_FAR = 10.0  # points; larger differences are drawn on a logarithmic scale
_LAST = 10  # rounds whose mean is in the legend
_FEW = 12  # curves; more have a smaller legend
_TICKS = (-80, -40, -20, -10, -5, 0, 5, 10, 20, 40, 80)


def sparsity_picture(result: Result, path: Path) -> None:
    """Draw accuracy against sparsity, one line per method.

        {"accuracy": label, "dense": [one per seed],
         "series": {"ssfl": {"0.5": [one per seed], …}, "shuffled": {…}, …}}

    A method may lack some or all sparsities; `dense` may be missing.
    """
    series = style.not_empty(result, "series")
    figure, axes = style.new_chart(result, "What each mask is worth", 8.4, 4.6, _GLOBAL)
    for name, look, dodge in style.side_by_side(series, 0.035):
        sparsities = style.by_number(series[name])
        spreads = [style.percent(series[name][sparsity]) for sparsity in sparsities]
        axes.errorbar(
            [_place(sparsity) + dodge for sparsity in sparsities],
            [spread.mean for spread in spreads],
            yerr=style.whiskers(spreads), color=look.colour, marker=look.marker, markersize=5,
            linestyle=look.line, capsize=2.5, label=look.label,
        )  # fmt: skip
    if result.get("dense"):
        look, dense = style.LOOKS["dense"], style.percent(result["dense"])
        label = f"{look.label}: {dense.mean:.1f}"
        axes.axhline(dense.mean, color=look.colour, linestyle=look.line, label=label)
        if not math.isnan(dense.low):
            axes.axhspan(dense.low, dense.high, color=look.colour, alpha=0.12, linewidth=0)
    sparsities = style.by_number({sparsity for curve in series.values() for sparsity in curve})
    axes.set_xticks([_place(s) for s in sparsities], [style.sparsity_text(s) for s in sparsities])
    axes.set_xlabel("sparsity: share of conv and linear weights that is pruned")
    style.finish_axes(axes)
    figure.legend(loc="outside right center", frameon=False, title=INTERVAL, title_fontsize=8)
    style.save(figure, path)


def _place(sparsity: str) -> float:
    """Return the position of a sparsity on the axis: one step for each halving of the density."""
    return -math.log2(1 - float(sparsity))


def convergence_picture(result: Result, path: Path) -> None:
    """Draw accuracy by round, a line with a band for each method.

        {"accuracy": label, "axis": label,
         "curves": {"ssfl": {"rounds": [1, 2, …], "seeds": [[one per round], …]}, …}}

    A value is None where nothing was measured. The legend has the mean of the last ten rounds. With
    `axis`, places on another axis take the place of rounds, and the legend has the last value;
    `logarithmic` is the scale of this axis.
    """
    curves = {name: c for name, c in result.get("curves", {}).items() if c.get("seeds")}
    style.require_data("curves", curves)
    figure, axes = style.new_chart(result, "How fast each method learns", 8.4, 4.4, _GLOBAL)
    for name, look in style.looks(style.in_usual_order(curves)).items():
        rounds, drawn = curves[name]["rounds"], style.band(curves[name]["seeds"])
        end = f"{drawn[-1].mean:.1f}" if "axis" in result else _last_rounds(rounds, drawn)
        label = f"{look.label}: {end}"
        style.draw_band(axes, rounds, drawn, look.colour, linestyle=look.line, label=label)
    if result.get("logarithmic"):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.set_xlabel(result.get("axis", "rounds of training"))
    axes.margins(x=0.01)
    style.finish_axes(axes)
    shown = "at the end, %" if "axis" in result else "mean of the last\n10 rounds, %"
    figure.legend(
        loc="outside right center", frameon=False, title_fontsize=8,
        fontsize=9 if len(curves) <= _FEW else 6, title=f"{shown}\n(band: {INTERVAL})",
    )  # fmt: skip
    style.save(figure, path)


def _last_rounds(rounds: list[int], drawn: list[Spread]) -> str:
    """Return the mean of the values measured in the last ten rounds, as text."""
    late = [place.mean for n, place in zip(rounds, drawn, strict=True) if n > rounds[-1] - _LAST]
    last = [mean for mean in late if not math.isnan(mean)]
    return f"{math.fsum(last) / len(last):.1f}" if last else "not measured"


def partition_picture(result: Result, path: Path) -> None:
    """Draw bars of accuracy, a group for each partition.

        {"accuracy": label,
         "groups": {"Dirichlet 0.3": {"dense": [one per seed], "SSFL, 50 %": […], …}, …}}

    A group may lack methods.
    """
    groups = style.not_empty(result, "groups")
    names = dict.fromkeys(name for group in groups.values() for name in group)
    figure, axes = style.new_chart(result, "How the data are spread", 8.4, 4.2, _GLOBAL)
    width = 0.82 / len(names)
    for name, look, offset in style.side_by_side(names, width):
        spreads = [style.percent(group[name]) for group in groups.values() if name in group]
        places = [at + offset for at, group in enumerate(groups.values()) if name in group]
        means = [spread.mean for spread in spreads]
        axes.bar(
            places, means, width * 0.92, yerr=style.whiskers(spreads), capsize=2.5,
            color=look.colour, label=look.label, error_kw={"linewidth": 1},
        )  # fmt: skip
        for place, found in zip(places, spreads, strict=True):
            top = found.mean if math.isnan(found.high) else found.high
            axes.annotate(
                f"{found.mean:.1f}", (place, top), (0, 2), textcoords="offset points",
                ha="center", va="bottom", fontsize=8,
            )  # fmt: skip
    axes.set_xticks(range(len(groups)), list(groups))
    axes.margins(y=0.1)
    style.finish_axes(axes)
    axes.grid(visible=False, axis="x")
    figure.legend(loc="outside right center", frameon=False, title=INTERVAL, title_fontsize=8)
    style.save(figure, path)


def differences_picture(result: Result, path: Path) -> None:
    """Draw paired differences with their intervals and the bar that each should reach.

        {"accuracy": label,
         "rows": [{"label": "SSFL − dense, 50 %", "values": [one per seed], "bar": -0.01}, …]}

    Differences and bars are shares: 0.01 is one point. `bar` may be missing.
    """
    rows = [row for row in result.get("rows", []) if row.get("values")]
    style.require_data("rows", rows)
    spreads = [style.percent(row["values"]) for row in rows]
    bars = [None if row.get("bar") is None else 100 * row["bar"] for row in rows]
    height = 1.5 + 0.36 * len(rows)
    figure, axes = style.new_chart(result, "Differences, paired by seed", 8.4, height)
    axes.axvline(0, color="0.4", linewidth=0.8)
    right_of_axes = blended_transform_factory(axes.transAxes, axes.transData)
    for place, (found, bar) in enumerate(zip(spreads, bars, strict=True)):
        missed = bar is not None and found.mean < bar
        colour = VERMILION if missed else BLUE
        axes.errorbar(
            found.mean, place, xerr=style.whiskers([found]),
            fmt="D" if missed else "o", color=colour, markersize=5, capsize=3,
        )  # fmt: skip
        if bar is not None:
            axes.plot([bar, bar], [place - 0.32, place + 0.32], color="black", linewidth=2)
        text = style.interval_text(found)
        axes.text(1.01, place, text, transform=right_of_axes, va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    what = f"difference in {result.get('accuracy', _GLOBAL)}, points"
    means = [found.mean for found in spreads]
    if _spread_far(axes, means + [bar for bar in bars if bar is not None]):
        what += f"\n(logarithmic beyond ±{_FAR:g})"
    axes.set_xlabel(what)
    style.finish_axes(axes)
    figure.legend(
        handles=_difference_handles(spreads, bars), loc="outside lower center", ncols=3,
        frameon=False, fontsize=9,
    )  # fmt: skip
    style.save(figure, path)


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
    handles = [style.handle(f"mean, {INTERVAL}", color=BLUE, marker="o", **point)]
    if any(bar is not None for bar in bars):
        tick: dict[str, Any] = {"linestyle": "none", "markersize": 12, "markeredgewidth": 2}
        handles.append(style.handle("required minimum", color="black", marker="|", **tick))
    pairs = zip(spreads, bars, strict=True)
    if any(bar is not None and found.mean < bar for found, bar in pairs):
        handles.append(style.handle("below the minimum", color=VERMILION, marker="D", **point))
    return handles
