"""Charts of single runs: accuracy when new classes arrive, and accuracy by client."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ssfl.program.palette import BLUE, ORANGE, VERMILION
from ssfl.study.charts import style
from ssfl.study.charts.style import INTERVAL, Result

_GROUPS = {"new": ("new classes", VERMILION), "old": ("old classes", BLUE)}
_RUNS = {"refresh": ("mask refreshed", "-"), "no refresh": ("mask kept", "--")}
_SHOWN = 10  # clients at each end of the ranking
_KINDS = {"global": ("global model", BLUE, "o"), "personal": ("personal model", ORANGE, "D")}
_UNEVEN = 20  # from this ratio of sizes on, the scale is logarithmic


def ood_picture(result: Result, path: Path) -> None:
    """Draw accuracy on new and old classes by round, a panel for each sparsity.

        {"accuracy": label, "arrival": 30,
         "panels": {"0.5": {"refresh": {"rounds": […], "new": [[one per round], …], "old": …},
                            "no refresh": {…},
                            "difference": [refresh − no refresh on new classes, one per seed]}, …}}

    Each run, group of classes and difference may be missing.
    """
    panels = style.not_empty(result, "panels")
    figure = style.new_figure(1.0 + 2.8 * len(panels), 4.4)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, sparsity in zip(grid, style.by_number(panels), strict=True):
        _ood_panel(axes, panels[sparsity], result.get("arrival"))
        axes.set_title(f"sparsity {style.sparsity_text(sparsity)}", fontsize=10)
    grid[0].set_ylabel(f"{result.get('accuracy', 'accuracy of the global model')}, %")
    handles = [
        style.handle(f"{group}, {run}", color=colour, linestyle=line)
        for group, colour in _GROUPS.values()
        for run, line in _RUNS.values()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(result.get("title", f"New classes arrive (band: {INTERVAL})"), fontsize=12)
    style.save(figure, path)


def _ood_panel(axes: Axes, panel: Mapping[str, Any], arrival: int | None) -> None:
    for run, (_, line) in _RUNS.items():
        for group, (_, colour) in _GROUPS.items():
            if panel.get(run, {}).get(group):
                rounds, drawn = panel[run]["rounds"], style.band(panel[run][group])
                style.draw_band(axes, rounds, drawn, colour, linestyle=line, linewidth=1.4)
    if arrival is not None:
        axes.axvline(arrival, color="black", linestyle=":", linewidth=1.2)
        axes.annotate(
            "they join", (arrival, 1), (-3, -3), textcoords="offset points", ha="right", va="top",
            xycoords=("data", "axes fraction"), rotation=90, fontsize=8,
        )  # fmt: skip
    if panel.get("difference"):
        effect = style.interval_text(style.percent(panel["difference"]))
        axes.set_xlabel(f"rounds of training\n\nrefresh − kept, new classes:\n{effect} points")
    else:
        axes.set_xlabel("rounds of training")
    axes.set_ylim(-3, 103)
    axes.margins(x=0.01)
    style.finish_axes(axes)


def client_accuracy_picture(result: Result, path: Path) -> None:
    """Draw the accuracy of each client against its data size, and the ten best and worst clients.

        {"clients": [{"name": "shard_00", "samples": 120, "global": 0.7, "personal": 0.9}, …]}

    `global` or `personal` may be missing for all clients. Clients are ranked by `personal`, or
    else by `global`. A client with None has no test samples and is left out.
    """
    given = result.get("clients", [])
    kinds = [kind for kind in _KINDS if any(one.get(kind) is not None for one in given)]
    style.require_data("accuracy of clients", kinds)
    clients = [one for one in given if all(one.get(kind) is not None for kind in kinds)]
    ranked = sorted(clients, key=lambda client: (client[kinds[-1]], client["name"]))
    all_fit = len(ranked) < 2 * _SHOWN
    figure = style.new_figure(9.6, 5.2)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    _draw_sizes(left, clients, kinds)
    _draw_ends(right, ranked if all_fit else [*ranked[:_SHOWN], *ranked[-_SHOWN:]], kinds)
    if all_fit:
        right.set_title("every client", fontsize=10)
    else:
        right.axhline(_SHOWN - 0.5, color="0.4", linewidth=1, linestyle=":")
        right.set_title(f"the {_SHOWN} best and the {_SHOWN} worst", fontsize=10)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(result.get("title", "What each client gets"), fontsize=12)
    style.save(figure, path)


def _draw_sizes(axes: Axes, clients: Sequence[Mapping[str, Any]], kinds: list[str]) -> None:
    sizes = np.array([client["samples"] for client in clients], dtype=np.float64)
    for kind in kinds:
        label, colour, marker = _KINDS[kind]
        accuracy = np.array([100 * client[kind] for client in clients])
        axes.scatter(
            sizes, accuracy, s=22, color=colour, marker=marker, alpha=0.65, linewidth=0,
            label=f"{label}: mean over clients {accuracy.mean():.1f}",
        )  # fmt: skip
        axes.axhline(accuracy.mean(), color=colour, linewidth=1, linestyle="--")
    if sizes.max() >= _UNEVEN * max(sizes.min(), 1):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    elif sizes.min() == sizes.max():
        axes.set_xticks([sizes[0]])
    axes.set_xlabel("training samples of the client")
    axes.set_ylabel("accuracy on the client's own test samples, %")
    axes.set_title("accuracy against data size", fontsize=10)
    axes.set_ylim(top=103)
    style.finish_axes(axes)


def _draw_ends(axes: Axes, ranked: Sequence[Mapping[str, Any]], kinds: list[str]) -> None:
    """Draw bars, with the worst client at the bottom."""
    height = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        _, colour, _ = _KINDS[kind]
        places = np.arange(len(ranked)) + ((len(kinds) - 1) / 2 - number) * height
        axes.barh(places, [100 * client[kind] for client in ranked], height * 0.9, color=colour)
    names = [f"{client['name']} ({client['samples']:,})" for client in ranked]
    axes.set_yticks(range(len(ranked)), names, fontsize=8, parse_math=False)
    axes.set_ylim(-0.6, len(ranked) - 0.4)
    axes.set_xlim(0, math.nextafter(100, 101))
    axes.set_xlabel("accuracy, % (training samples in brackets)")
    style.finish_axes(axes)
    axes.grid(visible=False, axis="y")
