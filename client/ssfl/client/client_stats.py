"""What a client did since it started: for its own metrics, lost with the process.

Written by the client's main thread, read by the one that answers Prometheus: single values and
copies, so neither waits for the other.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ssfl.program.monitor.histogram import Histogram
from ssfl.program.monitor.series import SECONDS

WORKS = ("score", "train", "evaluate", "personalize")
STATES = ("joining", "waiting", "downloading", *WORKS, "uploading")
DIRECTIONS = ("up", "down")
OUTCOMES = ("accepted", "already_accepted", "step_closed")


class ClientStats:
    """One client."""

    def __init__(self) -> None:
        self.state = "joining"
        self.connected = False
        self.num_samples = 0
        self.joins = 0
        self.retries = 0
        self.results: Counter[str] = Counter()  # by outcome
        self.resumes: Counter[str] = Counter()  # by direction
        self.payload_bytes: Counter[str] = Counter()  # by direction
        self.works = {name: Histogram(SECONDS) for name in WORKS}
        self.transfers = {name: Histogram(SECONDS) for name in DIRECTIONS}
        self.training_loss: float | None = None
        self.steps_done = self.steps_all = 0

    def reached(self) -> None:
        """The coordinator answered."""
        self.connected = True

    def unheard(self) -> None:
        """A word to the coordinator was lost; the work goes on."""
        self.connected = False

    def failed(self) -> None:
        """The coordinator did not: join again."""
        self.connected = False
        self.retries += 1
        self.state = "joining"

    def joined(self) -> None:
        """It knows us."""
        self.joins += 1
        self.reached()
        self.state = "waiting"

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Note how long a work of WORKS takes, if it is brought to an end."""
        began_s = time.monotonic()
        self.state, self.steps_done, self.steps_all = name, 0, 0
        yield
        self.works[name].observe(time.monotonic() - began_s)
        self.state = "waiting"

    def step(self, done: int, total: int) -> None:
        """A minibatch is done."""
        self.steps_done, self.steps_all = done, total

    def begin_transfer(self, direction: str, offset: int) -> None:
        """Bytes begin to flow, from here on."""
        self.state = "uploading" if direction == "up" else "downloading"
        if offset:
            self.resumes[direction] += 1

    def end_transfer(self, direction: str, num_bytes: int, seconds: float) -> None:
        """So many of them have arrived."""
        self.payload_bytes[direction] += num_bytes
        self.transfers[direction].observe(seconds)
        self.state = "waiting"
