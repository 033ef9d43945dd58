"""SSFL (Ohib et al. 2025): agree on one mask before training, then FedAvg inside it.

Algorithm 1 of the paper: every client scores |gradient x weight| once, the scores are averaged
by data size, the global Top-k is the mask, and w0 on the mask is where training starts.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ssfl.method.density import kept_for_bytes, kept_for_sparsity, parse_bytes
from ssfl.method.manifest import Manifest
from ssfl.method.mask import top_k
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import Assignment, ClientId, Plan, Position, Reducer, Work
from ssfl.method.strategies.fedavg import FedAvg

# A client's scores below its largest DECISIVE * k hardly ever decide who is among the k largest of
# the mean (benchmarks/one_off_bytes.py: at 3, 99.6 % of the mask is the exact one's).
DECISIVE = 3


class Ssfl:
    """One SCORE step for everyone, then FedAvg on the kept values."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self._training = FedAvg(settings)

    def begin(self, manifest: Manifest, initial: npt.NDArray[np.float32]) -> ModelState:
        self.num_kept(manifest)  # an impossible wish is refused before anyone works
        return ModelState(manifest, initial)

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        if position.mask_epoch == 0:
            tasks = {client: Assignment(Work.SCORE, criterion="saliency") for client in clients}
            return Plan(Work.SCORE, tasks, Reducer.WEIGHTED_SUM)
        return self._training.plan(position, clients)

    def finish(self, work: Work, state: ModelState, reduced: npt.NDArray[np.float32]) -> ModelState:
        if work is Work.TRAIN:
            return self._training.finish(work, state, reduced)
        mask = top_k(reduced, self.num_kept(state.manifest))
        return replace(
            state,
            mask=mask,
            mask_epoch=state.mask_epoch + 1,
            values=mask.gather(state.initial),
            change=None,
        )

    def num_decisive(self, manifest: Manifest) -> int:
        return min(manifest.num_masked, DECISIVE * self.num_kept(manifest))

    def num_kept(self, manifest: Manifest) -> int:
        """Return k for this model: from the byte budget if one is set, else from the sparsity."""
        if self.settings.bytes_per_round:
            return kept_for_bytes(parse_bytes(self.settings.bytes_per_round), manifest)
        return kept_for_sparsity(self.settings.sparsity, manifest.num_masked)
