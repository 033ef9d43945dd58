"""FedFOMO (Zhang et al. 2021): each client weights the models of others by how they help it.

    every round, client i, with its models th_ref and th_i from before and after the training of
    the last round, the candidates' models th_n, and the loss L_i on its validation samples:
        w_n <- (L_i(th_ref) - L_i(th_n)) / |th_n - th_ref|,  for each candidate and for th_i itself
        p_n <- p_n + w_n
        th <- th_ref + sum of max(0, w_n) / sum of max(0, w) * (th_n - th_ref)
        th_i <- local SGD from th;  publish th_i

    candidates: G others; each is the best by affinity p, or, with probability epsilon, a random one

If no w_n is positive, th is th_ref: the last training is discarded. A candidate at distance zero
has weight 0. Affinities stay at the client. A client's own model is th_i, after training.

Choices where the paper and released code leave room or differ:
- The norm is Euclidean. In the authors' code the default is the sum of absolute differences, and
  "l2" is the squared distance: `norm` has both.
- The mix of a round is computed at the start of the next one: the same sequence of steps, so that
  all candidates are of the same round. DisPFL's port takes others' models of the round before.
- epsilon falls by `epsilon_decay` in each round, as in the authors' code. The port flips a coin
  between the best and random candidates.
- Without validation samples the run is refused; `split` train uses the training samples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssfl.method.model_state import Vector
from ssfl.method.settings import choice, setting
from ssfl.method.streams import Stream
from ssfl.strategies.contract import (
    Answer,
    ClientHalf,
    ClientId,
    Memory,
    OnStep,
    Received,
    SiteTools,
)
from ssfl.strategies.gossip import MODEL, GossipRule, own_answer

REFERENCE = "reference"  # in memory: th_ref
AFFINITY = "affinity/"  # in memory, followed by the other client's name: p_n


@dataclass(frozen=True)
class FedFomoOptions:
    """Hyper-parameters; the defaults are those of the authors' code, with 10 candidates."""

    neighbours: int = setting(10, "candidates: clients whose models a client receives", ge=1)
    epsilon: float = setting(0.3, "probability of a random candidate in the first round", le=1.0)
    epsilon_decay: float = setting(0.05, "fall of epsilon in each round", le=1.0)
    norm: str = choice("distance of two models", "l2", "l1", "squared")
    split: str = choice("samples that measure the losses", "validation", "train")


def distance(model: Vector, reference: Vector, norm: str) -> float:
    """Return the distance of two models.

    >>> [distance(np.float32([3, 4]), np.float32([0, 0]), norm) for norm in ("l2", "l1", "squared")]
    [5.0, 7.0, 25.0]
    """
    apart = model.astype(np.float64) - reference
    if norm == "l1":
        return float(np.abs(apart).sum())
    squared = float(np.square(apart).sum())
    return squared if norm == "squared" else math.sqrt(squared)


def first_order_weight(reference_loss: float, loss: float, apart: float) -> float:
    """Return w_n, negative for a model that is worse; 0 at distance zero and if it diverged."""
    weight = (reference_loss - loss) / apart if apart > 0 else 0.0
    return weight if math.isfinite(weight) else 0.0


def mixed(reference: Vector, models: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Return the reference moved towards the models with positive weights."""
    positive = [max(0.0, weight) for weight in weights]
    if not any(positive):
        return reference
    result = reference.astype(np.float64)
    for model, weight in zip(models, positive, strict=True):
        result += weight / sum(positive) * (model.astype(np.float64) - reference)
    return result.astype(np.float32)


def candidates(
    affinities: Sequence[float], count: int, epsilon: float, stream: Stream
) -> tuple[int, ...]:
    """Return the chosen places, ascending; of equal affinities, a random one is better."""
    draws = stream.uniform(count)
    shuffled = [int(place) for place in stream.permutation(len(affinities))]
    best = sorted(shuffled, key=lambda place: -affinities[place])
    chosen: list[int] = []
    for draw in draws[: len(affinities)]:
        ranking = shuffled if draw < epsilon else best
        chosen.append(next(place for place in ranking if place not in chosen))
    return tuple(sorted(chosen))


class FedFomo(GossipRule):
    """Dense models that are mixed by first-order weights."""

    Options = FedFomoOptions
    dense = True

    def neighbours(
        self, round_number: int, client: ClientId, others: Sequence[ClientId], memory: Memory
    ) -> tuple[ClientId, ...]:
        options = self.options
        known = [memory.vector(AFFINITY + name) for name in others]
        affinities = [0.0 if value is None else float(value[0]) for value in known]
        epsilon = options.epsilon - round_number * options.epsilon_decay
        stream = Stream(self.settings.seed, "candidates", round_number, client)
        chosen = candidates(affinities, options.neighbours, epsilon, stream)
        return tuple(others[place] for place in chosen)

    def client(self) -> ClientHalf:
        return FedFomoClient(self.options)


class FedFomoClient(ClientHalf):
    """Mixes the candidates by its validation loss, then trains."""

    can_be_stacked = True

    def __init__(self, options: FedFomoOptions) -> None:
        self.options = options

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        own, start = memory.vector(MODEL), memory.vector(REFERENCE)
        if own is None or start is None:
            own = start = site.initial
        start = self.mix(own, start, received, site, memory)
        trained = site.train(received.mask, start, received.round_number, on_step)
        memory.put(REFERENCE, start)
        memory.put(MODEL, trained.values)
        return own_answer(trained)

    def mix(
        self, own: Vector, reference: Vector, received: Received, site: SiteTools, memory: Memory
    ) -> Vector:
        """Return the model to train; update the affinities."""
        models = [own, *(peer.values for peer in received.peers.values())]
        base = self.loss(reference, received, site)
        weights = [
            first_order_weight(
                base, self.loss(model, received, site),
                distance(model, reference, self.options.norm),
            )
            for model in models
        ]  # fmt: skip
        for name, weight in zip(received.peers, weights[1:], strict=True):
            before = memory.vector(AFFINITY + name)
            affinity = weight + (0.0 if before is None else float(before[0]))
            memory.put(AFFINITY + name, np.array([affinity], dtype=np.float32))
        return mixed(reference, models, weights)

    def loss(self, model: Vector, received: Received, site: SiteTools) -> float:
        """Return the mean loss of a model on the chosen samples."""
        tested = site.evaluate(received.mask, model, self.options.split)
        if not tested.total:
            from ssfl.learning.errors import ModelError

            raise ModelError(
                f"--strategy fedfomo needs {self.options.split} samples, and {site.client_id} has "
                "none: give --validation 0.2, or --fedfomo.split train"
            )
        return tested.loss_sum / tested.total

    def personal(self, received: Received, site: SiteTools, memory: Memory) -> Vector | None:
        return memory.vector(MODEL)
