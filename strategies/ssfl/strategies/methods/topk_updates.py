"""Top-k updates with error feedback: clients send the largest changes, and keep the rest for later.

    client i:  y_i <- local SGD of all weights, from the received model x
               u_i <- y_i - x + r_i
               send the k largest |u_i| over all layers;  r_i <- the rest of u_i
    server:    x   <- x + mean of the sent changes, where a change that was not sent counts as zero

It is gradient sparsification (Aji and Heafield 2017, Stich et al. 2018) of local updates, as in
Sattler et al. 2019. k is `share` of the conv and linear weights. Norms, biases and running
statistics are always sent. A round changes only weights that a client of it sent.

Choices:
- A client sends x + u_i on the k places, not u_i. Both ends hold x, so this costs the same, and the
  checks of values apply. What rounding to float32 and a lossy value type lose is part of r_i.
- r_i stays at the client. A step that does not count leaves it as it was. A client that is sampled
  rarely adds changes to a model that has moved on.
- Of equal changes the first is sent. `--no-error-feedback` drops the rest of an update.
- Deep Gradient Compression (Lin et al. 2018) also accumulates momentum at the client and raises the
  sparsity over the first epochs. Sparse ternary compression sends one magnitude and signs. Both
  are left out.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask, top_k
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import setting
from ssfl.strategies.contract import (
    Answer,
    ClientHalf,
    Memory,
    OnStep,
    Received,
    Reduced,
    Rule,
    SiteTools,
    StepDone,
    UploadParts,
    Uploads,
    Weights,
    committed,
    take_coding_error,
)

RESIDUAL = "residual"  # (manifest.size,) r_i, in memory


@dataclass(frozen=True)
class TopkUpdatesOptions:
    """Hyper-parameters."""

    share: float = setting(
        0.02, "share of the conv and linear weights whose changes a client sends", positive=True,
        le=1.0,
    )  # fmt: skip


def num_sent(share: float, num_masked: int) -> int:
    """Return k, at least 1; the share is taken as the decimal that it was written as.

    >>> num_sent(0.29, 100)
    29
    """
    return max(1, int(Fraction(str(share)) * num_masked))


def split(x: Vector, update: Vector, k: int, num_masked: int) -> tuple[Mask, Vector, Vector]:
    """Return the places to send, the values on them, and the rest of the update.

    >>> x, update = (np.array(row, dtype=np.float32) for row in ([1, 1, 1, 1], [2, -3, 1, 4]))
    >>> mask, values, rest = split(x, update, 1, num_masked=3)
    >>> mask.bools().tolist(), values.tolist(), rest.tolist()
    ([False, True, False], [-2.0, 5.0], [2.0, 0.0, 1.0, 0.0])
    """
    mask = top_k(np.abs(update[:num_masked]), k)
    values = mask.gather(x + update)
    lost = mask.gather(update) - (values - mask.gather(x))  # by rounding x + update
    return mask, values, mask.scatter(lost, onto=update)


def stepped(x: Vector, mean: Vector, votes: Weights, total_weight: int) -> Vector:
    """Return x plus the mean change, where `mean` has zeros for values that a client did not send.

    `votes` has the weight of the clients that sent each masked weight.
    """
    after, size = mean.copy(), votes.size
    after[:size] += x[:size] * (1 - votes / total_weight)
    return after


class TopkUpdates(Rule):
    """FedAvg of sparse changes."""

    Options = TopkUpdatesOptions
    dense = True

    def num_sent(self, manifest: Manifest) -> int:
        """Return k."""
        return num_sent(self.options.share, manifest.num_masked)

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        return UploadParts(bits=True, bits_required=True, max_kept=self.num_sent(manifest))

    def max_changed(self, manifest: Manifest, num_clients: int) -> int:
        return min(manifest.num_masked, num_clients * self.num_sent(manifest))

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        assert state.values is not None and reduced.votes is not None
        after = stepped(state.values, reduced.values, reduced.votes, reduced.total_weight)
        return committed(self.settings, state, after)

    def client(self) -> ClientHalf:
        return TopkUpdatesClient(self)


class TopkUpdatesClient(ClientHalf):
    """Trains every weight; sends the largest changes and keeps the others."""

    can_be_stacked = True

    def __init__(self, rule: TopkUpdates) -> None:
        self.rule = rule

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        x, manifest = received.values, site.manifest
        trained = site.train(received.mask, x, received.round_number, on_step)
        update = trained.values - x
        for kept in (memory.vector(RESIDUAL), take_coding_error(memory)):
            if kept is not None:
                update += kept
        k = self.rule.num_sent(manifest)
        sent, values, rest = split(x, update, k, manifest.num_masked)
        if site.settings.error_feedback:
            memory.put(RESIDUAL, rest)
        return Answer(replace(trained, values=values), bits=sent)
