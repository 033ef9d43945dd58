"""A strategy: a mask source and a rule, as the coordinator and the simulator use them.

The run calls `plan` for the next step, collects an upload from every client of the step, reduces
the accepted ones and passes the result to `finish`, which returns the next model state. `plan` sees
only counts and names, so it can run inside the pure state machine. `finish` sees the arrays and
runs on a worker thread. Both depend only on their arguments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, ModelVector, Vector
from ssfl.method.settings import RunSettings
from ssfl.method.value_types import commit_values
from ssfl.strategies.contract import (
    ClientHalf,
    ClientId,
    Plan,
    Position,
    Reduced,
    Reducer,
    Rule,
    Scorers,
    StepDone,
    UploadParts,
    Uploads,
    Work,
)
from ssfl.strategies.mask_source import AllWeights, MaskSource

# Name of the extra vector with the rounding error of the newest values, if `downloads` is `values`.
RESIDUAL = "download residual"


class Strategy:
    """A mask source and a rule."""

    def __init__(self, settings: RunSettings, source: MaskSource, rule: Rule) -> None:
        self.settings = settings
        self.source = source
        self.rule = rule

    @property
    def has_own_masks(self) -> bool:
        """True if every client trains under its own mask, from a seed or chosen by the rule."""
        return self.has_seeded_masks or type(self.rule).client_state is not Rule.client_state

    @property
    def has_seeded_masks(self) -> bool:
        """True if every client has a mask of its own, which both ends derive from the seed."""
        return self.source.has_own_masks

    @property
    def moves_mask(self) -> bool:
        """True if the rule chooses the masks, so that rounds may move them."""
        return self.rule.moves_mask

    @property
    def has_client_half(self) -> bool:
        """True if clients do more than train and send the values."""
        return type(self.rule).client is not Rule.client

    @property
    def has_client_memory(self) -> bool:
        """True if clients may keep something between their steps."""
        settings = self.settings
        lossy = settings.value_type != "float32" and settings.error_feedback
        return lossy or self.has_client_half or settings.optimizer_state == "keep"

    @property
    def has_other_weights(self) -> bool:
        """True if the weights that are tested and served are not those that are trained."""
        return type(self.rule).deployed is not Rule.deployed

    @property
    def is_plain_mean(self) -> bool:
        """True if the next model is the mean of the trained values, whatever the model was."""
        return type(self.rule).finish is Rule.finish

    @property
    def is_dense(self) -> bool:
        """True if every weight is kept and trained by every client."""
        return isinstance(self.source, AllWeights)

    @property
    def has_personal_models(self) -> bool:
        """True if the clients keep models of their own, which they test at the end."""
        return self.rule.has_personal_models

    @property
    def is_gossip(self) -> bool:
        """True if clients receive each other's updates."""
        return self.rule.is_gossip

    @property
    def why_fixed(self) -> str:
        """Why there is no mask to refresh; empty if it can be refreshed."""
        return self.source.why_fixed

    @property
    def scorers(self) -> Scorers:
        """The clients that are asked for scores when a mask is chosen."""
        return self.source.scorers

    def begin(self, manifest: Manifest, initial: ModelVector) -> ModelState:
        """Return the state before the first step."""
        return self.rule.begin(self.source.begin(manifest, initial))

    def is_mask_due(self, position: Position) -> bool:
        """Return True if a mask is chosen before the next round."""
        return self.source.is_due(position)

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        """Return the next step for the available clients (sorted), or None at the end."""
        if self.source.is_due(position):
            return self.source.plan(position, clients)
        plan = self.rule.plan(position, clients)
        if plan and self.has_seeded_masks and self.settings.averaging == "holders":
            return replace(plan, reducer=Reducer.WEIGHTED_SUM_BY_HOLDER)
        return plan

    @property
    def sends_values_alone(self) -> bool:
        """True if the updates of every task are values alone, so that they can be clipped."""
        return type(self.rule).parts is Rule.parts

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        """Return the parts of an update in a training step with this task."""
        return self.rule.parts(task, manifest)

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        """Return the state after a step."""
        if self.settings.downloads != "values":
            return self._finish(step, state, reduced, uploads)
        residual = state.extra_vector(RESIDUAL) if RESIDUAL in state.extra else None
        others = {name: item for name, item in state.extra.items() if name != RESIDUAL}
        after = self._finish(step, replace(state, extra=others), reduced, uploads)
        return self._with_residual(step, state.mask, after, residual)

    def _with_residual(
        self, step: StepDone, before: Mask | None, after: ModelState, residual: Vector | None
    ) -> ModelState:
        """Code the values of a training step and keep the residual.

        The argument `residual` lies on the mask `before`; the residual that is kept lies on the
        mask of `after`. The values of a new mask are not coded: clients compute them from the model
        they scored.
        """
        assert after.mask is not None and after.values is not None
        if residual is not None and before is not None and before != after.mask:
            residual = after.mask.gather(before.scatter(residual))
        if step.work is Work.TRAIN:
            values, change, residual = commit_values(self.settings, after.values, residual)
            after = replace(after, values=values, change=change)
        if residual is None:
            return after
        return replace(after, extra={**after.extra, RESIDUAL: residual})

    def _finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        if step.work is Work.SCORE:
            after = self.source.finish(state, reduced.values, step.round_number)
            return self.rule.remasked(state, after)
        if reduced.weights is not None and self.has_seeded_masks:
            assert state.values is not None  # a value that no client held does not change
            mean = np.where(reduced.weights > 0, reduced.values, state.values)
            reduced = replace(reduced, values=mean)
        after = self.rule.finish(step, state, reduced, uploads)
        if after.mask != state.mask and after.mask_epoch == state.mask_epoch:
            return replace(after, mask_epoch=state.mask_epoch + 1, change=None, first=None)
        return after

    def client_state(self, client: ClientId, work: Work, state: ModelState) -> ModelState:
        """Return the state for a client: the same for all, unless clients have their own masks."""
        if work is not Work.TRAIN:
            return state
        mask = self.client_mask(client, state.manifest)
        if mask is None:
            return self.rule.client_state(client, state)
        assert state.values is not None
        return replace(state, mask=mask, values=mask.gather(state.values))

    def client_mask(self, client: ClientId, manifest: Manifest) -> Mask | None:
        """Return the mask that both ends derive for a client; None if they derive none."""
        return self.source.client_mask(client, manifest)

    def vectors(self, state: ModelState) -> Mapping[str, Vector]:
        """Return further vectors, on the mask of the state, that are sent with the model."""
        return self.rule.vectors(state)

    def deployed(self, state: ModelState) -> ModelState:
        """Return the plain weights that are tested, served and exported."""
        return self.rule.deployed(state)

    def num_kept(self, manifest: Manifest, rounds_done: int = 0) -> int:
        """Return how many weights are kept by a mask that is chosen after `rounds_done` rounds."""
        return self.source.num_kept(manifest, rounds_done)

    def num_decisive(self, manifest: Manifest, rounds_done: int = 0) -> int:
        """Return how many of a client's largest scores can affect the mask; 0: all."""
        return self.source.num_decisive(manifest, rounds_done)

    def client(self) -> ClientHalf:
        """Return the client's half of the rule."""
        return self.rule.client()
