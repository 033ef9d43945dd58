"""The phases of a step, measured on the client whose result arrived last.

    broadcast    sending this client its task
    training     its computation, as it reports
    collection   the rest until the step closed: its upload, and queueing
    aggregation  until the sum was computed
    commit       until the new model was on disk

The phases add up to the duration of the step. Collection includes waiting for an absent client to
take its task, and waiting for a deadline. A step resumed after a restart is not timed, since its
start is not known.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from ssfl.server.run.state import Step

PHASES = ("broadcast", "training", "collection", "aggregation", "commit")
Clock = Callable[[], float]


class StepTimes:
    """Timestamps of the open step; `clock` measures durations, `today` is the wall clock."""

    def __init__(self, clock: Clock, today: Clock = time.time) -> None:
        self._clock = clock
        self._today = today
        self._number = 0  # of the step whose start was observed
        self._began_s = self._closed_s = self._summed_s = self._began = 0.0

    def begin(self, number: int) -> None:
        """Note that a step begins."""
        self._number, self._began_s, self._began = number, self._clock(), self._today()
        self._closed_s = self._summed_s = 0.0

    def close(self) -> None:
        """Note that the step closed."""
        self._closed_s = self._clock()

    def sum(self) -> None:
        """Note that the sum is computed."""
        self._summed_s = self._clock()

    def report(self, step: Step) -> dict[str, Any]:
        """Return duration, phases, last client and start date of a step that ends now."""
        if step.number != self._number:
            return {"seconds": None, "phases": None, "last": None, "began": None}
        now_s = self._clock()
        closed_s = self._closed_s or now_s
        summed_s = self._summed_s or closed_s
        reports = {client: step.uploads[client].report for client in step.closed or ()}
        last = max(
            reports, key=lambda client: _seconds(reports[client], "received_s"), default=None
        )
        report = reports[last] if last is not None else {}
        until_closed = max(0.0, closed_s - self._began_s)
        broadcast = min(until_closed, sending_s(report))
        training = min(until_closed - broadcast, _seconds(report, "work_s"))
        phases = {
            "broadcast": broadcast,
            "training": training,
            "collection": until_closed - broadcast - training,
            "aggregation": summed_s - closed_s,
            "commit": now_s - summed_s,
        }
        return {
            "seconds": now_s - self._began_s,
            "phases": phases,
            "last": last,
            "began": self._began,
        }


def sending_s(report: Mapping[str, Any]) -> float:
    """Return how long it took to send a client its task; `report` is that of its result."""
    return max(0.0, _seconds(report, "sent_s") - _seconds(report, "asked_s"))


def _seconds(report: Mapping[str, Any], name: str) -> float:
    return max(0.0, float(report.get(name, 0.0)))
