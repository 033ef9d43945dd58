"""Allocate arrays for whole data sets, or refuse if the machine has too little memory."""

import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import SourceError
from ssfl.datasets.wording import format_bytes


def empty_array(shape: tuple[int, ...], dtype: npt.DTypeLike, what: str) -> npt.NDArray[Any]:
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
