"""The sum of the open step: fold verified uploads, then make the next model.

Memory: one 64-bit sum over the step's vector, whatever the number of clients. Runs on one
worker thread, so folds never overlap; the result does not depend on their order.
"""

import logging
from collections.abc import Mapping
from statistics import median
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ssfl.method.exact_sum import MAX_SCORE_FRACTION_BITS, VALUE_BOUND, ExactSum, fraction_bits
from ssfl.method.model_state import ModelState
from ssfl.method.nested import density_rows
from ssfl.method.strategies.contract import ClientId, Strategy, Work
from ssfl.server.state import Step

_BLOCK = 1 << 18  # values
OUTLIER = 1e6  # times the median of the clients' largest scores

log = logging.getLogger("ssfl.run")


def update_fraction_bits(step: Step) -> int:
    """Return the grid of a training step: fixed by its cohort, so it can be announced."""
    return fraction_bits(VALUE_BOUND, sum(step.cohort.values()))


def _warn_of_outlier(largest: Mapping[ClientId, float]) -> None:
    """Say who reports scores beside which all others vanish: the grid follows the largest."""
    client = max(largest, key=lambda one: largest[one])
    if largest[client] > OUTLIER * median(largest.values()):
        log.warning(
            "one client's largest score dwarfs those of the others: the mask may be its alone",
            extra={"client": client, "largest": largest[client]},
        )


class Verified(Protocol):
    """Where the verified uploads are: the spool, or the memory of a simulation."""

    def read(
        self, step: int, client: ClientId, digest: bytes, start: int, count: int
    ) -> npt.NDArray[np.float32]:
        """Return up to `count` values of an upload, from value number `start` on."""
        ...


class StepSum:
    """Sums the uploads of one step."""

    def __init__(self, step: Step, model: ModelState, verified: Verified) -> None:
        self.step = step
        self._verified = verified
        self._folded: set[ClientId] = set()
        self._sum: ExactSum | None = None
        self.densities: list[dict[str, Any]] = []  # after scoring: what other masks would cost
        if step.work is Work.TRAIN:
            assert model.values is not None
            self._size = model.values.size
            self._sum = ExactSum(self._size, update_fraction_bits(step))
        else:
            self._size = model.manifest.num_masked

    def fold(self, client: ClientId, digest: str) -> None:
        """Add a client's verified upload; scores wait until their largest is known."""
        if self._sum is not None:
            self._add(self._sum, client, digest)

    def finish(self, step: Step, model: ModelState, strategy: Strategy) -> ModelState:
        """Return the next model from exactly the uploads of `step.closed`."""
        reduced = self.reduce(step)
        if step.work is Work.SCORE:
            self.densities = density_rows(reduced, model.manifest)
        return strategy.finish(step.work, model, reduced)

    def reduce(self, step: Step) -> npt.NDArray[np.float32]:
        """Return the mean of exactly the uploads of `step.closed`, and free the sum."""
        assert step.closed is not None
        total = self._sum
        if total is None or not self._folded <= set(step.closed):
            total = self._restart(step)
        for client in step.closed:
            if client not in self._folded:
                self._add(total, client, step.uploads[client].digest)
        self._sum = None  # the strategy will need room
        return total.mean()

    def _restart(self, step: Step) -> ExactSum:
        """Scores: the grid follows from the largest score of those that count."""
        assert step.closed is not None
        self._folded.clear()
        if step.work is Work.TRAIN:
            return ExactSum(self._size, update_fraction_bits(step))
        _warn_of_outlier({client: step.uploads[client].largest for client in step.closed})
        largest = max(step.uploads[client].largest for client in step.closed)
        weight = sum(step.cohort[client] for client in step.closed)
        bits = fraction_bits(largest, weight, MAX_SCORE_FRACTION_BITS)
        return ExactSum(self._size, bits)

    def _add(self, total: ExactSum, client: ClientId, digest: str) -> None:
        name, weight = bytes.fromhex(digest), self.step.cohort[client]
        for start in range(0, self._size, _BLOCK):
            values = self._verified.read(self.step.number, client, name, start, _BLOCK)
            total.fold_at(start, values, weight)
        total.total_weight += weight
        self._folded.add(client)
