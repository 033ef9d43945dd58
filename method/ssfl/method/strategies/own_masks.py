"""Control: a different random mask for every client, instead of a shared one.

The global model is dense. To train, a client gets the values that its own mask keeps; to test, it
gets the whole model. Both ends compute the mask from the seed and the client's name. The client
trains inside its mask and sends these values back. With `averaging=holders`, the mean of a weight
is over the clients whose masks keep it, and a weight that no mask keeps is unchanged. With `zeros`,
as in the paper's released code, a client whose mask does not keep the weight counts as zero.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ssfl.method.controls import client_random_mask
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, ModelVector
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId, Plan, Position, Reducer, Work
from ssfl.method.strategies.fedavg import FedAvg


class OwnMasks:
    """FedAvg in which every client trains a fixed part of the model."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self._training = FedAvg(settings)
        self._masks: dict[ClientId, Mask] = {}  # cached: computing one may take seconds

    def begin(self, manifest: Manifest, initial: ModelVector) -> ModelState:
        # Raises now, not in the first round, if the sparsity is invalid. The mask is not used.
        client_random_mask(manifest, self.settings.sparsity, self.settings.seed, "")
        return self._training.begin(manifest, initial)

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        plan = self._training.plan(position, clients)
        if plan and self.settings.averaging == "holders":
            return replace(plan, reducer=Reducer.WEIGHTED_SUM_BY_HOLDER)
        return plan

    def finish(
        self,
        work: Work,
        state: ModelState,
        aggregate: npt.NDArray[np.float32],
        rounds_done: int,
    ) -> ModelState:
        return self._training.finish(work, state, aggregate, rounds_done)

    def client_state(self, client: ClientId, work: Work, state: ModelState) -> ModelState:
        if work is not Work.TRAIN:
            return state
        assert state.values is not None
        if client not in self._masks:
            self._masks[client] = client_random_mask(
                state.manifest, self.settings.sparsity, self.settings.seed, client
            )
        mask = self._masks[client]
        return replace(state, mask=mask, values=mask.gather(state.values))

    def num_kept(self, manifest: Manifest, _rounds_done: int = 0) -> int:
        return manifest.num_masked

    def num_decisive(self, _manifest: Manifest, _rounds_done: int = 0) -> int:
        return 0  # nothing is scored
