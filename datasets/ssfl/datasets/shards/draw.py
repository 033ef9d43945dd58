"""Draw class mixes, and a class for every sample of every client, from a seeded stream.

Numpy's generators are not used because their distributions may change between versions.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.method.initialize import normal
from ssfl.method.streams import Stream

Integers = npt.NDArray[np.integer[Any]]
Counts = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

_NEGLIGIBLE = 1e-100  # below this, a probability times a random number may lose all digits
_SMALLEST_BLOCK, _LARGEST_BLOCK = 16, 1 << 20


def narrow(values: Integers, bound: int) -> Integers:
    """Return numbers in 0 … bound-1 in the narrowest type; numpy radix-sorts 8 and 16 bits."""
    return values.astype(np.min_scalar_type(max(bound - 1, 0)), copy=False)


def order_by(groups: Integers, num_groups: int) -> Counts:
    """Return the positions sorted by group; the sort is stable."""
    return np.argsort(narrow(groups, num_groups), kind="stable")


def split_by(groups: Integers, num_groups: int) -> list[Counts]:
    """Return the positions of each group, ascending."""
    sizes = np.bincount(groups, minlength=num_groups)
    return np.split(order_by(groups, num_groups), np.cumsum(sizes)[:-1])


def dirichlet(alpha: float, rows: int, columns: int, stream: Stream) -> Doubles:
    """Return rows drawn from Dirichlet(alpha, …, alpha): gamma variates divided by their sum.

    Computed with logarithms because for a small alpha most variates underflow a double.
    """
    logs = _log_gamma_variates(alpha, rows * columns, stream).reshape(rows, columns)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    mixes: Doubles = weights / weights.sum(axis=1, keepdims=True)
    return mixes


def _log_gamma_variates(alpha: float, count: int, stream: Stream) -> Doubles:
    """Return logarithms of Gamma(alpha) variates (Marsaglia and Tsang 2000).

    Drawn as Gamma(alpha + 1) times a uniform to the power 1 / alpha, valid for every alpha.
    """
    d = alpha + 1 - 1 / 3
    logs = np.empty(count)
    pending = np.arange(count)
    while pending.size:
        x = normal(stream.uniform(pending.size))
        v = np.maximum(1 + x / math.sqrt(9 * d), 0) ** 3
        log_v = np.log(np.where(v > 0, v, 1))
        bound = x * x / 2 + d - d * v + d * log_v
        accepted = (v > 0) & (np.log(stream.uniform(pending.size)) < bound)
        logs[pending[accepted]] = math.log(d) + log_v[accepted]
        pending = pending[~accepted]
    return logs + np.log(stream.uniform(count)) / alpha


def draw_classes(slots: Integers, mixes: Doubles, supply: Counts, chances: Doubles) -> Integers:
    """Return the class of each slot, given its client in `slots` and random number in `chances`.

    Slot by slot, a client draws a class from its mix, renormalised over the classes that still have
    samples. Draws are independent until a class runs out, so a block of slots is drawn at once and
    truncated after the slot that takes the last sample of a class. Blocks grow while no class runs
    out and shrink when classes run out often.

    `mixes` is (clients, classes). `supply` holds the samples of each class, in total one per slot.
    A client whose classes are all used up draws from the samples of other classes that were left at
    the start of the block.
    """
    left = supply.copy()
    drawn = np.empty_like(narrow(slots[:0], len(supply)), shape=len(slots))
    start, size = 0, _SMALLEST_BLOCK
    while start < len(slots):
        block = slice(start, start + size)
        classes = _draw_block(slots[block], chances[block], mixes, left)
        taken = _until_used_up(classes, left)
        drawn[start : start + taken] = classes[:taken]
        left -= np.bincount(classes[:taken], minlength=len(left))
        start += taken
        size = min(max(2 * taken, _SMALLEST_BLOCK), _LARGEST_BLOCK)
    return drawn


def _draw_block(slots: Integers, chances: Doubles, mixes: Doubles, left: Counts) -> Counts:
    """Return the class of each slot, assuming that no class runs out."""
    clients, rows = np.unique(slots, return_inverse=True)
    reach = np.cumsum(mixes[clients] * (left > 0), axis=1)
    reach[reach[:, -1] < _NEGLIGIBLE] = np.cumsum(left)
    targets = chances * reach[rows, -1]
    classes = np.empty(len(slots), dtype=np.int64)
    order = order_by(rows, len(clients))
    ends = np.cumsum(np.bincount(rows))
    for row, places in enumerate(np.split(order, ends[:-1])):
        classes[places] = np.searchsorted(reach[row], targets[places], side="right")
    return classes


def _until_used_up(classes: Counts, left: Counts) -> int:
    """Return the number of slots of a block up to the first that empties a class."""
    counts = np.bincount(classes, minlength=len(left))
    emptied = np.flatnonzero((counts > 0) & (counts >= left))
    if not emptied.size:
        return len(classes)
    order = order_by(classes, len(left))
    starts = np.cumsum(counts) - counts
    return int(order[starts[emptied] + left[emptied] - 1].min()) + 1
