"""Charts of a run, from its history."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # files only; works without a display

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ssfl.program.palette import CHOSEN, OTHERS, SSFL, TRAINING, TRANSFER, WAITING
from ssfl.study.charts.style import accuracy_floor, looks

History = Mapping[str, Any]


def plot_accuracy(histories: Mapping[str, History], path: Path) -> bool:
    """Draw pooled accuracy, or else loss, by megabytes sent; return False if nothing was tested."""
    curves = {name: accuracy_curve(history) for name, history in histories.items()}
    what, unit = "pooled test accuracy, %", " %"
    if not all(accuracy for _, accuracy in curves.values()):
        curves = {name: accuracy_curve(history, "loss", 1.0) for name, history in histories.items()}
        what, unit = "pooled test loss", ""
    if not all(values for _, values in curves.values()):
        return False
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    chosen = looks(list(curves))
    for name, (megabytes, values) in curves.items():
        axes.plot(
            megabytes,
            values,
            label=f"{name}: {values[-1]:.3g}{unit} after {megabytes[-1]:.1f} MB",
            color=chosen[name].colour,
            linestyle=chosen[name].line,
            marker=chosen[name].marker,
            markersize=4,
        )
    floor = accuracy_floor([value for _, values in curves.values() for value in values])
    if unit and floor is not None:
        highest = max(max(values) for _, values in curves.values())
        ticks = [tick for tick in MaxNLocator(6).tick_values(floor, highest) if tick <= 100]
        axes.set_yticks(ticks)
        axes.set_ylim(ticks[0], max(highest, ticks[-1]) + 0.03 * (highest - ticks[0]))
        what += f"\n(the axis begins at {ticks[0]:g} %)"
    axes.set_xlabel("megabytes sent so far, both directions, one-off costs included")
    axes.set_ylabel(what)
    axes.set_title("What a megabyte buys")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right" if unit else "upper right")
    _save(figure, path)
    return True


def accuracy_curve(
    history: History, what: str = "pooled", scale: float = 100.0
) -> tuple[list[float], list[float]]:
    """Return megabytes sent and pooled accuracy in percent, at every round and at the end."""
    megabytes, values, so_far = [], [], 0.0
    for entry in history["rounds"]:
        if entry[what] is not None:
            megabytes.append(so_far)  # the base was tested before the bytes of the round were sent
            values.append(scale * entry[what])
        so_far = sum(row["message_bytes"] for row in entry["ledger"]) / 1e6
    if history["evaluations"] and history["evaluations"][-1][what] is not None:
        megabytes.append(so_far)
        values.append(scale * history["evaluations"][-1][what])
    return megabytes, values


def plot_layers(history: History, path: Path) -> None:
    """Draw the density of every masked tensor."""
    layers = history["mask"]["layers"]
    names = list(layers)
    shares = [100 * layer["kept"] / layer["size"] for layer in layers.values()]
    figure, axes = plt.subplots(figsize=(7, 1.4 + 0.32 * len(names)), layout="constrained")
    axes.barh(names, shares, color=SSFL)
    _label_rows(axes, [f"{layer['kept']:,} of {layer['size']:,}" for layer in layers.values()])
    mean = 100 * history["mask"]["num_kept"] / history["mask"]["num_masked"]
    axes.axvline(mean, color="black", linestyle="--", linewidth=1)
    axes.set_xlim(0, max(*shares, mean) * 1.03)
    axes.invert_yaxis()
    axes.set_xlabel(f"kept weights, % (dashed: {mean:.1f} % of all)")
    axes.set_title("Where the mask keeps weights")
    _save(figure, path)


def plot_densities(history: History, path: Path) -> None:
    """Draw the bytes of each sparsity, and the density of its thinnest layer."""
    rows = history["densities"]
    names = [f"{100 * float(row['sparsity']):g} %" for row in rows]
    chosen = history["mask"]["num_kept"]
    colours = [CHOSEN if row["num_kept"] == chosen else OTHERS for row in rows]
    figure = plt.figure(figsize=(9, 1.4 + 0.36 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    kilobytes = [row["update_bytes"] / 1000 for row in rows]
    thinnest = [100 * row["thinnest"]["kept"] / row["thinnest"]["size"] for row in rows]
    for axes, widths, labels in (
        (left, kilobytes, [f"{size:,.1f}" for size in kilobytes]),
        (right, thinnest, [row["thinnest"]["name"] for row in rows]),
    ):
        axes.barh(names, widths, color=colours)
        _label_rows(axes, labels)
    left.set_ylabel("sparsity")
    left.set_xlabel("kB per client and round, one way")
    left.set_title("What each sparsity costs")
    right.set_xlabel("kept weights of the thinnest layer, %")
    right.set_title("How thin its thinnest layer gets")
    left.invert_yaxis()
    if CHOSEN in colours:
        _add_legend(figure, {"this run": CHOSEN, "others": OTHERS})
    _save(figure, path)


def plot_timeline(history: History, path: Path, last: int = 6) -> None:
    """Draw the last rounds by client: waiting, working and transfers."""
    rounds = history["rounds"][-last:]
    clients = sorted({row["client"] for entry in rounds for row in entry["clients"]})
    figure, axes = plt.subplots(figsize=(9, 1.6 + 0.3 * len(clients)), layout="constrained")
    began = 0.0
    for entry in rounds:
        for row in entry["clients"]:
            _draw_row(axes, clients.index(row["client"]), began, row)
        axes.axvline(began, color="black", linewidth=0.6)
        above = axes.get_xaxis_transform()
        axes.text(began, 1.02, f" round {entry['round']}", transform=above, fontsize=8)
        began += entry["seconds"]
    axes.axvline(began, color="black", linewidth=0.6)
    axes.set_xlim(0, began)
    axes.set_yticks(range(len(clients)), clients)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title("Timeline of the clients", pad=20)
    meanings = {"waits for the task": WAITING, "tests and trains": TRAINING}
    _add_legend(figure, {**meanings, "receives and sends": TRANSFER})
    _save(figure, path)


def _label_rows(axes: Axes, labels: Iterable[str]) -> None:
    """Write labels to the right of the axes, where no line crosses them."""
    right = axes.get_yaxis_transform()
    for place, text in enumerate(labels):
        axes.text(1.01, place, text, transform=right, va="center", fontsize=8, parse_math=False)


def _draw_row(axes: Axes, place: int, began: float, row: Mapping[str, Any]) -> None:
    asked, received, work = row["asked_s"], row["received_s"], row["work_s"]
    moving = max(0.0, received - asked - work)
    pieces = [(0.0, asked, WAITING), (asked, moving / 2, TRANSFER)]
    pieces.append((asked + moving / 2, work, TRAINING))
    pieces.append((received - moving / 2, moving / 2, TRANSFER))
    for start, length, colour in pieces:
        axes.barh(place, length, left=began + start, color=colour, height=0.7)


def _add_legend(figure: Any, colours: Mapping[str, str]) -> None:
    handles = [Patch(color=colour, label=label) for label, colour in colours.items()]
    place, count = "outside lower center", len(handles)
    figure.legend(handles=handles, loc=place, ncols=count, frameon=False)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130)
    plt.close(figure)
