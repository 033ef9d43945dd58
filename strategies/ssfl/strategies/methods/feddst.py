"""FedDST (Bibikar et al. 2022): clients move a share of a sparse mask every few rounds.

    m <- magnitude or random, with ERK or uniform densities;  w <- w0 on m
    every round:   clients train w on m;  w <- mean by n_k
    every `every` rounds until `until_round`, instead, at client k:
        train w on m
        prune by |w| to the layers' densities of sparsity s + (1 - s) * alpha
        regrow each layer by |gradient| of one batch, among the inactive weights, from zero
        train the last epochs on m_k;  send m_k and the values on it
    and at the coordinator:
        w <- for each weight the mean by n_k over the clients that hold it
        m <- each layer's largest |w|, as many as before; weights that no client holds drop out

Choices where the paper and the released code leave room or differ:
- The released code grows after the last step. A grown weight is then still zero, and the
  coordinator prunes it again. Here the last `last_epochs` epochs come after growth; 0 is the
  released order. If a round has no more epochs than that, the mask moves before them.
- The released code computes the cosine but uses the constant alpha: `decay` has both.
- The released code regrows among all weights, which sets active ones to zero: `regrow` all.
- The released densities make the sparsities, not the densities, proportional to those of ERK
  (layerwise.py): `layers` linear.
- Layers' counts add up to the exact total, by largest remainders, with one weight in each at least.
  The released code rounds each down: `rounding` floor. A client prunes to counts rounded down.
- A layer that would lose all its weights is not pruned, as in the released code.
- With `every` 10, rounds 10, 20, … move the mask. Momentum restarts after a move (epochs.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import choice, setting
from ssfl.method.streams import Stream
from ssfl.strategies.contract import (
    Answer,
    ClientHalf,
    ClientId,
    Memory,
    OnStep,
    Plan,
    Position,
    Received,
    Reduced,
    Reducer,
    Rule,
    SiteTools,
    StepDone,
    UploadParts,
    Uploads,
)
from ssfl.strategies.epochs import joined, num_epochs
from ssfl.strategies.layerwise import exact_counts, kept_by_layer, moved, run_counts, top_by_layer

ADJUST = "adjust"  # the task of a round that moves the mask


@dataclass(frozen=True)
class FedDstOptions:
    """Hyper-parameters; the defaults are those of the authors' CIFAR runs."""

    layers: str = choice("densities of the layers", "erk", "linear", "uniform")
    rounding: str = choice("rounding of the layers' counts; floor: each down", "exact", "floor")
    init: str = choice("first mask; magnitude: the largest weights", "magnitude", "random")
    alpha: float = setting(0.01, "share of the kept weights that move", le=1.0)
    decay: str = choice("alpha over the rounds; cosine: falls to 0", "cosine", "constant")
    every: int = setting(10, "rounds between two moves of the mask", ge=1)
    until_round: int = setting(0, "last round that may move the mask; 0: half of the rounds")
    last_epochs: int = setting(1, "local epochs after the mask has moved")
    regrow: str = choice("weights that can grow; all: active ones too", "inactive", "all")


def moving_share(alpha: float, decay: str, round_number: int, until: int) -> float:
    """Return the share of weights that move in a round, counted from 0.

    >>> [moving_share(0.4, "cosine", number, 4) for number in (0, 2, 4)]
    [0.4, 0.2, 0.0]
    """
    if round_number >= until:
        return 0.0
    if decay == "constant":
        return alpha
    return alpha / 2 * (1 + math.cos(math.pi * round_number / until))


def adjusted(
    mask: Mask, whole: Vector, gradient: Vector, stay: Sequence[int], counts: Sequence[int],
    manifest: Manifest, grow_all: bool = False,
) -> tuple[Mask, Vector]:  # fmt: skip
    """Return a client's next mask, with `counts` weights in each layer, and the weights on it.

    Each layer keeps the `stay` largest of its weights, and all if that is 0. It regrows those with
    the largest gradients among the weights that are inactive then, or among all, at zero.
    """
    stay = [min(count, n or count) for n, count in zip(stay, counts, strict=True)]
    pruned = top_by_layer(np.abs(whole), stay, manifest, mask.bools())
    missing = [
        count - kept for count, kept in zip(counts, kept_by_layer(pruned, manifest), strict=True)
    ]
    among = None if grow_all else ~pruned.bools()
    grown = top_by_layer(np.abs(gradient), missing, manifest, among).bools()
    values = pruned.scatter(pruned.gather(whole))
    values[: grown.size][grown] = 0
    return Mask.from_bools(pruned.bools() | grown), values


def pruned_back(reduced: Reduced, counts: Sequence[int], manifest: Manifest) -> Mask:
    """Return each layer's largest means among the weights that a client holds."""
    assert reduced.weights is not None
    held = reduced.weights[: manifest.num_masked] > 0
    return top_by_layer(np.abs(reduced.values), counts, manifest, held)


class FedDst(Rule):
    """Moves the mask in some rounds; the others are FedAvg's, inside the mask."""

    Options = FedDstOptions
    moves_mask = True

    def counts(self, manifest: Manifest) -> list[int]:
        """Return how many weights each layer keeps, throughout the run."""
        return run_counts(self.settings, manifest, self.options.layers, self.options.rounding)

    def stay(self, manifest: Manifest, round_number: int) -> list[int]:
        """Return how many weights each layer keeps when a client prunes."""
        options = self.options
        share = moving_share(options.alpha, options.decay, round_number, self.until)
        density = (1 - Fraction(self.settings.sparsity)) * (1 - Fraction(share).limit_denominator())
        return list(map(int, exact_counts(options.layers, manifest, density * manifest.num_masked)))

    @property
    def until(self) -> int:
        """The number of rounds in which the mask may move."""
        return self.options.until_round or self.settings.rounds // 2

    def moves(self, rounds_done: int) -> bool:
        """Return True if the next round moves the mask."""
        due = rounds_done < self.until and (rounds_done + 1) % self.options.every == 0
        return due and self.options.alpha > 0

    def begin(self, state: ModelState) -> ModelState:
        manifest = state.manifest
        scores = np.abs(state.initial).astype(np.float64)
        if self.options.init == "random":
            scores = Stream(self.settings.seed, "feddst mask").uniform(manifest.num_masked)
        mask = top_by_layer(scores, self.counts(manifest), manifest)
        return moved(self.settings, state, mask, state.initial)

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        done = position.rounds_done
        if done < self.settings.rounds and self.moves(done):
            return self.round_of(position, clients, Reducer.WEIGHTED_SUM_BY_HOLDER, ADJUST)
        return super().plan(position, clients)

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        if task != ADJUST:
            return UploadParts()
        return UploadParts(bits=True, bits_required=True, max_kept=sum(self.counts(manifest)))

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        if step.task != ADJUST:
            return super().finish(step, state, reduced, uploads)
        mask = pruned_back(reduced, self.counts(state.manifest), state.manifest)
        return moved(self.settings, state, mask, reduced.values)

    def client(self) -> ClientHalf:
        return FedDstClient(self)


class FedDstClient(ClientHalf):
    """Prunes and regrows before the last epochs of a round that moves the mask."""

    can_be_stacked = True

    def __init__(self, rule: FedDst) -> None:
        self.rule = rule

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        if received.task != ADJUST:
            return super().train(received, site, memory, on_step)
        rule, number, manifest = self.rule, received.round_number, site.manifest
        epochs = num_epochs(site)
        middle = max(0, epochs - rule.options.last_epochs)
        mask, values = received.mask, received.values
        first = site.train(mask, values, number, on_step, epochs=range(middle))
        gradient = site.gradient(mask, first.values, number)
        whole = mask.scatter(first.values)
        stay, grow_all = rule.stay(manifest, number), rule.options.regrow == "all"
        counts = rule.counts(manifest)
        mine, whole = adjusted(mask, whole, gradient, stay, counts, manifest, grow_all)
        values = mine.gather(whole)
        last = site.train(mine, values, number, on_step, epochs=range(middle, epochs))
        return Answer(joined([first, last], [middle, epochs - middle]), bits=mine)
