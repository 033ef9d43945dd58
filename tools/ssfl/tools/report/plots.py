"""Pictures of a run, from its history."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # files only; works without a display

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

History = Mapping[str, Any]

# Blue and orange of the Okabe-Ito palette: told apart with any colour vision.
_COLOURS = {"ssfl": "#0072B2", "dense": "#D55E00"}
_WAIT, _WORK, _SEND = "#CCCCCC", "#0072B2", "#E69F00"


def plot_accuracy(histories: Mapping[str, History], path: Path) -> bool:
    """Draw pooled accuracy against all megabytes so far, both directions, one-off included.

    Where the task has no accuracy, the loss is drawn. False: nothing was ever tested.
    """
    curves = {name: accuracy_curve(history) for name, history in histories.items()}
    what, unit = "pooled test accuracy, %", " %"
    if not all(accuracy for _, accuracy in curves.values()):
        curves = {name: accuracy_curve(history, "loss", 1.0) for name, history in histories.items()}
        what, unit = "pooled test loss", ""
    if not all(values for _, values in curves.values()):
        return False
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, (megabytes, values) in curves.items():
        axes.plot(
            megabytes,
            values,
            label=f"{name}: {values[-1]:.3g}{unit} after {megabytes[-1]:.1f} MB",
            color=_COLOURS.get(name),
            marker="o",
            markersize=3,
        )
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
    """Return megabytes so far and pooled accuracy in percent, at every round and at the end."""
    megabytes, values, so_far = [], [], 0.0
    for entry in history["rounds"]:
        if entry[what] is not None:
            megabytes.append(so_far)  # the base was tested before the round's bytes were spent
            values.append(scale * entry[what])
        so_far = _total(entry["ledger"])
    if history["evaluations"] and history["evaluations"][-1][what] is not None:
        megabytes.append(so_far)
        values.append(scale * history["evaluations"][-1][what])
    return megabytes, values


def plot_layers(history: History, path: Path) -> None:
    """Draw how much of every masked tensor is kept."""
    layers = history["mask"]["layers"]
    names = list(layers)
    shares = [100 * layer["kept"] / layer["size"] for layer in layers.values()]
    figure, axes = plt.subplots(figsize=(7, 1.4 + 0.32 * len(names)), layout="constrained")
    bars = axes.barh(names, shares, color=_COLOURS["ssfl"])
    labels = [f"{layer['kept']:,} of {layer['size']:,}" for layer in layers.values()]
    axes.bar_label(bars, labels, padding=3, fontsize=8)
    mean = 100 * history["mask"]["num_kept"] / history["mask"]["num_masked"]
    axes.axvline(mean, color="black", linestyle="--", linewidth=1, label=f"{mean:.1f} % of all")
    axes.legend(loc="lower right")
    axes.set_xlim(0, max(shares) * 1.3 + 1)
    axes.invert_yaxis()
    axes.set_xlabel("kept weights, %")
    axes.set_title("Where the mask keeps weights")
    _save(figure, path)


def plot_densities(history: History, path: Path) -> None:
    """Draw what each sparsity would cost, and how thin its thinnest layer would be."""
    rows = history["densities"]
    names = [f"{100 * float(row['sparsity']):g} %" for row in rows]
    chosen = history["mask"]["num_kept"]
    colours = [_COLOURS["dense" if row["num_kept"] == chosen else "ssfl"] for row in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    bars = left.bar(names, [row["update_bytes"] / 1000 for row in rows], color=colours)
    left.bar_label(bars, [f"{row['update_bytes'] / 1000:,.1f}" for row in rows], fontsize=8)
    left.set_ylabel("kB per client and round, one way")
    left.set_title("What each sparsity costs")
    thin = [100 * row["thinnest"]["kept"] / row["thinnest"]["size"] for row in rows]
    bars = right.bar(names, thin, color=colours)
    right.bar_label(bars, [row["thinnest"]["name"] for row in rows], fontsize=7)
    right.set_ylabel("kept weights of its thinnest layer, %")
    right.set_title("and how thin it gets")
    for axes in (left, right):
        axes.set_xlabel("sparsity")
        axes.margins(y=0.15)
    if _COLOURS["dense"] in colours:
        left.legend(handles=[Patch(color=_COLOURS["dense"], label="this run")])
    _save(figure, path)


def plot_timeline(history: History, path: Path, last: int = 6) -> None:
    """Draw the last rounds by client: waiting for the task, working, sending."""
    rounds = history["rounds"][-last:]
    clients = sorted({row["client"] for entry in rounds for row in entry["clients"]})
    figure, axes = plt.subplots(figsize=(9, 1.6 + 0.3 * len(clients)), layout="constrained")
    began = 0.0
    for entry in rounds:
        for row in entry["clients"]:
            _draw_row(axes, clients.index(row["client"]), began, row)
        axes.axvline(began, color="black", linewidth=0.6)
        axes.text(began, -0.75, f" round {entry['round']}", fontsize=8, va="bottom")
        began += entry["seconds"]
    axes.axvline(began, color="black", linewidth=0.6)
    axes.set_xlim(0, began)
    axes.set_yticks(range(len(clients)), clients)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title("Who did what when", pad=16)
    handles = [
        Patch(color=_WAIT, label="waits for the task"),
        Patch(color=_WORK, label="tests and trains"),
        Patch(color=_SEND, label="receives and sends"),
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
    _save(figure, path)


def _draw_row(axes: Axes, place: int, began: float, row: Mapping[str, Any]) -> None:
    asked, received, work = row["asked_s"], row["received_s"], row["work_s"]
    moving = max(0.0, received - asked - work)
    pieces = [(0.0, asked, _WAIT), (asked, moving / 2, _SEND), (asked + moving / 2, work, _WORK)]
    pieces.append((received - moving / 2, moving / 2, _SEND))
    for start, length, colour in pieces:
        axes.barh(place, length, left=began + start, color=colour, height=0.7)


def _total(ledger: list[Mapping[str, Any]]) -> float:
    return float(sum(row["message_bytes"] for row in ledger)) / 1e6


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130)
    plt.close(figure)
