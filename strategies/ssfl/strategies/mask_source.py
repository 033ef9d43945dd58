"""Mask sources: where the mask of a run comes from.

AllWeights   no mask: dense training
ScoredMask   SSFL: agree on one mask by a criterion, before training or after a warm-up; refresh it
SeededMasks  a random mask for every client, from the seed and the client's name
RuleMask     the rule chooses and moves the mask

A refresh, for data that change (the paper's "OOD Adaptation"): clients score the *whole* model
again, with trained values on the mask and resting values off it. The new mask follows from the new
scores. A weight that it adds starts at its resting value: the initial value or, with
`deactivated=keep`, the value it had when an earlier mask dropped it. A warm-up is the same with a
first mask that keeps everything.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from ssfl.method.controls import client_random_mask
from ssfl.method.density import kept_for_bytes, kept_for_sparsity, parse_bytes
from ssfl.method.errors import SettingsError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.mask_choice import guard_quotas
from ssfl.method.model_state import ModelState, ModelVector, Vector, vector_of
from ssfl.method.schedule import parse_schedule, sparsity_at
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.strategies.contract import ClientId, Plan, Position, Reducer, Scorers, Work
from ssfl.strategies.criteria import Criterion

# Scores below a client's DECISIVE * k largest hardly ever affect the k largest of the mean
# (benchmarks/one_off_bytes.py: with 3, 99.6 % of the mask equals the exact one).
DECISIVE = 3
NO_MASK = "none"  # the criterion that keeps every weight
ENOUGH_BATCHES = 100  # over all clients; more hardly change the mask (the paper uses 80)


class MaskSource:
    """The defaults: every weight is kept, and no client scores."""

    why_fixed = ""  # why the mask cannot be refreshed; empty if it can
    has_own_masks: ClassVar[bool] = False  # every client trains under a mask of its own
    scorers = Scorers.NONE

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings

    def check(self) -> None:
        """Raise SettingsError if a setting does not fit this source."""

    def begin(self, manifest: Manifest, initial: ModelVector) -> ModelState:
        """Return the state before the first step; raise DensityError if it cannot be made."""
        mask = Mask.full(manifest.num_masked)
        return ModelState(manifest, initial, mask, mask_epoch=1, values=vector_of(initial).copy())

    def is_due(self, position: Position) -> bool:
        """Return True if a new mask comes before the next round."""
        return False

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan:
        """Return the step that chooses a mask."""
        raise ValueError("this source chooses no mask")

    def finish(self, state: ModelState, scores: Vector, rounds_done: int) -> ModelState:
        """Return the state with the mask that follows from the mean scores."""
        raise ValueError("this source chooses no mask")

    def client_mask(self, client: ClientId, manifest: Manifest) -> Mask | None:
        """Return the client's own mask; None if it trains under the mask of the run."""
        return None

    def num_kept(self, manifest: Manifest, rounds_done: int = 0) -> int:
        """Return how many weights a mask agreed after `rounds_done` rounds keeps."""
        return manifest.num_masked

    def num_decisive(self, manifest: Manifest, rounds_done: int = 0) -> int:
        """Return how many of a client's largest scores can affect the mask; 0: all."""
        return 0


class AllWeights(MaskSource):
    """No mask."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings)
        named = self._subject if settings.criterion == NO_MASK else f"strategy {settings.strategy}"
        self.why_fixed = f"{named} keeps every weight"

    def check(self) -> None:
        for name in ("bytes_per_round", "sparsity_schedule", "warmup_rounds"):
            if getattr(self.settings, name):
                flag = "--" + name.replace("_", "-")
                raise SettingsError(
                    f"{flag} needs a sparse strategy: {self._subject} keeps everything"
                )
        if self.settings.refreshes:
            raise SettingsError(f"{self._subject} keeps everything: there is no mask to refresh")
        chosen = self.settings.criterion not in (RunSettings().criterion, NO_MASK)
        if chosen or self.settings.layer_guard:
            raise SettingsError(
                f"{self._subject} keeps everything: leave out --criterion and --layer-guard"
            )

    @property
    def _subject(self) -> str:
        dense = self.settings.criterion == NO_MASK
        return f"--criterion {NO_MASK}" if dense else self.settings.strategy


class ScoredMask(MaskSource):
    """One mask for all clients, chosen by a criterion."""

    def __init__(self, settings: RunSettings, criterion: Criterion) -> None:
        super().__init__(settings)
        self.criterion = criterion
        self.scorers = criterion.scorers

    def check(self) -> None:
        criterion, settings = self.criterion, self.settings
        if settings.layer_guard and not criterion.can_guard:
            raise SettingsError(
                f"--criterion {criterion.name} keeps any weights: leave out --layer-guard"
            )
        if settings.refresh_mode == "grow" and not criterion.can_grow:
            raise SettingsError(
                "--refresh-mode grow adds the best-scoring weights to a mask: it cannot be "
                "combined with --layer-guard, nor with --criterion random or shuffled"
            )
        if settings.scoring_point == "masked" and not criterion.scores_pruned:
            raise SettingsError(
                f"--scoring-point masked is for saliency: {criterion.name} would score every "
                "pruned weight as zero"
            )

    def begin(self, manifest: Manifest, initial: ModelVector) -> ModelState:
        schedule = parse_schedule(self.settings.sparsity_schedule)
        for rounds_done in [number for number, _ in schedule] or [0]:
            k = self.num_kept(manifest, rounds_done)  # raises now if it is impossible
            if self.settings.layer_guard:
                guard_quotas(manifest, k, self.settings.layer_guard)
        if self.settings.warmup_rounds:
            return super().begin(manifest, initial)
        return ModelState(manifest, initial)

    def is_due(self, position: Position) -> bool:
        epoch, warm = position.mask_epoch, self.settings.warmup_rounds
        if epoch == 0 or (epoch == 1 and 0 < warm <= position.rounds_done):
            return True
        return position.refresh and position.rounds_done < self.settings.rounds

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan:
        cohort, criterion = tuple(clients), self.criterion
        if self.scorers is Scorers.NONE:
            cohort = ()
        elif self.scorers is Scorers.ONE:
            stream = Stream(self.settings.seed, "one client", position.mask_epoch, position.attempt)
            cohort = (clients[int(stream.choose(len(clients), 1)[0])],)
        enough = criterion.num_batches or math.ceil(ENOUGH_BATCHES / max(1, len(cohort)))
        return Plan(
            Work.SCORE,
            cohort,
            Reducer.WEIGHTED_SUM,
            self.settings.score_weights == "equal",
            criterion.asked or criterion.name,
            self.settings.scoring_batches or enough,
        )

    def finish(self, state: ModelState, scores: Vector, rounds_done: int) -> ModelState:
        k = self.num_kept(state.manifest, rounds_done)
        mask, whole = self.criterion.mask(state, scores, k, self.settings), state.whole
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

    def num_kept(self, manifest: Manifest, rounds_done: int = 0) -> int:
        """Return k for this model, from the byte budget, the schedule or the sparsity."""
        if self.settings.bytes_per_round:
            return kept_for_bytes(parse_bytes(self.settings.bytes_per_round), manifest)
        sparsity = self.settings.sparsity
        if self.settings.sparsity_schedule:
            sparsity = sparsity_at(self.settings.sparsity_schedule, rounds_done)
        return kept_for_sparsity(sparsity, manifest.num_masked)

    def num_decisive(self, manifest: Manifest, rounds_done: int = 0) -> int:
        if not self.criterion.is_decided_by_largest or self.settings.layer_guard:
            return 0  # a guarded layer may keep none of the largest scores
        return min(manifest.num_masked, DECISIVE * self.num_kept(manifest, rounds_done))


class SeededMasks(MaskSource):
    """Control: a different random mask for every client.

    The global model is dense. To train, a client gets the values that its own mask keeps; to test,
    it gets the whole model. A personal model starts from the final values on the client's own mask.
    Both ends compute the mask from the seed and the client's name.
    """

    why_fixed = "every client has a permanent mask of its own"
    has_own_masks = True

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings)
        # Computing a mask may take seconds. Runs with equal settings share this source.
        self._masks: dict[tuple[bytes, ClientId], Mask] = {}

    def check(self) -> None:
        settings = self.settings
        clashing = {
            "refreshes": settings.refreshes,
            "--warmup-rounds": settings.warmup_rounds,
            "--bytes-per-round": settings.bytes_per_round,
            "--layer-guard": settings.layer_guard,
            f"--value-type {settings.value_type}": settings.value_type != "float32",
        }
        for name, given in clashing.items():
            if given:
                raise SettingsError(
                    f"--criterion client-random gives every client its own fixed mask: it cannot "
                    f"be combined with {name}, which must be left out or 0"
                )

    def begin(self, manifest: Manifest, initial: ModelVector) -> ModelState:
        # Raises now, not in the first round, if the sparsity is invalid. The mask is not used.
        client_random_mask(manifest, self.settings.sparsity, self.settings.seed, "")
        return super().begin(manifest, initial)

    def client_mask(self, client: ClientId, manifest: Manifest) -> Mask | None:
        key = manifest.digest, client
        if key not in self._masks:
            self._masks[key] = client_random_mask(
                manifest, self.settings.sparsity, self.settings.seed, client
            )
        return self._masks[key]


class RuleMask(MaskSource):
    """The rule chooses and moves the mask; it starts from a mask that keeps everything."""

    why_fixed = "the strategy moves the mask itself"

    def check(self) -> None:
        settings = self.settings
        clashing = {
            "refreshes": settings.refreshes,
            "--warmup-rounds": settings.warmup_rounds,
            "--bytes-per-round": settings.bytes_per_round,
            "--layer-guard": settings.layer_guard,
            f"--criterion {settings.criterion}": settings.criterion != RunSettings().criterion,
        }
        for name, given in clashing.items():
            if given:
                raise SettingsError(
                    f"--strategy {settings.strategy} chooses the mask itself: it cannot be "
                    f"combined with {name}"
                )

    def num_kept(self, manifest: Manifest, rounds_done: int = 0) -> int:
        return kept_for_sparsity(self.settings.sparsity, manifest.num_masked)
