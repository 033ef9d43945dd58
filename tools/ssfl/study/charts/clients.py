"""Charts of clients: class mixes, and accuracy beside the weight in the mean of scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ssfl.program.palette import BLUE, CATEGORIES, ORANGE
from ssfl.study.charts import style
from ssfl.study.charts.style import Result


def class_mix_picture(result: Result, path: Path) -> None:
    """Draw the class mix of clients as stacked bars, a panel for each group.

        {"panels": {"best": [{"name": "shard_00", "counts": [12, 0, …], "accuracy": 0.9}, …], …}}

    `accuracy` may be missing.
    """
    panels = style.not_empty(result, "panels")
    figure = style.new_figure(1.0 + 2.9 * len(panels), 4.4)
    grid = figure.subplots(1, len(panels), sharex=True, squeeze=False)[0]
    for axes, (name, clients) in zip(grid, panels.items(), strict=True):
        _class_mix_panel(axes, clients)
        axes.set_title(name, fontsize=10)
    figure.suptitle(result.get("title", "Class mixes of clients"), fontsize=12)
    style.save(figure, path)


def _class_mix_panel(axes: Axes, clients: Sequence[Mapping[str, Any]]) -> None:
    counts = np.array([client["counts"] for client in clients], dtype=np.float64)
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    left = np.zeros(len(clients))
    for label in range(counts.shape[1]):
        colour = CATEGORIES[label % len(CATEGORIES)]
        axes.barh(range(len(clients)), shares[:, label], 0.85, left=left, color=colour)
        left += shares[:, label]
    names = [
        client["name"]
        + ("" if client.get("accuracy") is None else f"  {100 * client['accuracy']:.0f} %")
        for client in clients
    ]
    axes.set_yticks(range(len(clients)), names, fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of each class, %")
    style.finish_axes(axes)
    axes.grid(visible=False)


def client_weights_picture(result: Result, path: Path) -> None:
    """Draw the accuracy of each client as a bar and its weight as a line, by falling weight.

    {"clients": [{"name": "shard_00", "weight": 0.012, "accuracy": 0.9}, …]}
    """
    clients = result.get("clients", [])
    style.require_data("clients", clients)
    ordered = sorted(clients, key=lambda client: -client["weight"])
    figure, axes = style.new_chart(result, "Accuracy beside weight", 8.4, 4.2, "accuracy")
    places = range(len(ordered))
    axes.bar(places, [100 * client["accuracy"] for client in ordered], color=BLUE, width=0.85)
    axes.set_xlabel("clients, by falling weight in the mean of scores")
    axes.set_ylim(0, 103)
    style.finish_axes(axes)
    weights = axes.twinx()
    weights.plot(places, [100 * client["weight"] for client in ordered], color=ORANGE)
    weights.set_ylabel("weight in the mean of scores, %", color=ORANGE)
    weights.set_ylim(bottom=0)
    weights.spines["top"].set_visible(False)
    style.save(figure, path)


def scatter_picture(result: Result, path: Path) -> None:
    """Draw pairs of positive numbers on logarithmic scales.

    {"points": [[x, …], [y, …]], "axes": [label of x, label of y]}
    """
    points = [pair for pair in zip(*result.get("points", [[], []]), strict=True) if min(pair) > 0]
    style.require_data("points", points)
    figure, axes = style.new_chart(result, "Pairs", 5.6, 4.6)
    x, y = zip(*points, strict=True)
    axes.scatter(x, y, s=9, color=BLUE, alpha=0.5, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(result["axes"][0])
    axes.set_ylabel(result["axes"][1])
    style.finish_axes(axes)
    style.save(figure, path)
