"""Arrays for whole data sets, refused before they are made if the machine cannot hold them."""

import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import SourceError
from ssfl.datasets.wording import format_bytes


def empty_array(shape: tuple[int, ...], dtype: npt.DTypeLike, what: str) -> npt.NDArray[Any]:
    """Return an array to fill; raise SourceError if `what` is larger than the memory."""
    wanted = math.prod(shape) * np.dtype(dtype).itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        if wanted > memory:
            raise MemoryError
        return np.empty(shape, dtype)
    except MemoryError as error:
        raise SourceError(
            f"{what} would take {format_bytes(wanted)} as an array of {' x '.join(map(str, shape))} "
            f"{np.dtype(dtype).name}, and this machine has {format_bytes(memory)} of memory"
        ) from error
