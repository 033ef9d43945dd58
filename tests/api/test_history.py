from typing import Any

import numpy as np
import pytest

from ssfl.api import RunHistory, Traffic
from ssfl.tools.report.plots import accuracy_curve


def test_of(correct: int | None, total: int = 10, **metrics: float) -> dict[str, Any]:
    return {"correct": correct, "total": total, "loss_sum": 5.0, "metric_sums": metrics}


test_of.__test__ = False  # type: ignore[attr-defined]


def row(phase: str, direction: str, payload: int | None, message: int | None) -> dict[str, Any]:
    return {
        "phase": phase, "direction": direction, "encoding": "", "payload_bytes": payload,
        "message_bytes": message,
    }  # fmt: skip


def ledger(scale: int) -> list[dict[str, Any]]:
    return [
        row("scores", "up", 1_000_000, 1_100_000),
        row("mask", "down", 2_000_000, 2_200_000),
        row("values", "up", scale * 3_000_000, scale * 3_300_000),
        row("values", "down", (scale - 1) * 4_000_000, (scale - 1) * 4_400_000),
    ]


def entry(number: int, pooled: float | None, clients: list[str], **more: Any) -> dict[str, Any]:
    return {
        "round": number, "rounds_done": number, "seconds": 1.5 + number,
        "training_loss": 2.0 - number, "coding_error": 0.0, "personal": 0.9,
        "pooled": pooled, "mean": pooled, "loss": 0.5, "metrics": {"f1": 0.1 * number},
        "ledger": ledger(number + 1),
        "clients": [
            {"client": client, "num_samples": 1, "training_loss": 1.0 + number,
             "evaluation": test_of(number), "personal": test_of(number + 5)}
            for client in clients
        ],
        **more,
    }  # fmt: skip


@pytest.fixture
def document() -> dict[str, Any]:
    evaluation = {
        "rounds_done": 3, "pooled": 0.8, "mean": 0.7, "loss": 0.2, "metrics": {"f1": 0.9},
        "seconds": 1.0, "ledger": ledger(3),
        "clients": [{"client": "ann", "evaluation": test_of(8)},
                    {"client": "eve", "evaluation": test_of(2)}],
    }  # fmt: skip
    rounds = [entry(0, 0.1, ["ann", "bob"]), entry(1, 0.3, ["bob"]), entry(2, 0.5, ["ann"])]
    return {
        "format": 1, "run_id": "r1", "settings": {"seed": 4}, "finished": True,
        "model_digest": "ab", "clients": {"eve": 60, "ann": 10, "bob": 30}, "rounds": rounds,
        "evaluations": [evaluation], "ledger": [*ledger(3), row("control", "up", 0, 500_000)],
        "mask": {"layers": {"w": {"kept": 3, "size": 4}}},
    }  # fmt: skip


def test_accuracy_comes_from_the_next_round_and_at_the_end_from_all_clients(
    document: dict[str, Any],
) -> None:
    history = RunHistory.of(document)
    assert history.rounds.tolist() == [0, 1, 2]
    assert history.accuracy.tolist() == [0.3, 0.5, 0.8]
    assert history.mean_accuracy.tolist() == [0.3, 0.5, 0.7]
    assert history.loss.tolist() == [0.5, 0.5, 0.2]
    assert history.metrics["f1"].tolist() == [0.1, 0.2, 0.9]
    assert (history.initial_accuracy, history.initial_loss) == (0.1, 0.5)
    assert history.seconds.tolist() == [1.5, 2.5, 3.5]
    assert history.training_loss.tolist() == [2.0, 1.0, 0.0]


def test_an_evaluation_by_all_clients_takes_precedence_over_the_next_round(
    document: dict[str, Any],
) -> None:
    earlier = {**document["evaluations"][0], "rounds_done": 1, "pooled": 0.35}
    document["evaluations"].insert(0, earlier)
    assert RunHistory.of(document).accuracy.tolist() == [0.35, 0.5, 0.8]


def test_values_that_were_not_measured_are_nan(document: dict[str, Any]) -> None:
    document["evaluations"].clear()
    document["rounds"][1] |= {"pooled": None, "mean": None, "loss": None, "metrics": {}}
    document["rounds"][2] |= {"pooled": None, "seconds": None, "personal": None}
    history = RunHistory.of(document)
    assert np.isnan(history.accuracy).tolist() == [True, True, True]
    assert np.isnan(history.loss).tolist() == [True, False, True]
    assert np.isnan(history.metrics["f1"]).tolist() == [True, False, True]
    assert np.isnan(history.seconds).tolist() == [False, False, True]
    assert np.isnan(history.personal).tolist() == [False, False, True]


def test_clients_are_a_table_sorted_by_name(document: dict[str, Any]) -> None:
    clients = RunHistory.of(document).clients
    assert clients["client"].tolist() == ["ann", "bob", "eve"]
    assert clients["num_samples"].tolist() == [10, 30, 60]
    assert clients["share"].tolist() == [0.1, 0.3, 0.6]
    assert clients["rounds"].tolist() == [2, 2, 0]
    assert clients["accuracy"].tolist() == [0.8, 0.1, 0.2], "the newest of each"
    assert clients["personal"][:2].tolist() == [0.7, 0.6]
    assert clients["training_loss"][:2].tolist() == [3.0, 2.0]
    assert np.isnan(clients["personal"][2]) and np.isnan(clients["training_loss"][2])


def test_megabytes_are_cumulative_and_by_round(document: dict[str, Any]) -> None:
    history = RunHistory.of(document)
    assert history.payloads.up.tolist() == [4, 7, 10]
    assert history.payloads.down.tolist() == [2, 6, 10]
    assert history.payloads.up_per_round.tolist() == [3, 3, 3], "without scores"
    assert history.payloads.down_per_round.tolist() == [0, 4, 4], "without the mask"
    assert history.payloads.one_off == 3
    assert (history.payloads.total_up, history.payloads.total_down) == (10, 10)
    assert history.messages.total_up == pytest.approx(11.5)


def test_megabytes_equal_those_of_the_plots(document: dict[str, Any]) -> None:
    history = RunHistory.of(document)
    plotted, accuracy = accuracy_curve(document)
    assert plotted[1:] == pytest.approx((history.messages.up + history.messages.down).tolist())
    assert accuracy[1:] == pytest.approx((100 * history.accuracy).tolist())


def test_a_run_that_was_stopped_before_its_first_round_has_empty_arrays(
    document: dict[str, Any],
) -> None:
    document |= {"rounds": [], "evaluations": [], "ledger": [], "model_digest": ""}
    del document["mask"]
    history = RunHistory.of(document)
    assert history.accuracy.shape == history.payloads.up_per_round.shape == (0,)
    assert np.isnan([history.initial_accuracy, history.payloads.total_up]).all()
    assert history.layers.names == () and history.layers.density.shape == (0,)
    assert history.clients["rounds"].tolist() == [0, 0, 0]


def test_bytes_that_were_not_counted_are_nan() -> None:
    rows = [row("values", "up", 5, None)]
    assert np.isnan(Traffic.of([rows], rows, "message_bytes").up).all()
    assert Traffic.of([rows], rows, "payload_bytes").up.tolist() == [5e-6]
