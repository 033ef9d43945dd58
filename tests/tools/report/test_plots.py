from pathlib import Path
from typing import Any

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


def test_accuracy_stands_at_the_bytes_spent_before_it_was_measured() -> None:
    megabytes, accuracy = accuracy_curve(history())
    assert megabytes == [0.0, 1.0, 2.0, 3.0]
    assert [round(value) for value in accuracy] == [10, 20, 30, 90]


def test_every_plot_is_a_picture(tmp_path: Path) -> None:
    plot_accuracy({"ssfl": history(), "dense": history()}, tmp_path / "accuracy.png")
    plot_layers(history(), tmp_path / "layers.png")
    plot_timeline(history(), tmp_path / "timeline.png")
    plot_densities(history(), tmp_path / "densities.png")
    for path in tmp_path.iterdir():
        assert path.read_bytes()[:6] == PNG
        assert path.stat().st_size > 5_000
    assert len(list(tmp_path.iterdir())) == 4
