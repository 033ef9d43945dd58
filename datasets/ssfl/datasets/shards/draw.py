"""Drawing a class for every sample of every client, as each client wishes and supplies allow.

One slot after another, its client draws a class from its wishes, renormalised over the classes
that still have samples. Between two moments at which a class runs out the draws do not depend on
each other, so a block of them is drawn at once and cut after the slot that takes the last sample
of a class. The blocks grow while nothing runs out and shrink where much does.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.shards.grouping import narrow, order_by

Integers = npt.NDArray[np.integer[Any]]
Counts = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

_NEGLIGIBLE = 1e-100  # a wish so small that multiplying it by a chance may lose all its digits
_SMALLEST_BLOCK, _LARGEST_BLOCK = 16, 1 << 20


def draw_classes(slots: Integers, wishes: Doubles, supply: Counts, chances: Doubles) -> Integers:
    """Return the class of each slot: its client is in `slots`, its random number in `chances`.

    `wishes` is (clients, classes); `supply` says how many samples each class has, as many as
    there are slots in all. Where a client wishes only for classes that are used up, it draws
    from what was left of the others when the block began.
    """
    left = supply.copy()
    drawn = np.empty_like(narrow(slots[:0], len(supply)), shape=len(slots))
    start, size = 0, _SMALLEST_BLOCK
    while start < len(slots):
        block = slice(start, start + size)
        classes = _draw_block(slots[block], chances[block], wishes, left)
        taken = _until_used_up(classes, left)
        drawn[start : start + taken] = classes[:taken]
        left -= np.bincount(classes[:taken], minlength=len(left))
        start += taken
        size = min(max(2 * taken, _SMALLEST_BLOCK), _LARGEST_BLOCK)
    return drawn


def _draw_block(slots: Integers, chances: Doubles, wishes: Doubles, left: Counts) -> Counts:
    """Return the class of each slot, as if no class ran out on the way."""
    clients, rows = np.unique(slots, return_inverse=True)
    reach = np.cumsum(wishes[clients] * (left > 0), axis=1)
    reach[reach[:, -1] < _NEGLIGIBLE] = np.cumsum(left)
    targets = chances * reach[rows, -1]
    classes = np.empty(len(slots), dtype=np.int64)
    order = order_by(rows, len(clients))
    ends = np.cumsum(np.bincount(rows))
    for row, places in enumerate(np.split(order, ends[:-1])):
        classes[places] = np.searchsorted(reach[row], targets[places], side="right")
    return classes


def _until_used_up(classes: Counts, left: Counts) -> int:
    """Return how many slots of a block can be kept: up to the first that empties a class."""
    counts = np.bincount(classes, minlength=len(left))
    emptied = np.flatnonzero((counts > 0) & (counts >= left))
    if not emptied.size:
        return len(classes)
    order = order_by(classes, len(left))
    starts = np.cumsum(counts) - counts
    return int(order[starts[emptied] + left[emptied] - 1].min()) + 1
