"""SSFL (Ohib et al. 2025): agree on one mask before training, then FedAvg inside it.

Algorithm 1 of the paper: every client scores |gradient x weight| once, the scores are averaged
by data size, the global Top-k is the mask, and training starts from w0 on the mask.

A refresh, for data that change (algorithm "OOD Adaptation"): clients score the *whole* model
again, with trained values on the mask and resting values off it. The Top-k of the new means is
the new mask. A weight that it adds starts at its resting value: the initial value or, with
`deactivated=keep`, the value it had when an earlier mask dropped it. A warm-up is the same with a
first mask that keeps everything.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ssfl.method.controls import magnitude_scores, random_mask, shuffled
from ssfl.method.density import kept_for_bytes, kept_for_sparsity, parse_bytes
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.mask_choice import choose_mask, grow_mask, guard_quotas
from ssfl.method.model_state import ModelState, ModelVector
from ssfl.method.schedule import parse_schedule, sparsity_at
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId, Plan, Position, Reducer, Work
from ssfl.method.strategies.fedavg import FedAvg
from ssfl.method.streams import Stream

# Scores below a client's DECISIVE * k largest hardly ever affect the k largest of the mean
# (benchmarks/one_off_bytes.py: with 3, 99.6 % of the mask equals the exact one).
DECISIVE = 3
ENOUGH_BATCHES = 100  # over all clients; more hardly change the mask (the paper uses 80)
SCORED_WITHOUT_CLIENTS = ("random", "magnitude")  # follow from the seed, or from the weights
SCORED_BY_ONE_CLIENT = ("one-client", "synflow")
BY_SALIENCY = ("saliency", "shuffled", "one-client")


class Ssfl:
    """One SCORE step for all clients, then FedAvg on the kept values; SCORE again to refresh."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self._training = FedAvg(settings)

    def begin(self, manifest: Manifest, initial: ModelVector) -> ModelState:
        schedule = parse_schedule(self.settings.sparsity_schedule)
        for rounds_done in [number for number, _ in schedule] or [0]:
            k = self.num_kept(manifest, rounds_done)  # raises now if it is impossible
            if self.settings.layer_guard:
                guard_quotas(manifest, k, self.settings.layer_guard)
        if self.settings.warmup_rounds:
            return self._training.begin(manifest, initial)
        return ModelState(manifest, initial)

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        warm = self.settings.warmup_rounds
        due = position.mask_epoch == 0 or (
            warm > 0 and position.mask_epoch == 1 and position.rounds_done >= warm
        )
        if due or (position.refresh and position.rounds_done < self.settings.rounds):
            return self._score(position, clients)
        return self._training.plan(position, clients)

    def _score(self, position: Position, clients: Sequence[ClientId]) -> Plan:
        criterion = self.settings.criterion
        cohort = tuple(clients)
        if criterion in SCORED_WITHOUT_CLIENTS:
            cohort = ()
        elif criterion in SCORED_BY_ONE_CLIENT:
            stream = Stream(self.settings.seed, "one client", position.mask_epoch, position.attempt)
            cohort = (clients[int(stream.choose(len(clients), 1)[0])],)
        asked = "saliency" if criterion in BY_SALIENCY else criterion
        enough = math.ceil(ENOUGH_BATCHES / max(1, len(cohort)))
        if criterion == "one-client":
            enough = 1  # as a client of the paper scores
        return Plan(
            Work.SCORE,
            cohort,
            Reducer.WEIGHTED_SUM,
            self.settings.score_weights == "equal",
            asked,
            self.settings.scoring_batches or enough,
        )

    def finish(
        self,
        work: Work,
        state: ModelState,
        aggregate: npt.NDArray[np.float32],
        rounds_done: int,
    ) -> ModelState:
        if work is Work.TRAIN:
            return self._training.finish(work, state, aggregate, rounds_done)
        mask, whole = self._mask(state, aggregate, rounds_done), state.whole
        at_start = state.is_untrained
        values = mask.gather(whole)
        keep = self.settings.deactivated == "keep"
        return replace(
            state,
            mask=mask,
            mask_epoch=state.mask_epoch + 1,
            values=values,
            first=values,
            change=None,
            scored=None if at_start else whole,
            scored_digest=state.whole_digest,
            resting=None if at_start or not keep else whole,
        )

    def _mask(self, state: ModelState, scores: npt.NDArray[np.float32], rounds_done: int) -> Mask:
        manifest, settings = state.manifest, self.settings
        k = self.num_kept(manifest, rounds_done)
        match settings.criterion:
            case "random":
                return random_mask(manifest.num_masked, k, settings.seed, state.mask_epoch)
            case "magnitude":
                scores = magnitude_scores(state.whole, manifest)
        is_refresh = state.mask is not None and state.mask.num_kept < state.mask.size
        if settings.refresh_mode == "grow" and is_refresh:
            assert state.mask is not None
            return grow_mask(state.mask, scores, k)
        mask = choose_mask(scores, k, manifest, settings.layer_guard)
        if settings.criterion == "shuffled":
            return shuffled(mask, manifest, settings.seed, state.mask_epoch)
        return mask

    def client_state(self, _client: ClientId, _work: Work, state: ModelState) -> ModelState:
        return state

    def num_decisive(self, manifest: Manifest, rounds_done: int = 0) -> int:
        if self.settings.criterion not in BY_SALIENCY or self.settings.layer_guard:
            return 0  # a guarded layer may keep none of the largest scores
        return min(manifest.num_masked, DECISIVE * self.num_kept(manifest, rounds_done))

    def num_kept(self, manifest: Manifest, rounds_done: int = 0) -> int:
        """Return k for this model, from the byte budget, the schedule or the sparsity."""
        if self.settings.bytes_per_round:
            return kept_for_bytes(parse_bytes(self.settings.bytes_per_round), manifest)
        sparsity = self.settings.sparsity
        if self.settings.sparsity_schedule:
            sparsity = sparsity_at(self.settings.sparsity_schedule, rounds_done)
        return kept_for_sparsity(sparsity, manifest.num_masked)
