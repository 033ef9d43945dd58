"""The sum of the open step: fold verified uploads, then compute the next model.

Memory does not depend on the number of clients. Updates are added on arrival to one 64-bit sum over
the step's values. Scores cover all masked weights of the model, and their grid is known only after
the last upload. They are then added block by block, so that only their mean is held completely.
All folds run on one worker thread and never overlap. The result does not depend on their order.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ssfl.method.exact_sum import MAX_SCORE_FRACTION_BITS, VALUE_BOUND, ExactSum, fraction_bits
from ssfl.method.mask import Mask
from ssfl.method.mask_choice import density_rows
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.strategies.contract import ClientId, Reducer, Strategy, Work
from ssfl.server.errors import StateError
from ssfl.server.run.events import StepReduced
from ssfl.server.run.facts import UploadAccepted
from ssfl.server.run.state import Step

_BLOCK = 1 << 18  # values
# A client is an outlier if its largest score is above this many times the median of the clients'
# largest scores. Only a fault produces such a score.
OUTLIER = 1e6

log = logging.getLogger("ssfl.run")


def update_fraction_bits(step: Step) -> int:
    """Return the fraction bits of a training step's sum, which are known when it starts."""
    if step.fraction_bits is not None:
        return step.fraction_bits
    return fraction_bits(VALUE_BOUND, sum(step.weights.values()))


def outliers(
    uploads: Mapping[ClientId, UploadAccepted], closed: Iterable[ClientId]
) -> tuple[ClientId, ...]:
    """Return the clients in `closed` whose scores are outliers, sorted.

    Scores are summed on a grid that follows the largest score, so one absurd score could round
    all others to zero. At most half of the clients can be above the median. With one or two
    clients, or if more than half of them report only zeros, no client is an outlier.
    """
    largest = {client: uploads[client].largest for client in closed}
    middle = median(largest.values()) if largest else 0.0
    if not middle:
        return ()
    return tuple(sorted(client for client in largest if largest[client] > OUTLIER * middle))


def _check_count(values: Vector, count: int, client: ClientId) -> None:
    """Raise StateError if a verified file has become shorter."""
    if values.size != count:
        raise StateError(
            f"the accepted upload of {client} in the spool is shorter than it was: restore the "
            "state directory from a backup, or use --fresh to begin again"
        )


class AcceptedUploads(Protocol):
    """The accepted uploads of a step: the spool, or the memory of a simulation."""

    def read(self, step: int, client: ClientId, digest: bytes, start: int, count: int) -> Vector:
        """Return up to `count` values of an upload, from value number `start`."""
        ...


class StepSum:
    """Sums the uploads of one step."""

    def __init__(
        self,
        step: Step,
        model: ModelState,
        uploads: AcceptedUploads,
        strategy: Strategy,
        score_outliers: str = "exclude",
    ) -> None:
        self.number, self.work = step.number, step.work
        self._model = model
        self._uploads = uploads
        self._strategy = strategy
        self._excludes = step.work is Work.SCORE and score_outliers == "exclude"
        self._folded: set[ClientId] = set()
        self._sum: ExactSum | None = None
        # Total weight of the clients that hold each value.
        self._holders: npt.NDArray[np.int64] | None = None
        if step.work is Work.TRAIN:
            assert model.values is not None
            self._size = model.values.size
            self._sum = ExactSum(self._size, update_fraction_bits(step))
            if step.reducer is Reducer.WEIGHTED_SUM_BY_HOLDER:
                self._holders = np.zeros(self._size, dtype=np.int64)
        else:
            self._size = model.manifest.num_masked

    def fold(self, client: ClientId, digest: str, weight: int) -> None:
        """Add a client's verified update. Scores are added later, by `reduce`."""
        if self._sum is not None:
            self._add(self._sum, client, digest, weight)

    def finish(self, step: Step) -> "Finished":
        """Return the next model, from the uploads of `step.closed` that count."""
        before, mean, excluded = self._model, self.reduce(step), self._outliers(step)
        model = self._strategy.finish(step.work, before, mean, step.round_number)
        if step.work is Work.TRAIN:
            return Finished(model, {}, None)
        report: dict[str, Any] = {"outliers": list(excluded)} if excluded else {}
        if step.criterion == "saliency":  # only its masks are nested across sparsities
            report["densities"] = density_rows(mean, before.manifest)
        assert model.mask is not None
        report["layers"] = {
            name: {"kept": kept, "size": size}
            for name, (kept, size) in model.mask.kept_by_tensor(model.manifest).items()
        }
        if before.mask is not None:
            report["renewed"] = {"reason": step.reason, **compare(before.mask, model.mask)}
        return Finished(model, report, mean)

    def reduce(self, step: Step) -> Vector:
        """Return the mean of the uploads of `step.closed` that count, and free the sum.

        Outlier scores are excluded. Without uploads the mean is zeros; strategies that ask no
        client ignore it.
        """
        assert step.closed is not None
        if not step.closed:
            return np.zeros(self._size, dtype=np.float32)
        if step.work is Work.SCORE:
            return self._mean_scores(step)
        total = self._sum
        if total is None or not self._folded <= set(step.closed):
            # An upload was folded that does not count: start over.
            self._folded.clear()
            if self._holders is not None:
                self._holders[:] = 0
            total = ExactSum(self._size, update_fraction_bits(step))
        for client in self._counting(step):
            if client not in self._folded:
                self._add(total, client, step.uploads[client].digest, step.weights[client])
        self._sum = None  # free memory for the strategy
        if self._holders is None:
            return total.mean()
        mean, values = total.mean(np.maximum(self._holders, 1)), self._model.values
        assert values is not None
        return np.where(self._holders > 0, mean, values)  # values that no client held do not change

    def _mean_scores(self, step: Step) -> Vector:
        """Return the mean scores; the grid follows from the largest score that counts."""
        effect = "its scores do not count" if self._excludes else "it may decide the mask alone"
        for client in outliers(step.uploads, step.closed or ()):
            log.warning(
                f"one client's largest score dwarfs those of the others: {effect}",
                extra={"client": client, "largest": step.uploads[client].largest},
            )
        counting = self._counting(step)
        largest = max(step.uploads[client].largest for client in counting)
        weights = step.weights
        weight = sum(weights[client] for client in counting)
        bits = fraction_bits(largest, weight, MAX_SCORE_FRACTION_BITS)
        mean = np.empty(self._size, dtype=np.float32)
        for start in range(0, self._size, _BLOCK):
            block = mean[start : start + _BLOCK]
            total = ExactSum(block.size, bits)
            for client in counting:
                digest = bytes.fromhex(step.uploads[client].digest)
                scores = self._uploads.read(self.number, client, digest, start, _BLOCK)
                _check_count(scores, block.size, client)
                total.fold_at(0, scores, weights[client])
            total.total_weight = weight
            block[:] = total.mean()
        return mean

    def _outliers(self, step: Step) -> tuple[ClientId, ...]:
        """Return the clients whose scores do not count."""
        return outliers(step.uploads, step.closed or ()) if self._excludes else ()

    def _counting(self, step: Step) -> list[ClientId]:
        """Return the clients whose uploads count."""
        excluded = self._outliers(step)
        return [client for client in step.closed or () if client not in excluded]

    def _add(self, total: ExactSum, client: ClientId, digest: str, weight: int) -> None:
        raw_digest = bytes.fromhex(digest)
        seen = self._strategy.client_state(client, self.work, self._model)
        if seen is self._model:
            for start in range(0, self._size, _BLOCK):
                values = self._uploads.read(self.number, client, raw_digest, start, _BLOCK)
                _check_count(values, min(_BLOCK, self._size - start), client)
                total.fold_at(start, values, weight)
        else:
            assert seen.mask is not None and seen.values is not None
            values = self._uploads.read(self.number, client, raw_digest, 0, seen.values.size)
            _check_count(values, seen.values.size, client)
            total.fold_at(0, seen.mask.scatter(values), weight)
            if self._holders is not None:
                ones = np.ones(seen.values.size, dtype=np.float32)
                self._holders += seen.mask.scatter(ones).astype(np.int64) * weight
        total.total_weight += weight
        self._folded.add(client)


@dataclass(frozen=True, eq=False)
class Finished:
    """The result of a step: the next model, its report, and the mean scores, if any."""

    model: ModelState
    report: Mapping[str, Any]
    scores: Vector | None


def step_reduced(step: int, model: ModelState, report: Mapping[str, Any]) -> StepReduced:
    """Return the event that makes the model of a step current."""
    assert model.mask is not None and model.values is not None
    return StepReduced(
        step, model.mask_epoch, model.mask.digest.hex(), model.mask.num_kept,
        model.base_digest.hex(), report,
        "" if model.scored is None else model.scored_digest.hex(),
    )  # fmt: skip


def compare(before: Mask, after: Mask) -> dict[str, Any]:
    """Return how a mask differs from the previous one."""
    old, new = before.bools(), after.bools()
    both = int(np.count_nonzero(old & new))
    either = before.num_kept + after.num_kept - both
    return {
        "kept_before": before.num_kept,
        "kept": after.num_kept,
        "added": after.num_kept - both,
        "dropped": before.num_kept - both,
        "replaced": 1 - both / max(1, after.num_kept),  # share of the new mask that is new
        "jaccard_distance": 1 - both / max(1, either),
    }
