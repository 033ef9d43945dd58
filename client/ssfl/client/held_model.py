"""What a client holds of the run's model, so that it is not sent again: initial, mask, base."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.client.coding import read_mask, read_values
from ssfl.client.download import Download
from ssfl.client.errors import Resync
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.v1 import coordinator_pb2 as pb

Vector = npt.NDArray[np.float32]
Work = pb.TrainTask | pb.EvaluateTask | pb.FinishTask


class HeldModel:
    """The newest of each; what a download brings replaces it."""

    def __init__(self, manifest: Manifest, initial: Vector) -> None:
        self._manifest = manifest
        self.initial, self.initial_digest = initial, values_digest(initial)
        self._mask: Mask | None = None
        self._base: Vector | None = None
        self._base_digest = b""

    @property
    def mask_digest(self) -> bytes:
        """Digest of the mask; empty while there is none."""
        return self._mask.digest if self._mask else b""

    def said(self) -> dict[str, Any]:
        """Return the fields of a NextTaskRequest that say what is here."""
        return {
            "initial_digest": self.initial_digest,
            "mask_digest": self.mask_digest,
            "base_digest": self._base_digest,
        }

    def take_initial(self, download: Download, work: pb.ScoreTask) -> Vector:
        """Return the initial vector of a task: the one that came with it, or ours."""
        if work.HasField("initial"):
            size = self._manifest.size
            self.initial = read_values(download.payload(0), work.initial, size, {})
            self.initial_digest = values_digest(self.initial)
        return self.initial

    def take(self, download: Download, work: Work) -> tuple[Mask, Vector]:
        """Return mask and base of a task: what came with it, or what is here already."""
        mask = self._mask
        if mask is None or work.mask.mask_digest != mask.digest:
            data = download.payload(0) if work.mask.HasField("mask") else memoryview(b"")
            self._mask = None  # should this one not do, we ask for all of it
            mask = self._mask = read_mask(data, work.mask, self._manifest, self.initial, mask)
        if work.HasField("base"):
            number = int(work.mask.HasField("mask"))  # the mask, if it came, comes first
            count = mask.num_kept + self._manifest.num_unmasked
            known = self._known(mask, work.base.reference_digest)
            self._base, self._base_digest = None, b""
            values = read_values(download.payload(number), work.base, count, known)
            self._base, self._base_digest = values, values_digest(values)
        elif self._base_digest != work.base_digest:
            self._base = self._known(mask, work.base_digest).get(work.base_digest)
            self._base_digest = work.base_digest
        if self._base is None or self._base_digest != work.base_digest:
            self._base, self._base_digest = None, b""
            raise Resync("the base we hold is not the one of the task")
        return mask, self._base

    def _known(self, mask: Mask, digest: bytes) -> dict[bytes, Vector]:
        """Return the values with this digest, if they are here or can be made."""
        if self._base is not None and digest == self._base_digest:
            return {digest: self._base}
        first = mask.gather(self.initial) if digest else None  # the first base of a mask
        return {digest: first} if first is not None and values_digest(first) == digest else {}
