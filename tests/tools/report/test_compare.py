"""The places at which two runs are compared."""

from typing import Any

from ssfl.tools.report.compare import _tests


def point(name: str, rounds: int, accuracy: float, sent: int) -> dict[str, Any]:
    return {name: rounds, "accuracy": accuracy, "sent_bytes": sent}


def test_a_test_by_all_clients_replaces_that_of_the_round_also_over_bytes() -> None:
    report = {
        "curve": [point("round", 0, 0.1, 0), point("round", 1, 0.5, 100)],
        # These include the bytes of the evaluation.
        "evaluations": [point("rounds_done", 1, 0.6, 130), point("rounds_done", 2, 0.8, 250)],
    }
    assert _tests(report, "accuracy") == [(0, 0.1), (1, 0.6), (2, 0.8)]
    assert _tests(report, "accuracy", over="bytes") == [(0, 0.1), (100, 0.6), (250, 0.8)]
