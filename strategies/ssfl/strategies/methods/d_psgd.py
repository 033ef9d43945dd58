"""D-PSGD (Lian et al. 2017), as the comparison of DisPFL and SSFL runs it: average, then train.

    every round, client i:
        x_i <- mean of x_i and the models of its neighbours N(i), all of the last round
        x_i <- local SGD from x_i;  publish x_i

D-PSGD-FT, with `--personalize-epochs`: after the last round every client trains the mean of all
models on its own data. Without it, a client's own model is x_i.

Choices where the papers and released code leave room or differ:
- Lian et al. take one gradient step for each exchange, at the model before averaging, and their
  mixing matrix is symmetric and doubly stochastic. DisPFL's code trains whole epochs from the
  average, and its random graph is directed: only the rows sum to 1. `topology` ring and full are
  symmetric.
- DisPFL's code seeds the graph by round + client, so client i has the neighbours that client i + 1
  had a round before. Here the stream is (seed, round, client).
- DisPFL's code fine-tunes at the initial learning rate; here `--personalize-lr` decides.
"""

from collections.abc import Sequence

import numpy as np

from ssfl.method.model_state import Vector
from ssfl.strategies.contract import (
    Answer,
    ClientHalf,
    Memory,
    OnStep,
    Received,
    SiteTools,
)
from ssfl.strategies.gossip import MODEL, GossipRule, own_answer


def mean_of(models: Sequence[Vector]) -> Vector:
    """Return the plain mean, summed in double precision in the given order.

    >>> mean_of([np.float32([1, 2]), np.float32([2, 4]), np.float32([6, 0])]).tolist()
    [3.0, 2.0]
    """
    total = np.zeros(models[0].size, dtype=np.float64)
    for model in models:
        total += model
    return (total / len(models)).astype(np.float32)


class DPsgd(GossipRule):
    """Dense models that are averaged with those of neighbours."""

    dense = True
    fine_tunes_mean = True

    def client(self) -> ClientHalf:
        return DPsgdClient()


class DPsgdClient(ClientHalf):
    """Averages with its neighbours, then trains."""

    can_be_stacked = True

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        own = memory.vector(MODEL)
        own = site.initial if own is None else own
        start = mean_of([own, *(peer.values for peer in received.peers.values())])
        trained = site.train(received.mask, start, received.round_number, on_step)
        memory.put(MODEL, trained.values)
        return own_answer(trained)

    def personal(self, received: Received, site: SiteTools, memory: Memory) -> Vector | None:
        return None if site.settings.personalize_epochs else memory.vector(MODEL)
