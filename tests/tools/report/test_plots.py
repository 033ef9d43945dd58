from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from ssfl.program import palette
from ssfl.tools.report import plots
from ssfl.tools.report.plots import (
    accuracy_curve,
    plot_accuracy,
    plot_densities,
    plot_layers,
    plot_timeline,
)

PNG = b"\x89PNG\r\n"


def ledger(num_bytes: int) -> list[dict[str, Any]]:
    return [{"phase": "values", "direction": "up", "message_bytes": num_bytes}]


def history() -> dict[str, Any]:
    row = {"client": "c0", "asked_s": 0.1, "received_s": 1.0, "work_s": 0.6}
    rounds = [
        {"round": n, "pooled": 0.1 * (n + 1), "seconds": 1.0, "clients": [row],
         "ledger": ledger(1_000_000 * (n + 1))}
        for n in range(3)
    ]  # fmt: skip
    layers = {"a": {"kept": 5, "size": 10}, "b": {"kept": 0, "size": 90}}
    thinnest = {"name": "b", "kept": 0, "size": 90}
    return {
        "densities": [
            {"sparsity": "0.5", "num_kept": 50, "update_bytes": 240, "thinnest": thinnest},
            {"sparsity": "0.95", "num_kept": 5, "update_bytes": 60, "thinnest": thinnest},
        ],
        "rounds": rounds,
        "evaluations": [{"pooled": 0.9}],
        "mask": {"layers": layers, "num_kept": 5, "num_masked": 100},
    }


def test_accuracy_is_drawn_at_the_bytes_sent_before_the_test() -> None:
    megabytes, accuracy = accuracy_curve(history())
    assert megabytes == [0.0, 1.0, 2.0, 3.0]
    assert [round(value) for value in accuracy] == [10, 20, 30, 90]


def test_every_plot_is_a_png_file(tmp_path: Path) -> None:
    plot_accuracy({"ssfl": history(), "dense": history()}, tmp_path / "accuracy.png")
    plot_layers(history(), tmp_path / "layers.png")
    plot_timeline(history(), tmp_path / "timeline.png")
    plot_densities(history(), tmp_path / "densities.png")
    for path in tmp_path.iterdir():
        assert path.read_bytes()[:6] == PNG
        assert path.stat().st_size > 5_000
    assert len(list(tmp_path.iterdir())) == 4


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """The figures that are drawn; no files are written."""
    figures: list[Figure] = []
    monkeypatch.setattr(plots, "_save", lambda figure, _path: figures.append(figure))
    yield figures
    for figure in figures:
        plt.close(figure)


def labels(axes: Axes) -> list[Bbox]:
    """Return the boxes of the texts inside and next to the axes."""
    return [text.get_window_extent() for text in axes.texts]


def climbing() -> dict[str, Any]:
    """A history that climbs quickly to its last accuracy."""
    accuracies = [0.1, 0.9, 0.96, 0.97, 0.977, 0.98, 0.985, 0.989]
    changed = history()
    rounds = changed["rounds"] * 3
    changed["rounds"] = [
        {**entry, "pooled": pooled} for entry, pooled in zip(rounds, accuracies, strict=False)
    ]
    return changed | {"evaluations": [{"pooled": 0.989}]}


def test_dense_is_vermilion_and_sparse_is_blue(drawn: list[Figure]) -> None:
    plot_accuracy({"dense": history(), "ssfl": history(), "fedavg": history()}, Path())
    (axes,) = drawn[0].axes
    colours = [line.get_color() for line in axes.lines]
    assert colours == [palette.DENSE, palette.SSFL, palette.DENSE]


def test_the_axis_of_accuracy_shows_small_differences(drawn: list[Figure]) -> None:
    plot_accuracy({"ssfl": climbing()}, Path())
    (axes,) = drawn[0].axes
    low, high = axes.get_ylim()
    assert 85 <= low <= 89 and 98.9 <= high <= 101
    assert low == pytest.approx(axes.get_yticks()[0])
    assert f"(the axis begins at {low:g} %)" in axes.get_ylabel()


def test_the_line_of_the_mean_crosses_no_label(drawn: list[Figure]) -> None:
    plot_layers(history(), Path())
    (axes,) = drawn[0].axes
    drawn[0].draw_without_rendering()
    (mean,) = (line.get_window_extent() for line in axes.lines)
    assert len(labels(axes)) == 2
    assert not any(box.x0 <= mean.x1 and mean.x0 <= box.x1 for box in labels(axes))


def test_labels_of_bars_do_not_touch_bars_or_each_other(drawn: list[Figure]) -> None:
    changed = history()
    for row in changed["densities"]:
        row["thinnest"] = {"name": "layer4.1.a_rather_long_name.weight", "kept": 80, "size": 90}
    plot_densities(changed, Path())
    drawn[0].draw_without_rendering()
    found = [box for axes in drawn[0].axes for box in labels(axes)]
    bars = [bar.get_window_extent() for axes in drawn[0].axes for bar in axes.patches]
    assert len(found) == len(bars) == 4
    assert not any(box.overlaps(bar) for box in found for bar in bars)
    pairs = [(first, second) for first in found for second in found if first is not second]
    assert not any(first.overlaps(second) for first, second in pairs)
