"""The class mix of clients, and which clients to show."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ssfl.method.streams import Stream
from ssfl.study.data import DataSpec, build_shards


def class_counts(spec: DataSpec, seed: int) -> dict[str, list[int]]:
    """Return the number of training samples of every class, by client."""
    return {
        name: np.bincount(shard.train_y, minlength=shard.num_classes).tolist()
        for name, shard in build_shards(spec, seed).items()
    }


def effective_classes(counts: Sequence[int]) -> float:
    """Return the number of equally frequent classes with the same entropy.

    >>> effective_classes([5, 5, 0]), effective_classes([7, 0, 0])
    (2.0, 1.0)
    """
    total = sum(counts)
    shares = [count / total for count in counts if count]
    return round(math.exp(-sum(share * math.log(share) for share in shares)), 12)


def shown_clients(
    accuracies: Mapping[str, float], count: int, stream: Stream
) -> dict[str, list[str]]:
    """Return random clients, the best and the worst ones; a tie goes to the first name.

    >>> found = shown_clients({"a": 0.1, "b": 0.9, "c": 0.5}, 1, Stream(0, "shown"))
    >>> found["best"], found["worst"]
    (['b'], ['a'])
    """
    names = sorted(accuracies)
    best = sorted(names, key=lambda name: -accuracies[name])[:count]
    worst = sorted(names, key=lambda name: accuracies[name])[:count]
    drawn = stream.choose(len(names), min(count, len(names)))
    return {"random": [names[place] for place in drawn], "best": best, "worst": worst}
