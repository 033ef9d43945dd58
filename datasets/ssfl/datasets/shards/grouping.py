"""Sort samples into groups, in time linear in the number of samples."""

from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.integer[Any]]
Indices = npt.NDArray[np.int64]


def narrow(values: Integers, bound: int) -> Integers:
    """Return numbers in 0 … bound-1 in the narrowest type; numpy radix-sorts 8 and 16 bits."""
    return values.astype(np.min_scalar_type(max(bound - 1, 0)), copy=False)


def order_by(groups: Integers, num_groups: int) -> Indices:
    """Return the positions sorted by group; the sort is stable."""
    return np.argsort(narrow(groups, num_groups), kind="stable")


def split_by(groups: Integers, num_groups: int) -> list[Indices]:
    """Return the positions of each group, ascending."""
    sizes = np.bincount(groups, minlength=num_groups)
    return np.split(order_by(groups, num_groups), np.cumsum(sizes)[:-1])
