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
- In the released code the numbers of weights vary, and densities above 1 are cut. Here a mask keeps
  what `sparsity` says, growth fills up to that, and other layers get what a full layer cannot hold.
- As there, a layer regrows at most 99 % of its free places, and the others share the rest evenly.
  A layer with a sparsity below 0.2 whose mean |w| is above average drops at most that share.
- With one epoch, the released code moves the mask in its middle; here the mask moves before it.
- Stage 1 has the batches and rates of the first rounds. Linear layers are pruned, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from ssfl.method.evaluation import LocalResult
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.sampling import cohort_size
from ssfl.method.settings import setting
from ssfl.method.streams import Stream
from ssfl.strategies import layerwise
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
    Rule,
    SiteTools,
    StepDone,
    UploadParts,
    Uploads,
    Work,
)
from ssfl.strategies.epochs import joined, num_epochs

WARM_UP = "warm-up"  # the first stage, and the task of its step


@dataclass(frozen=True)
class FlashOptions:
    """Hyper-parameters; the defaults are those of the released code."""

    init_fraction: float = setting(0.1, "share of clients in stage 1", positive=True, le=1.0)
    init_epochs: int = setting(10, "local epochs in stage 1", ge=1)
    prune_rate: float = setting(0.25, "share of kept weights that move; falls to 0", le=1.0)


def move_times(epochs: int, rate: float) -> dict[int, float]:
    """Return after which epochs the mask moves, and the share that moves.

    >>> move_times(4, 0.5), move_times(1, 0.5)
    ({1: 0.375, 2: 0.25, 3: 0.125}, {0: 0.25})
    """
    moves = {epoch: rate * (1 - epoch / epochs) for epoch in range(1, epochs)}
    return moves or {0: rate / 2}


def layer_importance(mask: Mask, whole: Vector, manifest: Manifest) -> list[float]:
    """Return the mean |w| of the kept weights of each layer, divided by the sum of the means."""
    kept, weights = mask.bools(), np.abs(whole[: manifest.num_masked]).astype(np.float64)
    sums = [weights[place][kept[place]].sum() for _, place in manifest.masked()]
    counts = layerwise.kept_by_layer(mask, manifest)
    means = [float(s) / max(1, count) for s, count in zip(sums, counts, strict=True)]
    return [mean / sum(means) if any(means) else 1 / len(means) for mean in means]


def num_dropped(kept: int, size: int, rate: float, is_important: bool) -> int:
    """Return how many weights a layer drops."""
    sparsity = (size - kept) / size
    return ceil((min(sparsity, rate) if is_important and sparsity < 0.2 else rate) * kept - 1e-9)


def growth_counts(importance: Sequence[float], free: Sequence[int], budget: int) -> list[int]:
    """Return how many weights each layer grows: by importance, at most 99 % of its free places.

    What remains of `budget` is spread evenly over the layers with room, as far as there is room.
    """
    most = [99 * places // 100 for places in free]
    counts = [min(limit, int(s * budget)) for s, limit in zip(importance, most, strict=True)]
    while (missing := min(budget, sum(most)) - sum(counts)) > 0:
        room = [i for i, limit in enumerate(most) if counts[i] < limit][:missing]
        for i in room:
            counts[i] += min(missing // len(room), most[i] - counts[i])
    return counts


def move(
    mask: Mask, whole: Vector, rate: float, total: int, stream: Stream, manifest: Manifest
) -> Mask:
    """Return the mask after a drop of the smallest weights and random growth to `total`."""
    sizes, before = layerwise.layer_sizes(manifest), layerwise.kept_by_layer(mask, manifest)
    importance = layer_importance(mask, whole, manifest)
    stay = [
        kept - num_dropped(kept, size, rate, share > 1 / len(sizes))
        for kept, size, share in zip(before, sizes, importance, strict=True)
    ]
    pruned = layerwise.top_by_layer(np.abs(whole), stay, manifest, mask.bools())
    free = [size - kept for size, kept in zip(sizes, stay, strict=True)]
    counts = growth_counts(importance, free, total - sum(stay))
    scores = stream.uniform(manifest.num_masked)
    return layerwise.grow_by_layer(pruned, scores, counts, manifest)


def learn(received: Received, site: SiteTools, epochs: int, rate: float, on_step: OnStep) -> Answer:
    """Train while the mask moves; return the mask and the values on it."""
    mask, values, parts = received.mask, received.values, list[LocalResult]()
    total, moves, per_round = mask.num_kept, move_times(epochs, rate), num_epochs(site)
    stream = site.stream(f"flash {received.task}", received.round_number)
    for epoch in range(epochs):
        if epoch in moves:
            whole = mask.scatter(values)
            mask = move(mask, whole, moves[epoch], total, stream, site.manifest)
            values = mask.gather(whole)  # grown weights start at zero
        rounds, place = divmod(epoch, per_round)
        number = received.round_number + rounds
        parts.append(site.train(mask, values, number, on_step, epochs=range(place, place + 1)))
        values = parts[-1].values
    return Answer(joined(parts, [1] * epochs), bits=mask)


class FlashSpdst(Rule):
    """A step of sparse learning for the densities of the layers, then FedAvg inside a mask."""

    Options = FlashOptions
    moves_mask = True

    def begin(self, state: ModelState) -> ModelState:
        counts = layerwise.run_counts(self.settings, state.manifest, "uniform")
        return self.restarted(state, counts, WARM_UP)

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        if position.stage != WARM_UP:
            plan = super().plan(position, clients)
            return plan and replace(plan, equal_weights=True)
        some = replace(self.settings, client_fraction=self.options.init_fraction)
        count = cohort_size(some, len(clients)) + position.spare
        stream = Stream(self.settings.seed, "flash clients", position.attempt)
        cohort = tuple(clients[i] for i in stream.choose(len(clients), count))
        return Plan(Work.TRAIN, cohort, equal_weights=True, task=WARM_UP, counts_as_round=False)

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        if task != WARM_UP:
            return UploadParts()
        total = layerwise.num_kept(self.settings, manifest)
        return UploadParts(values=False, bits=True, bits_required=True, max_kept=total)

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        if step.task != WARM_UP:
            return super().finish(step, state, reduced, uploads)
        return self.restarted(state, self.mean_counts(reduced, state.manifest), stage="")

    def mean_counts(self, reduced: Reduced, manifest: Manifest) -> list[int]:
        """Return the mean densities of the clients' masks, scaled to the run's sparsity."""
        assert reduced.votes is not None
        shares = layerwise.sums_by_layer(reduced.votes, manifest)
        total = layerwise.num_kept(self.settings, manifest)
        return layerwise.layer_counts(shares, manifest, total)

    def restarted(self, state: ModelState, counts: Sequence[int], stage: str) -> ModelState:
        """Return the state with a new random mask and the initial weights."""
        scores = Stream(self.settings.seed, "flash mask", stage).uniform(state.manifest.num_masked)
        mask = layerwise.top_by_layer(scores, counts, state.manifest)
        return replace(layerwise.moved(self.settings, state, mask, state.initial), stage=stage)

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
        return learn(received, site, self.options.init_epochs, self.options.prune_rate, on_step)
