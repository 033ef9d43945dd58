"""Counters of a client since its process started, for its metrics.

The main thread writes them and the metrics thread reads them without a lock: each is a single
value or is copied.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ssfl.program.monitor.series import SECONDS, Histogram

WORKS = ("score", "train", "evaluate", "personalize")
STATES = ("joining", "waiting", "downloading", *WORKS, "uploading")
DIRECTIONS = ("up", "down")
OUTCOMES = ("accepted", "already_accepted", "step_closed")


class ClientStats:
    """State, counters and durations of one client."""

    def __init__(self) -> None:
        self.state = "joining"
        self.connected = False  # the last call was answered
        self.num_samples = 0
        self.joins = 0
        self.retries = 0
        self.results: Counter[str] = Counter()  # by outcome
        self.resumes: Counter[str] = Counter()  # by direction
        self.payload_bytes: Counter[str] = Counter()  # by direction
        self.works = {name: Histogram(SECONDS) for name in WORKS}
        self.transfers = {name: Histogram(SECONDS) for name in DIRECTIONS}
        self.training_loss: float | None = None
        self.steps_done = self.steps_all = 0  # minibatches of the current work

    def failed(self) -> None:
        """Record a failed call; the client joins again."""
        self.connected = False
        self.retries += 1
        self.state = "joining"

    def joined(self) -> None:
        """Record a successful Join."""
        self.joins += 1
        self.connected = True
        self.state = "waiting"

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Measure one of WORKS; work that raises is not counted."""
        began_s = time.monotonic()
        self.state, self.steps_done, self.steps_all = name, 0, 0
        yield
        self.works[name].observe(time.monotonic() - began_s)
        self.state = "waiting"

    def begin_transfer(self, direction: str, offset: int) -> None:
        """Record that a transfer starts; an `offset` above 0 counts as a resume."""
        self.state = "uploading" if direction == "up" else "downloading"
        if offset:
            self.resumes[direction] += 1

    def end_transfer(self, direction: str, num_bytes: int, seconds: float) -> None:
        """Record the size and duration of a completed transfer."""
        self.payload_bytes[direction] += num_bytes
        self.transfers[direction].observe(seconds)
        self.state = "waiting"
