"""Whether |g·w| ranks weights by what their removal changes.

The score of a weight is the first-order term of the change of the loss when it is set to zero. Here
some weights are set to zero, one at a time, and the change is measured on the samples that were
scored, in double precision: a change is often below the precision of a float32 loss. The ranks of
both are compared. This is about single weights; a mask removes many at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.study.data import DataSpec, build_shards
from ssfl.study.mask_error import Doubles, InitialScores

REMOVED = 1000  # weights, one at a time
SAMPLES = 500
TOP = 0.05  # share of the removed weights whose change is largest
SAME, MINIBATCHES = "score of the same samples", "mean score of the clients' minibatches"


def rank_correlation(first: Sequence[float] | Doubles, second: Sequence[float] | Doubles) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank.

    >>> rank_correlation([1, 2, 3], [10, 30, 20]), rank_correlation([1, 2, 3], [3, 2, 1])
    (0.5, -1.0)
    """
    ranks = [_ranks(np.asarray(values, dtype=np.float64)) for values in (first, second)]
    a, b = (values - values.mean() for values in ranks)
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return round(float(a @ b) / scale, 12) if scale else 0.0


def _ranks(values: Doubles) -> Doubles:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place], dtype=np.float64)


def top_overlap(first: Doubles, second: Doubles, count: int) -> float:
    """Return the share of the `count` largest of `first` that are among those of `second`.

    >>> top_overlap(np.array([4.0, 3, 2, 1]), np.array([1.0, 4, 3, 2]), 2)
    0.5
    """
    ours, theirs = (np.argsort(-values, kind="stable")[:count] for values in (first, second))
    return len(np.intersect1d(ours, theirs)) / count


@torch.no_grad()
def loss_changes(
    places: Sequence[tuple[Tensor, slice]],
    chosen: npt.NDArray[np.int64],
    loss: Callable[[], float],
) -> Doubles:
    """Return |loss - loss without the weight| of each chosen weight; all weights stay.

    `places` has the parameters with their places among all weights.
    """
    before, changes = loss(), []
    for number in chosen:
        parameter, place = next(pair for pair in places if pair[1].start <= number < pair[1].stop)
        weights, at = parameter.view(-1), int(number) - place.start
        value = weights[at].clone()
        weights[at] = 0
        changes.append(abs(before - loss()))
        weights[at] = value
    return np.array(changes)


def compare_scores(
    spec: DataSpec,
    settings: RunSettings,
    seeds: Sequence[int],
    removed: int = REMOVED,
    samples: int = SAMPLES,
    device: str = "cpu",
) -> dict[str, Any]:
    """Return, for each kind of score and seed, how well it ranks the true changes of the loss.

    `points` has the scores of the same samples and the changes of the first seed.
    """
    found: dict[str, Any] = {
        kind: {"rank_correlation": [], "top": []} for kind in (SAME, MINIBATCHES)
    }
    for seed in seeds:
        scores = InitialScores(
            build_shards(spec, seed), replace(settings, seed=seed), device=device
        )
        total = np.zeros(scores.size)
        for count, score in scores.of_clients():
            total += count * score
        scores.model.double()
        x, y = scores.batch(samples)
        x = x.double()
        places = scores.places()
        same = np.zeros_like(total)
        gradients = torch.autograd.grad(scores.loss(x, y), [weight for weight, _ in places])
        for (weight, place), gradient in zip(places, gradients, strict=True):
            same[place] = (gradient * weight).abs().detach().cpu().numpy().reshape(-1)
        stream = Stream(seed, "study", "removed")
        chosen = stream.choose(len(same), min(removed, len(same)))
        changes = loss_changes(places, chosen, lambda: float(scores.loss(x, y)))  # noqa: B023
        count = max(1, round(TOP * len(chosen)))
        for kind, values in ((SAME, same[chosen]), (MINIBATCHES, total[chosen])):
            found[kind]["rank_correlation"].append(rank_correlation(values, changes))
            found[kind]["top"].append(top_overlap(changes, values, count))
        found.setdefault("points", [same[chosen].tolist(), changes.tolist()])
    return found
