"""Arrays as large as whole data sets: allocated if the machine has the memory, then checked."""

import math
import os

import numpy as np
import numpy.typing as npt

from ssfl.datasets.data_set import Array
from ssfl.datasets.errors import SourceError
from ssfl.datasets.wording import format_bytes

_BLOCK_BYTES = 1 << 26  # checked for NaN at a time


def first_not_finite(array: Array) -> int | None:
    """Return the first row that holds NaN or infinity; None if there is none."""
    if array.dtype.kind != "f" or not array.size:
        return None
    rows = max(1, _BLOCK_BYTES * len(array) // array.nbytes)
    for start in range(0, len(array), rows):
        block = array[start : start + rows]
        finite = np.isfinite(block).reshape(len(block), -1).all(axis=1)
        if not finite.all():
            return start + int(np.argmin(finite))
    return None


def empty_array(shape: tuple[int, ...], dtype: npt.DTypeLike, what: str) -> Array:
    """Return an uninitialised array for `what`; raise SourceError if it exceeds the memory."""
    wanted = math.prod(shape) * np.dtype(dtype).itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        if wanted > memory:
            raise MemoryError
        return np.empty(shape, dtype)
    except MemoryError as error:
        raise SourceError(
            f"{what} would take {format_bytes(wanted)} as an array of "
            f"{' x '.join(map(str, shape))} {np.dtype(dtype).name}, but this machine has "
            f"{format_bytes(memory)} of memory"
        ) from error
