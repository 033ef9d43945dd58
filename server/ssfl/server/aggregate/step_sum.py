"""The sum of the open step: fold verified uploads, then compute the next model.

Memory does not depend on the number of clients. Updates are added on arrival to one 64-bit sum over
the step's values, and one for each further vector. Scores cover all masked weights of the model,
and their grid is known only after the last upload. They are then added block by block, so that only
their mean is held completely. All folds run on one worker thread and never overlap. The result does
not depend on their order.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np

from ssfl.codec import masks
from ssfl.codec.masks import packed_bytes
from ssfl.method.exact_sum import MAX_SCORE_FRACTION_BITS, VALUE_BOUND, ExactSum, fraction_bits
from ssfl.method.mask import Mask
from ssfl.method.mask_choice import density_rows
from ssfl.method.model_state import ModelState, Vector, extra_digest
from ssfl.server.errors import StateError
from ssfl.server.run.events import StepReduced
from ssfl.server.run.facts import UploadAccepted
from ssfl.server.run.state import Step
from ssfl.strategies.contract import ClientId, Reduced, Reducer, StepDone, UploadParts, Work
from ssfl.strategies.registry import criterion_for
from ssfl.strategies.strategy import Strategy

_BLOCK = 1 << 18  # values
VALUE_BYTES = 4
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
        raise _shorter(client)


def _shorter(client: ClientId) -> StateError:
    return StateError(
        f"the accepted upload of {client} in the spool is shorter than it was: restore the "
        "state directory from a backup, or use --fresh to begin again"
    )


class AcceptedUploads(Protocol):
    """The accepted uploads of a step: the spool, or the memory of a simulation.

    The stored form of an update has its values, its further vectors, each on the same mask, and the
    packed bits of that mask if it came with the update.
    """

    def read(self, step: int, client: ClientId, digest: bytes, start: int, count: int) -> Vector:
        """Return up to `count` values of an upload, from value number `start`."""
        ...

    def tail(self, step: int, client: ClientId, digest: bytes, num_bytes: int) -> bytes:
        """Return the last bytes of an upload."""
        ...


class StepUploads:
    """The accepted uploads of a step, one by one."""

    def __init__(
        self, step: Step, model: ModelState, uploads: AcceptedUploads, strategy: Strategy
    ) -> None:
        self._step = step
        self._model = model
        self._uploads = uploads
        self._strategy = strategy
        self._vectors = strategy.parts(step.task, model.manifest).vectors

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients whose uploads count, sorted."""
        return self._step.closed or ()

    def weight(self, client: ClientId) -> int:
        return self._step.weights[client]

    def mask(self, client: ClientId) -> Mask:
        """Return the mask that the client's values lie on."""
        return self.mask_of(client, self._step.uploads[client])

    def received(self, client: ClientId) -> Mask:
        """Return the mask that the client was sent."""
        seen = self._strategy.client_state(client, self._step.work, self._model)
        assert seen.mask is not None
        return seen.mask

    def mask_of(self, client: ClientId, upload: UploadAccepted) -> Mask:
        """Return the mask of an upload that may have been accepted after this step was opened."""
        if not upload.own_mask:
            return self.received(client)
        size = self._model.manifest.num_masked
        digest = bytes.fromhex(upload.digest)
        bits = self._uploads.tail(self._step.number, client, digest, packed_bytes(size))
        mask = Mask(bits, size) if len(bits) == packed_bytes(size) else None
        if mask is None or mask.digest.hex() != upload.own_mask:
            raise _shorter(client)
        return mask

    def stored_size(self, client: ClientId) -> tuple[int, int]:
        """Return how many values a stored upload has, and how many bytes."""
        manifest = self._model.manifest
        if self._step.work is Work.SCORE:
            return manifest.num_masked, VALUE_BYTES * manifest.num_masked
        parts = self._strategy.parts(self._step.task, manifest)
        each = self.mask(client).num_kept + manifest.num_unmasked
        count = each * (parts.values + len(parts.vectors))
        has_bits = bool(self._step.uploads[client].own_mask)
        return count, VALUE_BYTES * count + packed_bytes(manifest.num_masked) * has_bits

    def numbers(self, client: ClientId) -> tuple[float, ...]:
        return self._step.uploads[client].numbers

    def read(self, client: ClientId, start: int, count: int, vector: str = "") -> Vector:
        """Return up to `count` values from number `start`, of the update or a further vector."""
        num_values = self.mask(client).num_kept + self._model.manifest.num_unmasked
        skipped = num_values * (1 + self._vectors.index(vector)) if vector else 0
        count = min(count, num_values - start)
        digest = bytes.fromhex(self._step.uploads[client].digest)
        values = self._uploads.read(self._step.number, client, digest, skipped + start, count)
        _check_count(values, count, client)
        return values


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
        self._step = step
        self._size = model.manifest.num_masked
        if step.work is Work.TRAIN:
            assert model.values is not None
            self._parts = strategy.parts(step.task, model.manifest)
            own_masks = self._parts.bits or strategy.has_own_masks
            self._size = model.manifest.size if own_masks else model.values.size
        self._sums: UpdateSums | None = self._begin(step)

    def fold(self, upload: UploadAccepted, weight: int) -> None:
        """Add a client's verified update. Scores are added later, by `reduce`."""
        if self._sums is not None:
            self._add(self._sums, upload, weight)

    def finish(self, step: Step) -> "Finished":
        """Return the next model, from the uploads of `step.closed` that count."""
        before, reduced, excluded = self._model, self.reduce(step), self._outliers(step)
        done = StepDone(step.work, step.round_number, step.task)
        uploads = StepUploads(step, before, self._uploads, self._strategy)
        model = self._strategy.finish(done, before, reduced, uploads)
        assert model.mask is not None
        report: dict[str, Any] = {}
        if before.mask is not None and model.mask_epoch != before.mask_epoch:
            report["renewed"] = {"reason": step.reason, **compare(before.mask, model.mask)}
        if step.work is Work.TRAIN and step.counts_as_round:
            if self._strategy.moves_mask or self._parts.bits:
                report["mask"] = movement(before.mask, model.mask, uploads)
            return Finished(model, report, None)
        if excluded:
            report["outliers"] = list(excluded)
        if step.work is Work.SCORE and criterion_for(step.criterion).is_nested:
            report["densities"] = density_rows(reduced.values, before.manifest)
        report["layers"] = {
            name: {"kept": kept, "size": size}
            for name, (kept, size) in model.mask.kept_by_tensor(model.manifest).items()
        }
        return Finished(model, report, reduced.values if step.work is Work.SCORE else None)

    def reduce(self, step: Step) -> Reduced:
        """Return the mean of the uploads of `step.closed` that count, and free the sum.

        Outlier scores are excluded. Without uploads the mean is zeros; strategies that ask no
        client ignore it.
        """
        assert step.closed is not None
        if not step.closed:
            return Reduced(np.zeros(self._size, dtype=np.float32))
        if step.work is Work.SCORE:
            return Reduced(self._mean_scores(step))
        sums = self._sums
        if sums is None or not sums.folded <= set(step.closed):
            sums = self._begin(step)  # an upload was folded that does not count: start over
            assert sums is not None
        for client in step.closed:
            if client not in sums.folded:
                self._add(sums, step.uploads[client], step.weights[client])
        self._sums = None  # free memory for the strategy
        return sums.reduced()

    def _begin(self, step: Step) -> "UpdateSums | None":
        if step.work is not Work.TRAIN:
            return None
        num_masked = self._model.manifest.num_masked
        bits = update_fraction_bits(step)
        return UpdateSums(self._size, num_masked, bits, step.reducer, self._parts)

    def _mean_scores(self, step: Step) -> Vector:
        """Return the mean scores; the grid follows from the largest score that counts."""
        effect = "its scores do not count" if self._excludes else "it may decide the mask alone"
        for client in outliers(step.uploads, step.closed or ()):
            log.warning(
                f"one client's largest score dwarfs those of the others: {effect}",
                extra={"client": client, "largest": step.uploads[client].largest},
            )
        excluded = self._outliers(step)
        counting = [client for client in step.closed or () if client not in excluded]
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

    def _add(self, sums: "UpdateSums", upload: UploadAccepted, weight: int) -> None:
        client, digest = upload.client, bytes.fromhex(upload.digest)
        uploads = StepUploads(self._step, self._model, self._uploads, self._strategy)
        mask = uploads.mask_of(client, upload)
        count = mask.num_kept + self._model.manifest.num_unmasked
        if upload.own_mask:
            sums.vote(mask, weight)
        at = 0
        for total in sums.totals:
            if self._size == count and not upload.own_mask:
                for start in range(0, count, _BLOCK):
                    size = min(_BLOCK, count - start)
                    values = self._uploads.read(self.number, client, digest, at + start, size)
                    _check_count(values, size, client)
                    total.fold_at(start, values, weight)
            else:
                values = self._uploads.read(self.number, client, digest, at, count)
                _check_count(values, count, client)
                total.fold_at(0, mask.scatter(values), weight)
            at += count
        sums.hold(mask, self._model.manifest.num_unmasked, weight)
        sums.count(client, weight)


class UpdateSums:
    """The exact sums of the parts of updates."""

    def __init__(
        self,
        size: int,
        num_masked: int,
        fraction_bits: int,
        reducer: Reducer,
        parts: UploadParts,
    ) -> None:
        self.folded: set[ClientId] = set()
        self._size = size
        self._parts = parts
        self._total_weight = 0
        count = parts.values + len(parts.vectors) if reducer is not Reducer.NONE else 0
        self.totals = [ExactSum(size, fraction_bits) for _ in range(count)]
        # Total weight of the clients that hold each value.
        by_holder = reducer is Reducer.WEIGHTED_SUM_BY_HOLDER
        self._holders = np.zeros(size, dtype=np.int64) if by_holder else None
        self._votes = np.zeros(num_masked, dtype=np.int64) if parts.bits else None

    def vote(self, mask: Mask, weight: int) -> None:
        """Count the bits of a mask that came with an update."""
        assert self._votes is not None
        self._votes += mask.bools() * np.int64(weight)

    def hold(self, mask: Mask, num_unmasked: int, weight: int) -> None:
        """Count the holder of the values that a mask keeps."""
        if self._holders is not None:
            held = np.concatenate([mask.bools(), np.ones(num_unmasked, dtype=np.bool_)])
            self._holders += held * np.int64(weight)

    def count(self, client: ClientId, weight: int) -> None:
        """Record that all parts of a client's update were added."""
        for total in self.totals:
            total.total_weight += weight
        self._total_weight += weight
        self.folded.add(client)

    def reduced(self) -> Reduced:
        """Return the means and the votes."""
        weights = None if self._holders is None else np.maximum(self._holders, 1)
        means = [total.mean(weights) for total in self.totals]
        values = means.pop(0) if means and self._parts.values else np.empty(0, dtype=np.float32)
        vectors = dict(zip(self._parts.vectors, means, strict=False))
        return Reduced(values, self._holders, self._votes, vectors, self._total_weight)


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
        "" if model.scored is None else model.scored_digest.hex(), extra_digest(model.extra),
        model.stage,
    )  # fmt: skip


def movement(before: Mask | None, after: Mask, uploads: StepUploads) -> dict[str, float]:
    """Return density and change of the mask in a round, of the model and of the clients' masks.

    A change is the share of bits that differ: from the mask before the round, or from the mask
    that the client received. Those of the clients are means over the clients.
    """
    assert before is not None
    sent = [(uploads.received(client), uploads.mask(client)) for client in uploads.clients]
    return {
        "density": after.num_kept / after.size,
        "changed": _num_changed(before, after) / after.size,
        "client_density": sum(mask.num_kept for _, mask in sent) / len(sent) / after.size,
        "client_changed": sum(_num_changed(*pair) for pair in sent) / len(sent) / after.size,
    }


def _num_changed(before: Mask, after: Mask) -> int:
    return Mask(masks.difference(before.bits, after.bits), after.size).num_kept


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
