"""Top-k weights: clients train every weight, and send the k largest (a baseline of SSFL's paper).

    client i:  w_i <- local SGD of all weights, from the received model with zeros off its mask
               m_i <- the k largest |w_i| over all layers;  send m_i and w_i on it
    server:    w   <- mean of the w_i;  m <- the union of the m_i;  send w on m

k follows from --sparsity. Norms, biases and running statistics are always sent. The first round is
dense, and the model that is tested and served is the union: up to n times as dense as an update.

The paper does not say what a weight becomes that some clients do not send; `averaging` has
- zeros     it counts as zero at these clients;
- holders   the mean is over the clients that send it;
- keep-old  as holders, and a weight that no client sends keeps its value and its place in the mask.
            The global model thus stays dense, and only updates are sparse.

The released code selects by the signed value, and so drops all large negative weights. Here |w|
decides, as the name says; of equal weights the first is sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ssfl.method.density import kept_for_sparsity
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask, top_k
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import choice
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
    Weights,
    committed,
)


@dataclass(frozen=True)
class TopkOptions:
    """Hyper-parameters."""

    averaging: str = choice(
        "a weight that some clients do not send; zeros: counts as zero; holders: mean over those "
        "that send it; keep-old: as holders, and a weight that no client sends does not change",
        "zeros",
        "holders",
        "keep-old",
    )


def largest_weights(whole: Vector, k: int, num_masked: int) -> Mask:
    """Return the mask of the k largest magnitudes of the masked weights.

    >>> largest_weights(np.array([1, -3, 2, -2, 9], dtype=np.float32), 2, 4).bools().tolist()
    [False, True, True, False]
    """
    return top_k(np.abs(whole[:num_masked]), k)


def union(votes: Weights) -> Mask:
    """Return the mask of the weights that a client sent."""
    return Mask.from_bools(votes > 0)


def kept_old(mask: Mask, values: Vector, sent: Mask, mean: Vector) -> tuple[Mask, Vector]:
    """Return the union of two masks, and the whole model of new values over old ones."""
    both = Mask.from_bools(mask.bools() | sent.bools())
    return both, sent.scatter(sent.gather(mean), onto=mask.scatter(values))


class TopkWeights(Rule):
    """The mask is the union of what the clients sent in the last round."""

    Options = TopkOptions
    moves_mask = True

    def num_kept(self, manifest: Manifest) -> int:
        """Return k."""
        return kept_for_sparsity(self.settings.sparsity, manifest.num_masked)

    def begin(self, state: ModelState) -> ModelState:
        self.num_kept(state.manifest)  # raises now, not in the first round, if it is impossible
        return state

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        plan = super().plan(position, clients)
        if plan and self.options.averaging != "zeros":
            return replace(plan, reducer=Reducer.WEIGHTED_SUM_BY_HOLDER)
        return plan

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        return UploadParts(bits=True, bits_required=True, max_kept=self.num_kept(manifest))

    def max_kept(self, manifest: Manifest, num_clients: int) -> int:
        keeps_old = self.options.averaging == "keep-old"
        union = manifest.num_masked if keeps_old else num_clients * self.num_kept(manifest)
        return min(manifest.num_masked, union)

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        assert state.mask is not None and state.values is not None and reduced.votes is not None
        mask, whole = union(reduced.votes), reduced.values
        if self.options.averaging == "keep-old":
            mask, whole = kept_old(state.mask, state.values, mask, whole)
        values = mask.gather(whole)
        if mask == state.mask:
            return committed(self.settings, state, values)
        return replace(state, mask=mask, values=values)

    def client(self) -> ClientHalf:
        return TopkClient(self)


class TopkClient(ClientHalf):
    """Trains every weight; sends the largest."""

    can_be_stacked = True

    def __init__(self, rule: TopkWeights) -> None:
        self.rule = rule

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        num_masked = site.manifest.num_masked
        start = received.mask.scatter(received.values)
        trained = site.train(Mask.full(num_masked), start, received.round_number, on_step)
        sent = largest_weights(trained.values, self.rule.num_kept(site.manifest), num_masked)
        return Answer(replace(trained, values=sent.gather(trained.values)), bits=sent)
