"""Charts of masks: their error by number of minibatches, and their density by layer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from ssfl.program.palette import BLUE, GREEN, ORANGE, PURPLE, VERMILION
from ssfl.study.charts import style
from ssfl.study.charts.style import INTERVAL, Result

_BY_SPARSITY = ((BLUE, "o"), (ORANGE, "D"), (GREEN, "s"), (PURPLE, "^"), (VERMILION, "v"))
_PAPER_FLAT = (80, 100)  # minibatches after which the masks of the paper are stable
_TICKS = (1, 2, 5, 10, 20, 40, 100, 200, 400, 1000)


def mask_error_picture(result: Result, path: Path) -> None:
    """Draw the result of `mask_error`: a panel for each oracle, a line for each sparsity.

    A vertical line marks where a curve becomes flat. The grey stripe marks it for the paper.
    """
    oracles = style.not_empty(result, "oracles")
    figure = style.new_figure(1.0 + 4.2 * len(oracles), 4.2)
    grid = figure.subplots(1, len(oracles), sharey=True, squeeze=False)[0]
    for axes, (name, curves) in zip(grid, oracles.items(), strict=True):
        _mask_error_panel(axes, result["minibatches"], curves)
        axes.set_title(f"oracle: {name}", fontsize=10)
    grid[0].set_ylabel("mask error: share of the oracle's\nkept weights that is missed, %")
    grid[0].set_ylim(bottom=0)
    figure.suptitle(
        result.get("title", f"How many minibatches find the mask (band: {INTERVAL})"), fontsize=12
    )
    style.save(figure, path)


def _mask_error_panel(
    axes: Axes, minibatches: list[int], curves: Mapping[str, Mapping[str, Any]]
) -> None:
    axes.axvspan(*_PAPER_FLAT, color="0.88", label="flat in the paper", zorder=0)
    for place, sparsity in enumerate(style.by_number(curves)):
        colour, marker = _BY_SPARSITY[place % len(_BY_SPARSITY)]
        curve = curves[sparsity]
        style.draw_band(
            axes, minibatches, style.band(curve["errors"]), colour, marker=marker, markersize=4,
            label=f"{style.sparsity_text(sparsity)} sparse, flat from {curve['flat_at']}",
        )  # fmt: skip
        # Curves may become flat at the same number, so their dashes leave gaps for each other.
        dashes = (4 * place, (4, 4 * max(1, len(curves) - 1)))
        axes.axvline(curve["flat_at"], color=colour, linestyle=dashes, linewidth=1.4)
    axes.set_xscale("log")
    ticks = [tick for tick in _TICKS if minibatches[0] <= tick <= minibatches[-1]]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("minibatches averaged")
    axes.legend(loc="upper right", fontsize=9, framealpha=0.9)
    style.finish_axes(axes)


def layer_density_picture(result: Result, path: Path) -> None:
    """Draw the density of each layer for each mask, on a logarithmic scale.

        {"masks": {"saliency": {"conv1.weight": {"kept": 60, "size": 72}, …}, "random": {…}, …}}

    Layers are in the order of the first mask that has them. A layer without kept weights is marked
    at the left edge.
    """
    masks = style.not_empty(result, "masks")
    layers = list(dict.fromkeys(layer for mask in masks.values() for layer in mask))
    every = [(name, layer) for mask in masks.values() for name, layer in mask.items()]
    sizes = {name: layer["size"] for name, layer in every}
    shares = [100 * layer["kept"] / layer["size"] for _, layer in every if layer["kept"]]
    height = 1.5 + 0.3 * max(len(layers), 5)
    figure, axes = style.new_chart(result, "Where each mask keeps weights", 8.4, height)
    smallest = min(shares, default=1.0) / 2
    drawn = style.side_by_side(masks, min(0.16, 0.7 / len(masks)))
    for name, look, dodge in drawn:
        held = [(place, masks[name][layer]) for place, layer in enumerate(layers)
                if layer in masks[name]]  # fmt: skip
        kept, size = (sum(layer[key] for _, layer in held) for key in ("kept", "size"))
        places = [place + dodge for place, _ in held]
        x = [100 * layer["kept"] / layer["size"] or smallest for _, layer in held]
        label = f"{look.label.replace(chr(10), ' ')}: {100 * kept / size:.3g} % of all"
        axes.plot(x, places, look.marker, color=look.colour, markersize=6, label=label)
        for place, (_, layer) in zip(places, held, strict=True):
            if not layer["kept"]:
                axes.annotate(
                    "none", (smallest, place), (7, 0), textcoords="offset points", va="center",
                    color=look.colour, fontsize=8,
                )  # fmt: skip
    first = masks[drawn[0][0]].values()
    overall = 100 * sum(layer["kept"] for layer in first) / sum(layer["size"] for layer in first)
    axes.axvline(overall, color="0.4", linestyle="--", linewidth=1, zorder=0)
    axes.set_xscale("log")
    axes.set_xlim(smallest * 0.8, 130)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(
        range(len(layers)), [f"{layer} ({sizes[layer]:,})" for layer in layers], parse_math=False
    )
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.set_xlabel("kept weights of the layer, % (its weights in brackets)")
    style.finish_axes(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    style.save(figure, path)
