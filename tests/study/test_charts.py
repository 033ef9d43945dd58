import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from ssfl.program.palette import BLUE
from ssfl.study.charts.accuracy import (
    convergence_picture,
    differences_picture,
    partition_picture,
    sparsity_picture,
)
from ssfl.study.charts.clients import (
    class_mix_picture,
    client_weights_picture,
    scatter_picture,
)
from ssfl.study.charts.masks import layer_density_picture, mask_error_picture
from ssfl.study.charts.runs import client_accuracy_picture, ood_picture
from ssfl.study.charts.style import (
    LOOKS,
    band,
    draw_band,
    in_usual_order,
    interval_text,
    looks,
    percent,
)
from ssfl.study.errors import StudyError
from ssfl.study.intervals import spread

PNG = b"\x89PNG\r\n"
SEEDS = [0.70, 0.72, 0.71]
CURVE = {"rounds": [1, 2, 3], "seeds": [[0.1, None, 0.3], [0.2, None, 0.5]]}
OOD = {"rounds": [1, 2], "new": [[0.0, 0.5], [0.0, 0.6]], "old": [[0.7, 0.7], [0.7, 0.8]]}
ERRORS = {"errors": [[0.4, 0.2], [0.5, 0.1]], "mean": [0.45, 0.15], "flat_at": 10}
LAYERS = {"conv1.weight": {"kept": 60, "size": 72}, "linear1.weight": {"kept": 0, "size": 900}}

RESULTS: dict[Callable[[Mapping[str, Any], Path], None], dict[str, Any]] = {
    sparsity_picture: {
        "accuracy": "pooled accuracy",
        "dense": SEEDS,
        "series": {"ssfl": {"0.5": SEEDS, "0.95": SEEDS}, "shuffled": {"0.95": [0.6]}, "mine": {}},
    },
    convergence_picture: {
        "curves": {
            "ssfl": CURVE,
            "dense": {"rounds": [], "seeds": []},
            "never tested": {"rounds": [1, 2], "seeds": [[None, None]]},
        }
    },
    partition_picture: {
        "groups": {"Dirichlet 0.3": {"dense": SEEDS, "ssfl": SEEDS}, "2 classes": {"ssfl": [0.5]}}
    },
    differences_picture: {
        "rows": [
            {"label": "SSFL − dense", "values": [-0.01, -0.02], "bar": -0.01},
            {"label": "SSFL − random", "values": [0.4, 0.5], "bar": None},
            {"label": "not measured", "values": []},
        ]
    },
    class_mix_picture: {
        "panels": {
            "best": [{"name": "a", "counts": [3, 0, 7], "accuracy": 0.9}],
            "random": [{"name": "b", "counts": [1] * 12}, {"name": "c", "counts": [0] * 12}],
        }
    },
    client_weights_picture: {
        "clients": [{"name": f"{n}", "weight": 0.1 * n, "accuracy": 0.5} for n in range(4)]
    },
    scatter_picture: {"points": [[1e-6, 1e-3, 0.0], [1e-5, 1e-2, 1.0]], "axes": ["x", "y"]},
    ood_picture: {
        "arrival": 1,
        "panels": {
            "0.98": {"refresh": OOD, "no refresh": OOD, "difference": [0.1, 0.2]},
            "0.5": {"refresh": {"rounds": [1, 2], "new": OOD["new"]}},
        },
    },
    client_accuracy_picture: {
        "clients": [
            {"name": f"shard_{n:02d}", "samples": 3 * n + 5, "global": 0.5, "personal": n / 30}
            for n in range(30)
        ]
    },
    mask_error_picture: {
        "minibatches": [1, 10],
        "oracles": {"mean of minibatch scores": {"0.9": ERRORS, "0.5": ERRORS}},
    },
    layer_density_picture: {"masks": {"saliency": LAYERS, "random": LAYERS}},
}


@pytest.mark.parametrize("picture", RESULTS, ids=lambda one: one.__name__)
def test_every_chart_is_written_with_the_same_bytes_each_time(
    picture: Callable[[Mapping[str, Any], Path], None], tmp_path: Path
) -> None:
    for name in ("once.png", "again.png"):
        picture(RESULTS[picture], tmp_path / name)
    drawn = (tmp_path / "once.png").read_bytes()
    assert drawn[:6] == PNG
    assert len(drawn) > 10_000
    assert drawn == (tmp_path / "again.png").read_bytes()


@pytest.mark.parametrize("picture", RESULTS, ids=lambda one: one.__name__)
def test_an_empty_result_is_refused(
    picture: Callable[[Mapping[str, Any], Path], None], tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match="there is nothing to draw"):
        picture({}, tmp_path / "nothing.png")
    assert not list(tmp_path.iterdir())


def test_a_chart_depends_on_its_data(tmp_path: Path) -> None:
    for name, dense in (("low", [0.2, 0.3]), ("high", [0.8, 0.9])):
        sparsity_picture({"series": {"ssfl": {"0.5": SEEDS}}, "dense": dense}, tmp_path / name)
    assert (tmp_path / "low").read_bytes() != (tmp_path / "high").read_bytes()


def test_clients_can_be_drawn_without_personal_models_or_test_samples(tmp_path: Path) -> None:
    clients = [{"name": "a", "samples": 5, "global": 0.5}, {"name": "b", "samples": 5000}]
    client_accuracy_picture({"clients": clients}, tmp_path / "clients.png")
    assert (tmp_path / "clients.png").read_bytes()[:6] == PNG


def test_a_band_leaves_out_missing_values() -> None:
    first, second, third = band([[0.1, None, math.nan], [0.3, None, 0.5]])
    assert first.mean == pytest.approx(20)
    assert first.low < 20 < first.high
    assert math.isnan(second.mean)
    assert third.mean == 50 and math.isnan(third.low)


def test_curves_of_different_length_are_refused() -> None:
    with pytest.raises(StudyError, match=r"differ in length: \[2, 1\]"):
        band([[0.1, 0.2], [0.1]])


@pytest.mark.parametrize(
    ("curve", "marked"),
    [
        ([0.4], [0]),
        ([0.4, 0.5], [0, 1]),
        ([None, 0.4, None, 0.5, None, 0.6, None, 0.7], [1, 3, 5, 7]),
        ([0.4, 0.5, None, 0.6, 0.7, None, 0.8], [6]),
        ([0.4, 0.5, 0.6, 0.7], None),
    ],
)
def test_points_that_a_line_would_not_show_are_marked(
    curve: list[float | None], marked: list[int] | None
) -> None:
    """A run with one test has a curve of one point, for example."""
    axes = Figure().subplots()
    draw_band(axes, range(len(curve)), band([curve]), BLUE)
    (line,) = axes.get_lines()
    assert line.get_markevery() == marked
    assert (line.get_marker() == "o") == (marked is not None)


def test_accuracies_are_drawn_in_per_cent() -> None:
    assert percent([0.5, 0.7]).mean == pytest.approx(60)


def test_unknown_methods_get_colours_that_are_still_free() -> None:
    names = ["ssfl", "dense", "shuffled", "mine", "theirs"]
    chosen = looks(names)
    assert list(chosen) == names
    assert len({look.colour for look in chosen.values()}) == 5
    assert chosen["ssfl"] is LOOKS["ssfl"]
    assert chosen["mine"].label == "mine"
    assert in_usual_order(["mine", "random", "ssfl"]) == ["ssfl", "random", "mine"]


def test_differences_are_shown_with_their_sign() -> None:
    assert interval_text(spread([-1.0, -2.0, -3.0])) == "−2.0 [−4.5, +0.5]"
    assert interval_text(spread([0.01])) == "+0.01"
