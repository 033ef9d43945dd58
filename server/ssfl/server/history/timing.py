"""Where the time of a step went, along the client whose result came last.

    broadcast    that client was being sent its task
    training     it computed, by its own word
    collection   the rest until the step closed: its upload, and whatever it queued for
    aggregation  until the sum was made
    commit       until the new model was on the disk

They add up to the step's seconds. Waiting for a client that was away before it took its task,
deciding to end a step early, or waiting for a deadline, is collection. A step that was taken up
after a restart is not timed: its beginning is not known.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from ssfl.method.strategies.contract import ClientId
from ssfl.server.run.state import Step

PHASES = ("broadcast", "training", "collection", "aggregation", "commit")
Clock = Callable[[], float]


class StepTimes:
    """The moments of the step under way; `clock` measures, `today` says what day it is."""

    def __init__(self, clock: Clock, today: Clock = time.time) -> None:
        self._clock = clock
        self._today = today
        self._number = 0  # of the step that was seen to begin
        self._began_s = self._closed_s = self._summed_s = self._began = 0.0

    def begin(self, number: int) -> None:
        """A step begins."""
        self._number, self._began_s, self._began = number, self._clock(), self._today()
        self._closed_s = self._summed_s = 0.0

    def close(self) -> None:
        """Nobody is waited for any more."""
        self._closed_s = self._clock()

    def sum(self) -> None:
        """The sum is made."""
        self._summed_s = self._clock()

    def report(self, step: Step) -> dict[str, Any]:
        """Return seconds, phases, the last client and the date of a step that ends now."""
        if step.number != self._number:
            return {"seconds": None, "phases": None, "last": None, "began": None}
        now_s = self._clock()
        closed_s = self._closed_s or now_s
        summed_s = self._summed_s or closed_s
        last = max(step.closed or (), key=lambda client: _received_s(step, client), default=None)
        report = step.uploads[last].report if last is not None else {}
        until_closed = max(0.0, closed_s - self._began_s)
        sending = max(0.0, _seconds(report, "sent_s") - _seconds(report, "asked_s"))
        broadcast = min(until_closed, sending)
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


def _received_s(step: Step, client: ClientId) -> float:
    return _seconds(step.uploads[client].report, "received_s")


def _seconds(report: Mapping[str, Any], name: str) -> float:
    return max(0.0, float(report.get(name, 0.0)))
