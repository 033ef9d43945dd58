"""Curves of a study: the accuracy of the global model by rounds, megabytes and client-updates."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssfl.study.charts.accuracy import convergence_picture
from ssfl.study.costs import CURVE
from ssfl.study.result_tables import labels, runs_by_name

_AXES = {
    "rounds": ("rounds of training", 1.0),
    "bytes": ("megabytes of training, all clients, one-off bytes included", 1e-6),
    "client_updates": ("client-updates", 1.0),
}


def draw_curves(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw a chart for each axis; return the files. Draw nothing if no accuracy was measured."""
    groups = runs_by_name(summary)
    measured = CURVE.index("mean")
    tested = {
        name: runs
        for name, runs in groups.items()
        if all(run["curve"] and run["curve"][-1][measured] is not None for run in runs)
    }
    if not tested:
        return []
    named = labels(groups)
    files = []
    for axis, (label, factor) in _AXES.items():
        at = CURVE.index(axis)
        curves = {}
        for name, runs in tested.items():
            shortest = min(len(run["curve"]) for run in runs)
            points = [run["curve"][:shortest] for run in runs]
            places = [
                factor * sum(curve[place][at] for curve in points) / len(points)
                for place in range(shortest)
            ]
            seeds = [[point[measured] for point in curve] for curve in points]
            curves[named[name]] = {"rounds": places, "seeds": seeds}
        path = folder / f"curves-{axis.replace('_', '-')}.png"
        title = summary.get("title", "Accuracy of the global model")
        drawn = {"title": title, "axis": label, "logarithmic": axis == "bytes", "curves": curves}
        convergence_picture(drawn, path)
        files.append(path)
    return files
