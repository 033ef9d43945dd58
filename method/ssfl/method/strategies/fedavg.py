"""Dense FedAvg (McMahan et al. 2017): SSFL's code path with a mask that keeps everything."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, ModelVector, vector_of
from ssfl.method.sampling import sample_cohort
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId, Plan, Position, Reducer, Work
from ssfl.method.value_types import commit_change


class FedAvg:
    """Train rounds only; the mean of the updates is the next model."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings

    def begin(self, manifest: Manifest, initial: ModelVector) -> ModelState:
        mask = Mask.full(manifest.num_masked)
        return ModelState(manifest, initial, mask, mask_epoch=1, values=vector_of(initial).copy())

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        if position.rounds_done >= self.settings.rounds:
            return None
        cohort = sample_cohort(
            self.settings, position.rounds_done, position.attempt, clients, position.newcomers,
            position.spare,
        )  # fmt: skip
        equal = self.settings.update_weights == "equal"
        return Plan(Work.TRAIN, tuple(cohort), Reducer.WEIGHTED_SUM, equal)

    def finish(
        self,
        work: Work,
        state: ModelState,
        aggregate: npt.NDArray[np.float32],
        _rounds_done: int,
    ) -> ModelState:
        assert work is Work.TRAIN and state.values is not None
        values, change = commit_change(self.settings, state.values, aggregate, state.base_digest)
        return replace(state, values=values, change=change)

    def client_state(self, _client: ClientId, _work: Work, state: ModelState) -> ModelState:
        return state

    def num_kept(self, manifest: Manifest, _rounds_done: int = 0) -> int:
        return manifest.num_masked

    def num_decisive(self, _manifest: Manifest, _rounds_done: int = 0) -> int:
        return 0  # nothing is scored
