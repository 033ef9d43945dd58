"""FLASH-SPDST (Babakniya et al. 2023): clients find the densities of the layers, then FedAvg.

    stage 1, one step before the rounds:
        m <- random, the same density in every layer;  w <- w0
        some clients train w on m for E_d epochs; after every epoch but the last
            each layer drops its smallest |w|, a share that falls linearly to 0
            the layers regrow as many in total, by their mean |w|, at random places
        and send their masks alone
    m <- random, with the mean densities of these masks;  w <- w0
    stage 2:  FedAvg on m, without weights for the clients

Choices where the paper and the released code leave room or differ:
- `growth` exact fills a mask up to what `sparsity` says, in whole weights. The released code rounds
  parts up, shares the rest in fractions among all layers, rounds down, and corrects later moves.
- In both, a layer regrows at most 99 % of its free places. A layer with a sparsity below 0.2 whose
  mean |w| is above average drops at most that share.
- Masks have exact sizes; other layers get what a full one cannot hold. The released code draws each
  weight by itself. Its stage 2 starts from new weights, not from w0: `reinitialize`.
- Stage 1 has the batches and rates of the first rounds. With one epoch, the mask moves before it,
  not in its middle. Linear layers are pruned, too. Momentum restarts in each epoch (epochs.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from ssfl.method.evaluation import LocalResult
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.sampling import cohort_size
from ssfl.method.settings import choice, setting
from ssfl.method.streams import Stream
from ssfl.strategies import contract as seam
from ssfl.strategies import layerwise
from ssfl.strategies.contract import Answer, ClientHalf, Memory, OnStep, Received, Rule, SiteTools
from ssfl.strategies.epochs import joined, num_epochs

WARM_UP = "warm-up"  # the first stage, and the task of its step


@dataclass(frozen=True)
class FlashOptions:
    """Hyper-parameters; the defaults are those of the released code."""

    init_fraction: float = setting(0.1, "share of clients in stage 1", positive=True, le=1.0)
    init_epochs: int = setting(10, "local epochs in stage 1", ge=1)
    prune_rate: float = setting(0.25, "share of kept weights that move; falls to 0", le=1.0)
    growth: str = choice("rounding of what layers regrow", "exact", "released")
    reinitialize: bool = setting(False, "draw new first weights after stage 1")


def move_times(epochs: int, rate: float) -> dict[int, float]:
    """Return after which epochs the mask moves, and the share that moves."""
    moves = {epoch: rate * (1 - epoch / epochs) for epoch in range(1, epochs)}
    return moves or {0: rate / 2}


def layer_importance(mask: Mask, whole: Vector, manifest: Manifest) -> list[float]:
    """Return the mean |w| of the kept weights of each layer, divided by the sum of the means."""
    kept, weights = mask.bools(), np.abs(whole[: manifest.num_masked]).astype(np.float64)
    layers = [weights[place][kept[place]] for _, place in manifest.masked()]
    means = [float(layer.sum()) / max(1, layer.size) for layer in layers]
    return [mean / sum(means) if any(means) else 1 / len(means) for mean in means]


def num_dropped(kept: int, size: int, rate: float, is_important: bool) -> int:
    """Return how many weights a layer drops."""
    sparsity = (size - kept) / size
    return ceil((min(sparsity, rate) if is_important and sparsity < 0.2 else rate) * kept - 1e-9)


def growth_counts(importance: Sequence[float], free: Sequence[int], budget: int) -> list[int]:
    """Split a budget by importance, at most 99 % of free places; spread what remains evenly."""
    most = [99 * places // 100 for places in free]
    counts = [min(limit, int(s * budget)) for s, limit in zip(importance, most, strict=True)]
    while (missing := min(budget, sum(most)) - sum(counts)) > 0:
        room = [i for i, limit in enumerate(most) if counts[i] < limit][:missing]
        for i in room:
            counts[i] += min(missing // len(room), most[i] - counts[i])
    return counts


def move(
    mask: Mask, whole: Vector, rate: float, total: int, stream: Stream, manifest: Manifest,
    correction: float | None = None,
) -> Mask:  # fmt: skip
    """Return the mask after a drop of the smallest weights and random growth to `total`.

    With a correction, it grows as in the released code, that much more than it drops.
    """
    sizes, before = layerwise.layer_sizes(manifest), layerwise.kept_by_layer(mask, manifest)
    importance = layer_importance(mask, whole, manifest)
    stay = [
        kept - num_dropped(kept, size, rate, share > 1 / len(sizes))
        for kept, size, share in zip(before, sizes, importance, strict=True)
    ]
    pruned = layerwise.top_by_layer(np.abs(whole), stay, manifest, mask.bools())
    free = [size - kept for size, kept in zip(sizes, stay, strict=True)]
    counts = growth_counts(importance, free, total - sum(stay))
    if correction is not None:
        budget = sum(before) - sum(stay) + correction
        counts = layerwise.fractional_growth(importance, free, budget)
    scores = stream.uniform(manifest.num_masked)
    return layerwise.grow_by_layer(pruned, scores, counts, manifest)


class FlashSpdst(Rule):
    """A step of sparse learning for the densities of the layers, then FedAvg inside a mask."""

    Options = FlashOptions
    moves_mask = True

    def begin(self, state: ModelState) -> ModelState:
        counts = layerwise.run_counts(self.settings, state.manifest, "uniform")
        return self.restarted(state, counts, WARM_UP)

    def plan(self, position: seam.Position, clients: Sequence[seam.ClientId]) -> seam.Plan | None:
        if position.stage != WARM_UP:
            plan = super().plan(position, clients)
            return plan and replace(plan, equal_weights=True)
        some = replace(self.settings, client_fraction=self.options.init_fraction)
        count = cohort_size(some, len(clients)) + position.spare
        stream = Stream(self.settings.seed, "flash clients", position.attempt)
        cohort = tuple(clients[i] for i in stream.choose(len(clients), count))
        task = seam.Plan(seam.Work.TRAIN, cohort, equal_weights=True, task=WARM_UP)
        return replace(task, counts_as_round=False)

    def parts(self, task: str, manifest: Manifest) -> seam.UploadParts:
        if task != WARM_UP:
            return seam.UploadParts()
        most = (
            layerwise.num_kept(self.settings, manifest) if self.options.growth == "exact" else None
        )
        return seam.UploadParts(values=False, bits=True, bits_required=True, max_kept=most)

    def finish(
        self, step: seam.StepDone, state: ModelState, reduced: seam.Reduced, uploads: seam.Uploads
    ) -> ModelState:
        if step.task != WARM_UP:
            return super().finish(step, state, reduced, uploads)
        return self.restarted(state, self.mean_counts(reduced, state.manifest), stage="")

    def mean_counts(self, reduced: seam.Reduced, manifest: Manifest) -> list[int]:
        """Return the mean densities of the clients' masks, scaled to the run's sparsity."""
        assert reduced.votes is not None
        shares = layerwise.sums_by_layer(reduced.votes, manifest)
        total = layerwise.num_kept(self.settings, manifest)
        return layerwise.layer_counts(shares, manifest, total)

    def restarted(self, state: ModelState, counts: Sequence[int], stage: str) -> ModelState:
        """Return the state with a new random mask and initial or, after stage 1, new weights."""
        seed, manifest, whole = self.settings.seed, state.manifest, state.initial
        scores = Stream(seed, "flash mask", stage).uniform(manifest.num_masked)
        mask = layerwise.top_by_layer(scores, counts, manifest)
        if self.options.reinitialize and not stage:
            whole = initial_vector(manifest, int(Stream(seed, "flash w0").words(1)[0]), sent=whole)
        return replace(layerwise.moved(self.settings, state, mask, whole), stage=stage)

    def client(self) -> ClientHalf:
        return FlashClient(self)


class FlashClient(ClientHalf):
    """Sparse learning in stage 1, plain training in stage 2."""

    can_be_stacked = True

    def __init__(self, rule: FlashSpdst) -> None:
        self.options = rule.options

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        if received.task != WARM_UP:
            return super().train(received, site, memory, on_step)
        return self.learn(received, site, self.options.init_epochs, on_step)

    def learn(self, received: Received, site: SiteTools, epochs: int, on_step: OnStep) -> Answer:
        """Train while the mask moves; return the mask and the values on it."""
        mask, values, parts = received.mask, received.values, list[LocalResult]()
        moves, total = move_times(epochs, self.options.prune_rate), mask.num_kept
        missed = list[float]()  # of the size that the sparsity asks for, by each move
        correction = 0.0 if self.options.growth == "released" else None
        stream = site.stream(f"flash {received.task}", received.round_number)
        for epoch in range(epochs):
            if epoch in moves:
                whole = mask.scatter(values)
                mask = move(mask, whole, moves[epoch], total, stream, site.manifest, correction)
                if correction is not None:
                    wanted = layerwise.exact_total(site.settings, site.manifest)
                    missed.append(float(wanted - mask.num_kept))
                    correction = correction / 4 + 0.75 * missed[-1] + sum(missed) / len(missed)
                values = mask.gather(whole)  # grown weights start at zero
            rounds, place = divmod(epoch, num_epochs(site))
            number = received.round_number + rounds
            parts.append(site.train(mask, values, number, on_step, epochs=range(place, place + 1)))
            values = parts[-1].values
        return Answer(joined(parts, [1] * epochs), bits=mask)
