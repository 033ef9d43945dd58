"""Criteria: which scores choose the mask. All but saliency are controls or other papers' criteria.

A criterion has both halves, like a rule: `mask` runs at the coordinator; `score` runs at a client
and imports torch inside.
"""

from typing import ClassVar

from ssfl.method.controls import magnitude_scores, random_mask, shuffled
from ssfl.method.mask import Mask
from ssfl.method.mask_choice import choose_mask, grow_mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import Scorers, ScoringRequest, SiteTools


class Criterion:
    """Scores of the weights, and the mask that follows from their mean."""

    name: ClassVar[str]
    asked: ClassVar[str] = ""  # the criterion whose scores clients compute; empty: this one
    scorers: ClassVar[Scorers] = Scorers.ALL
    num_batches: ClassVar[int] = 0  # that each client scores; 0: the run's setting decides
    signed: ClassVar[bool] = False  # scores may be negative
    # Only the largest scores of a client affect the mask, so clients may send just those.
    is_decided_by_largest: ClassVar[bool] = False
    is_nested: ClassVar[bool] = False  # a sparser mask lies inside a denser one
    can_grow: ClassVar[bool] = True  # its scores can add weights to a mask
    can_guard: ClassVar[bool] = True  # its scores can be compared within a layer
    scores_pruned: ClassVar[bool] = True  # pruned weights get a score in a pruned model

    def mask(self, state: ModelState, scores: Vector, k: int, settings: RunSettings) -> Mask:
        """Return the mask of k weights, given the mean scores of the clients."""
        is_refresh = state.mask is not None and state.mask.num_kept < state.mask.size
        if settings.refresh_mode == "grow" and is_refresh:
            assert state.mask is not None
            return grow_mask(state.mask, scores, k)
        return choose_mask(scores, k, state.manifest, settings.layer_guard)

    def score(self, site: SiteTools, request: ScoringRequest) -> Vector:
        """Return a client's score of every weight that can be pruned; the largest are kept."""
        raise ValueError(f"criterion {self.name} asks no client for scores")


class Saliency(Criterion):
    """|gradient x weight|: the paper's criterion."""

    name = "saliency"
    is_decided_by_largest = is_nested = True

    def score(self, site: SiteTools, request: ScoringRequest) -> Vector:
        from ssfl.learning.saliency import score_locally

        return score_locally(
            *site.scoring_inputs(request), request.epoch, request.num_batches,
            site.resting_weights(request),
        )  # fmt: skip


class Shuffled(Saliency):
    """The mask of saliency, shuffled within each tensor."""

    name = "shuffled"
    asked = "saliency"
    can_grow = False

    def mask(self, state: ModelState, scores: Vector, k: int, settings: RunSettings) -> Mask:
        chosen = super().mask(state, scores, k, settings)
        return shuffled(chosen, state.manifest, settings.seed, state.mask_epoch)


class OneClient(Saliency):
    """Saliency of one minibatch of one client."""

    name = "one-client"
    asked = "saliency"
    scorers = Scorers.ONE
    num_batches = 1  # as each client scores in the paper


class Random(Criterion):
    """Keeps weights that are chosen at random, from the seed."""

    name = "random"
    scorers = Scorers.NONE
    can_grow = can_guard = False

    def mask(self, state: ModelState, scores: Vector, k: int, settings: RunSettings) -> Mask:
        return random_mask(state.manifest.num_masked, k, settings.seed, state.mask_epoch)


class Magnitude(Criterion):
    """|weight|."""

    name = "magnitude"
    scorers = Scorers.NONE

    def mask(self, state: ModelState, scores: Vector, k: int, settings: RunSettings) -> Mask:
        return super().mask(state, magnitude_scores(state.whole, state.manifest), k, settings)


class SynFlow(Criterion):
    """Synaptic flow (Tanaka et al. 2020): needs no data, so one client computes it."""

    name = "synflow"
    scorers = Scorers.ONE
    scores_pruned = False

    def score(self, site: SiteTools, request: ScoringRequest) -> Vector:
        from ssfl.learning.synflow import synflow_scores

        network, manifest, _, shard, _, _ = site.scoring_inputs(request)
        return synflow_scores(network, manifest, shard.input_shape, request.num_kept)


class Grasp(Criterion):
    """Gradient signal preservation (Wang et al. 2020).

    The mask keeps k weights. The authors' code keeps k + 1: the weight at its threshold stays.
    """

    name = "grasp"
    signed = True
    scores_pruned = False

    def score(self, site: SiteTools, request: ScoringRequest) -> Vector:
        from ssfl.learning.grasp import grasp_locally

        return grasp_locally(*site.scoring_inputs(request), request.epoch, request.num_batches)
