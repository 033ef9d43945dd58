"""Two runs are compared where the same model has one place."""

from typing import Any

from ssfl.tools.report.compare import _tests


def point(name: str, rounds: int, accuracy: float, sent: int) -> dict[str, Any]:
    return {name: rounds, "accuracy": accuracy, "sent_bytes": sent}


def test_a_test_by_all_clients_takes_the_place_of_the_rounds_own_over_bytes_too() -> None:
    report = {
        "curve": [point("round", 0, 0.1, 0), point("round", 1, 0.5, 100)],
        # With the bytes of the test itself.
        "evaluations": [point("rounds_done", 1, 0.6, 130), point("rounds_done", 2, 0.8, 250)],
    }
    assert _tests(report, "accuracy") == [(0, 0.1), (1, 0.6), (2, 0.8)]
    assert _tests(report, "accuracy", over="bytes") == [(0, 0.1), (100, 0.6), (250, 0.8)]
