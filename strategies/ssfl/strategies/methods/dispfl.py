"""DisPFL (Dai et al. 2022): gossip between personal sparse models whose masks move.

    m_i <- random, with ERK densities, another one at each client;  w_i <- w0 on m_i
    every round r of R, client i:
        w <- for each weight the mean over i and its neighbours, of those whose m' holds it; else 0
        w_i <- w on m_i;  train w_i on m_i;  publish w_i and m'_i = m_i
        a <- anneal / 2 * (1 + cos(pi * r / R))
        fire:    each layer of m_i drops the ceil(a * kept) smallest |w_i|
        regrow:  each layer adds as many weights, by |gradient| of one batch

A regrown weight gets its value in the next round from the neighbours that hold it, or zero. A
client's own model is w_i on m'_i, after training.

Choices where the paper and the released code leave room or differ:
- The published scripts switch the gradients off and regrow at random: `regrow` random.
- ERK follows layerwise.py: densities are those of the masked weights. The released code computes
  them over all tensors, of which norms and biases become dense first.
- Layers' counts add up to the exact total, by largest remainders, with one weight in each at least.
  The released code rounds each down: `rounding` floor.
- A weight that is fired can be regrown at once, as in the released code. So a dense layer stays
  dense.
- The released code can give clients other densities and let some skip a round; neither is here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import choice, setting
from ssfl.method.streams import Stream
from ssfl.strategies.contract import (
    Answer,
    ClientHalf,
    Memory,
    OnStep,
    PeerModel,
    Received,
    SiteTools,
    UploadParts,
)
from ssfl.strategies.gossip import MODEL, GossipOptions, GossipRule, own_answer
from ssfl.strategies.layerwise import grow_by_layer, kept_by_layer, run_counts, top_by_layer

HELD, NEXT = "held", "next"  # in memory: m', the mask of the last update; m, that of the next round


@dataclass(frozen=True)
class DisPflOptions(GossipOptions):
    """Hyper-parameters; the defaults are those of the released code."""

    layers: str = choice("densities of the layers; erk: Erdős-Rényi-kernel", "erk", "uniform")
    rounding: str = choice("rounding of the layers' counts; floor: each down", "exact", "floor")
    anneal: float = setting(0.5, "share of kept weights that move in the first round", le=1.0)
    regrow: str = choice("weights that are regrown", "gradient", "random")


def moving_share(anneal: float, round_number: int, rounds: int) -> float:
    """Return the share of kept weights that move in a round, counted from 0.

    >>> [round(moving_share(0.5, number, 4), 6) for number in (0, 2, 4)]
    [0.5, 0.25, 0.0]
    """
    return anneal / 2 * (1 + math.cos(math.pi * round_number / rounds))


def mean_over_holders(models: Sequence[PeerModel]) -> Vector:
    """Return the mean of each weight over the models that hold it; zero if none does."""
    total = np.zeros_like(models[0].mask.scatter(models[0].values), dtype=np.float64)
    holders = np.zeros(total.size, dtype=np.int64)
    for model in models:
        total += model.mask.scatter(model.values)
        holders[: model.mask.size] += model.mask.bools()
        holders[model.mask.size :] += 1
    return (total / np.maximum(holders, 1)).astype(np.float32)


def fired(mask: Mask, whole: Vector, share: float, manifest: Manifest) -> Mask:
    """Return the mask without the ceil(share * kept) smallest |w| of each layer."""
    kept = kept_by_layer(mask, manifest)
    stay = [count - math.ceil(share * count - 1e-9) for count in kept]
    return top_by_layer(np.abs(whole), stay, manifest, mask.bools())


def evolved(
    mask: Mask, whole: Vector, scores: npt.NDArray[np.floating], share: float, manifest: Manifest
) -> Mask:
    """Return the mask after firing by |w| and regrowing the largest scores, layer by layer."""
    left = fired(mask, whole, share, manifest)
    before, after = kept_by_layer(mask, manifest), kept_by_layer(left, manifest)
    missing = [count - kept for count, kept in zip(before, after, strict=True)]
    return grow_by_layer(left, scores, missing, manifest)


class DisPfl(GossipRule):
    """Sparse models, each with a mask of its own that moves."""

    Options = DisPflOptions
    moves_mask = True

    def counts(self, manifest: Manifest) -> list[int]:
        """Return how many weights each layer keeps, throughout the run."""
        return run_counts(self.settings, manifest, self.options.layers, self.options.rounding)

    def first_mask(self, client: str, manifest: Manifest) -> Mask:
        """Return the random mask that a client starts with."""
        stream = Stream(self.settings.seed, "dispfl mask", client)
        return top_by_layer(stream.uniform(manifest.num_masked), self.counts(manifest), manifest)

    def begin(self, state: ModelState) -> ModelState:
        self.counts(state.manifest)  # raises now if the sparsity is impossible
        return state

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        return UploadParts(bits=True, bits_required=True, max_kept=sum(self.counts(manifest)))

    def client(self) -> ClientHalf:
        return DisPflClient(self)


class DisPflClient(ClientHalf):
    """Mixes with its neighbours on its own mask, trains, and moves the mask."""

    can_be_stacked = True

    def __init__(self, rule: DisPfl) -> None:
        self.rule = rule

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        rule, number, manifest = self.rule, received.round_number, site.manifest
        mask = memory.mask(NEXT) or rule.first_mask(site.client_id, manifest)
        held, values, models = memory.mask(HELD), memory.vector(MODEL), [*received.peers.values()]
        if held is not None and values is not None:
            models.insert(0, PeerModel(held, values))
        whole = mean_over_holders(models) if models else site.initial
        trained = site.train(mask, mask.gather(whole), number, on_step)
        memory.put(MODEL, trained.values)
        memory.put(HELD, mask)
        share = moving_share(rule.options.anneal, number, rule.settings.rounds)
        scores = self.scores(mask, trained.values, site, number)
        memory.put(NEXT, evolved(mask, mask.scatter(trained.values), scores, share, manifest))
        return own_answer(trained, mask)

    def scores(
        self, mask: Mask, values: Vector, site: SiteTools, number: int
    ) -> npt.NDArray[np.floating]:
        """Return the scores of all weights; the largest are regrown."""
        if self.rule.options.regrow == "random":
            return site.stream("dispfl regrow", number).uniform(mask.size)
        return np.abs(site.gradient(mask, values, number))

    def personal(self, received: Received, site: SiteTools, memory: Memory) -> Vector | None:
        mask, values = memory.mask(HELD), memory.vector(MODEL)
        if mask is None or values is None:
            return None
        return received.mask.gather(mask.scatter(values))
