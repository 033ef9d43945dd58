"""The parts of the run's model that a client holds, so that they are not sent again.

They are the initial weights, the mask, the base, and the whole model that was scored last: it has
the resting values of pruned weights, from which training under a new mask starts.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.client.coding import read_mask, read_values
from ssfl.client.download import Download
from ssfl.client.errors import Refused, Resync
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.strategies.contract import Received
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2

Vector = npt.NDArray[np.float32]
Work = pb.ScoreTask | pb.TrainTask | pb.EvaluateTask | pb.PersonalizeTask | pb.FinishTask
OwnMask = Callable[[], Mask | None]
Payloads = Iterator[memoryview]  # that are not read yet


class HeldModel:
    """The newest initial weights, scored model, mask and base."""

    def __init__(self, manifest: Manifest, initial: Vector, own_mask: OwnMask) -> None:
        """Start with the initial weights; `own_mask` returns the mask of this client alone."""
        self._manifest = manifest
        self._own_mask = own_mask
        self._initial, self._initial_digest = initial, values_digest(initial)
        self._scored: Vector | None = None
        self._scored_digest = b""
        self._mask: Mask | None = None
        self._base: Vector | None = None
        self._base_mask: Mask | None = None  # the mask of the base
        self._base_digest = b""

    @property
    def mask_digest(self) -> bytes:
        """Digest of the mask; empty before the first mask."""
        return self._mask.digest if self._mask else b""

    def held_digests(self) -> dict[str, Any]:
        """Return the fields of a NextTaskRequest that name what is held."""
        return {
            "initial_digest": self._initial_digest,
            "scored_digest": self._scored_digest,
            "mask_digest": self.mask_digest,
            "base_digest": self._base_digest,
        }

    def model_to_score(self, download: Download, work: pb.ScoreTask) -> tuple[Vector, Mask | None]:
        """Return the whole model to score, and its current mask, if any."""
        payloads = download.parts()
        if work.HasField("initial"):
            self._initial = read_values(next(payloads), work.initial, self._manifest.size, {})
            self._initial_digest = values_digest(self._initial)
        whole, mask = self._initial, None
        if work.mask.mask_epoch:
            mask, base = self._mask_and_base(payloads, work)
            whole = mask.scatter(base, onto=self._resting(payloads, work))
        if values_digest(whole) != work.initial_digest:
            raise Refused("the weights to score do not match the digest from the coordinator")
        self._scored, self._scored_digest = whole, work.initial_digest
        return whole, mask

    def _resting(self, payloads: Payloads, work: pb.ScoreTask) -> Vector:
        if not work.resting_digest:
            return self._initial
        if work.HasField("resting"):
            known = {self._initial_digest: self._initial}
            return read_values(next(payloads), work.resting, self._manifest.size, known)
        if self._scored is None or self._scored_digest != work.resting_digest:
            raise Resync("the task needs resting weights that this client does not hold")
        return self._scored

    def mask_and_base(self, download: Download, work: Work) -> tuple[Mask, Vector]:
        """Return mask and base of a task, from its payloads or from what is held."""
        return self._mask_and_base(download.parts(), work)

    def received(self, download: Download, work: pb.TrainTask) -> Received:
        """Return what came with a training task."""
        payloads = download.parts()
        mask, base = self._mask_and_base(payloads, work)
        vectors = {
            one.name: read_values(next(payloads), one.values, base.size, {}) for one in work.vectors
        }
        return Received(mask, base, work.round_number, work.task, vectors)

    def hold_mask(self, mask: Mask) -> None:
        """Hold the mask that this client has sent, under which it will train next."""
        self._mask = mask

    def _mask_and_base(self, payloads: Payloads, work: Work) -> tuple[Mask, Vector]:
        mask = self._mask
        if mask is None or work.mask.mask_digest != mask.digest:
            self._mask = None  # if reading fails, the next request asks for the whole mask
            mask = self._mask = self._new_mask(payloads, work.mask, mask)
        elif work.mask.HasField("mask"):
            next(payloads)  # the mask is already held
        if work.HasField("base"):
            count = mask.num_kept + self._manifest.num_unmasked
            known = self._known(mask, work.base.reference_digest)
            self._base, self._base_digest = None, b""
            values = read_values(next(payloads), work.base, count, known)
            self._base, self._base_digest, self._base_mask = values, values_digest(values), mask
        elif self._base_digest != work.base_digest:
            self._base = self._known(mask, work.base_digest).get(work.base_digest)
            self._base_digest, self._base_mask = work.base_digest, mask
        if self._base is None or self._base_digest != work.base_digest:
            self._base, self._base_digest = None, b""
            raise Resync("this client does not hold the base of the task")
        return mask, self._base

    def _known(self, mask: Mask, digest: bytes) -> dict[bytes, Vector]:
        """Return the values with this digest, held or gathered by the mask; else nothing.

        A base that is held under another mask is moved to this one; new weights are zero.
        """
        if self._base is not None and digest == self._base_digest:
            if self._base_mask is None or self._base_mask == mask:
                return {digest: self._base}
            return {digest: mask.gather(self._base_mask.scatter(self._base))}
        for whole in (self._scored, self._initial):
            if digest and whole is not None and values_digest(kept := mask.gather(whole)) == digest:
                return {digest: kept}
        return {}

    def _new_mask(
        self, payloads: Payloads, message: mask_pb2.MaskBroadcast, held: Mask | None
    ) -> Mask:
        if message.from_seed:
            mask = self._own_mask()
            if mask is None or mask.digest != message.mask_digest:
                raise Refused("the coordinator's mask for this client differs from our own")
            return mask
        data = next(payloads) if message.HasField("mask") else memoryview(b"")
        return read_mask(data, message, self._manifest, self._initial, held)
