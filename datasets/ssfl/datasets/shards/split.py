"""Set aside samples for validation or testing: the same share of every group.

The groups are the classes or, if the targets are numbers, up to ten quantile groups of nearly equal
size. If a sample has several targets, the first one determines its group.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.shards.draw import order_by
from ssfl.method.streams import Stream

Indices = npt.NDArray[np.int64]

NUM_QUANTILE_GROUPS = 10


@dataclass(frozen=True, eq=False)
class Groups:
    """The group of each sample, and the names of the groups."""

    train: Indices  # (N,)
    test: Indices  # (M,)
    names: tuple[str, ...]


def groups_of(data: DataSet) -> Groups:
    """Return the classes of a data set's samples, or the quantile groups of numeric targets."""
    if data.num_classes:
        train, test = (y.astype(np.int64, copy=False) for y in (data.train_y, data.test_y))
        return Groups(train, test, data.class_names)
    numbers = _first_target(data.train_y)
    edges = _edges(numbers)
    names = [f"below {edges[0]:.4g}"] if len(edges) else ["all"]
    names += [f"{low:.4g} … {high:.4g}" for low, high in pairwise(edges)]
    names += [f"from {edges[-1]:.4g}"] if len(edges) else []
    train, test = (
        np.searchsorted(edges, targets, side="right").astype(np.int64)
        for targets in (numbers, _first_target(data.test_y))
    )
    return Groups(train, test, tuple(names))


def choose_share(groups: Indices, share: float, stream: Stream, *, keep_each: bool) -> Indices:
    """Return the ascending indices of the samples to set aside: `share` of each group.

    `groups` has the group of each sample. The counts of the groups with the largest remainders are
    rounded up. At least one sample is not set aside; with `keep_each`, at least one of every group.
    """
    if not len(groups) or not share:
        return np.empty(0, dtype=np.int64)
    sizes = np.bincount(groups)
    counts = _apportion(sizes, share, keep_each)
    shuffled = stream.permutation(len(groups))
    ordered = shuffled[order_by(groups[shuffled], len(sizes))]
    begins = np.cumsum(sizes) - sizes
    rank = np.arange(len(groups)) - begins[groups[ordered]]  # position within its group
    return np.sort(ordered[rank < counts[groups[ordered]]])


def _apportion(sizes: Indices, share: float, keep_each: bool) -> Indices:
    total = min(int(share * sizes.sum() + 0.5), int(sizes.sum()) - 1)
    limits = np.maximum(sizes - 1, 0) if keep_each else sizes
    exact = share * sizes
    counts: Indices = np.minimum(np.floor(exact).astype(np.int64), limits)
    remainders = np.where(counts < limits, exact - counts, 0.0)
    order = np.lexsort((-sizes, -remainders))  # by largest remainder, then by largest group
    rounded_up = order[: max(0, total - int(counts.sum()))]
    counts[rounded_up[remainders[rounded_up] > 0]] += 1
    return counts


def _first_target(targets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return targets if targets.ndim == 1 else targets[:, 0]


def _edges(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the boundaries between quantile groups: nine, or fewer for few or repeated numbers."""
    ranks = np.arange(1, NUM_QUANTILE_GROUPS) * len(numbers) // NUM_QUANTILE_GROUPS
    edges: npt.NDArray[Any] = np.unique(np.append(np.sort(numbers)[ranks], numbers.min()))
    return edges[1:]  # the smallest number is not a boundary
