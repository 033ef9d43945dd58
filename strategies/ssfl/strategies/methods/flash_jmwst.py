"""FLASH-JMWST (Babakniya et al. 2023): clients move the mask while they train the weights.

    stage 1 as in FLASH-SPDST (flash_spdst.py)
    every `every` rounds, client k trains w on m while the mask moves, and sends m_k and its values
        w <- mean of each weight over all clients, or over those that hold it (`update_mode`)
        m <- each layer's largest |w|, with the mean densities of the m_k, scaled to the sparsity
    in the rounds between:  FedAvg on m

Clients count equally. The share of weights that move falls linearly to 0 within each round.

Choices where the paper and the released code leave room or differ:
- The released code tests the mean before it is pruned, which is denser than the sparsity says. Here
  the model that is tested, served and sent is w on m.
- The released code scales densities down only, and rounds each layer's count down: `rescale` down.
  Here they are scaled to the sparsity either way. A weight that no client holds cannot be kept.
  With exact growth, clients keep as many weights as they got, so a mask scaled down stays small.
- `densities` mean has the mean densities of the m_k, union those of the weights that any client
  holds: "avg" and "aggregate" in the released code.
- With one local epoch, the mask moves before it. `growth` and `reinitialize` are those of
  flash_spdst.py. Momentum restarts after each epoch of a round that moves the mask (epochs.py).
- The variant for clients of different densities (hetero-FLASH) is left out.
- The first round moves the mask, as in the released code, and then every `every`-th.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState
from ssfl.method.settings import choice, setting
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
    SiteTools,
    StepDone,
    UploadParts,
    Uploads,
    Weights,
)
from ssfl.strategies.epochs import num_epochs
from ssfl.strategies.layerwise import (
    exact_total,
    layer_counts,
    moved,
    num_kept,
    sums_by_layer,
    top_by_layer,
)
from ssfl.strategies.methods.flash_spdst import (
    WARM_UP,
    FlashClient,
    FlashOptions,
    FlashSpdst,
)

MOVE = "move"  # the task of a round that moves the mask


@dataclass(frozen=True)
class JmwstOptions(FlashOptions):
    """Hyper-parameters; the defaults are those of the released code."""

    every: int = setting(1, "rounds between two moves of the mask", ge=1)
    update_mode: str = choice(
        "how weights are averaged; mean: a weight that a client lacks counts as 0; holders: over "
        "the clients that hold it",
        "mean",
        "holders",
    )
    rescale: str = choice("densities to the sparsity; down: only if above", "both", "down")
    densities: str = choice("of the next mask: of clients' masks, or of all", "mean", "union")


class FlashJmwst(FlashSpdst):
    """Moves the mask in some rounds; the others are FedAvg's, inside the mask."""

    Options = JmwstOptions

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        plan = super().plan(position, clients)
        moves = position.rounds_done % self.options.every == 0
        if plan is None or plan.task == WARM_UP or not moves:
            return plan
        holders = self.options.update_mode == "holders"
        reducer = Reducer.WEIGHTED_SUM_BY_HOLDER if holders else Reducer.WEIGHTED_SUM
        return replace(plan, reducer=reducer, task=MOVE)

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        if task != MOVE:
            return super().parts(task, manifest)
        return replace(super().parts(WARM_UP, manifest), values=True)

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        if step.task != MOVE:
            return super().finish(step, state, reduced, uploads)
        assert reduced.votes is not None
        counts = self.next_counts(reduced.votes, reduced.total_weight, state.manifest)
        mask = top_by_layer(np.abs(reduced.values), counts, state.manifest, reduced.votes > 0)
        return moved(self.settings, state, mask, reduced.values)

    def fewest_kept(self, manifest: Manifest, at_first: int) -> int:
        return 1 if self.options.rescale == "down" else at_first

    def next_counts(self, votes: Weights, num_clients: int, manifest: Manifest) -> list[int]:
        """Return how many weights each layer of the next mask keeps."""
        if self.options.densities == "union":
            votes, num_clients = (votes > 0).astype(np.int64), 1
        sums = sums_by_layer(votes, manifest)
        if self.options.rescale == "both":
            total = num_kept(self.settings, manifest)
            return layer_counts(sums, manifest, total)
        means = [Fraction(each, num_clients) for each in sums]
        ratio = min(Fraction(1), exact_total(self.settings, manifest) / (sum(means) or Fraction(1)))
        return [int(mean * ratio) for mean in means]

    def client(self) -> ClientHalf:
        return JmwstClient(self)


class JmwstClient(FlashClient):
    """Sparse learning in stage 1 and in the rounds that move the mask."""

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        if received.task != MOVE:
            return super().train(received, site, memory, on_step)
        return self.learn(received, site, num_epochs(site), on_step)
