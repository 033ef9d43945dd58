"""Files that are either the old ones or the new ones, never halves, even after a power cut."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.method.files import TEMPORARY, atomic_file, sync_directory

__all__ = ["remove_leftovers", "sync_directory", "write_atomic"]

Bytes = bytes | bytearray | memoryview | npt.NDArray[Any]


def write_atomic(path: Path, data: Bytes | Iterable[Bytes], *, private: bool = False) -> None:
    """Write `data`, one buffer or several in order, so that `path` is replaced whole or not at all.

    When this returns, content and name are on the disk. Arrays must be C-contiguous. Nobody but
    its owner may read a `private` one.
    """
    buffers = [data] if isinstance(data, bytes | bytearray | memoryview | np.ndarray) else data
    with atomic_file(path, private=private) as file:
        for buffer in buffers:
            file.write(buffer.data if isinstance(buffer, np.ndarray) else buffer)


def remove_leftovers(folder: Path) -> int:
    """Remove what a crash inside `write_atomic` left behind and return how many files.

    Only for the sole user of `folder`: a write under way elsewhere would lose its file.
    """
    leftovers = list(folder.glob(f".*{TEMPORARY}"))
    for file in leftovers:
        file.unlink(missing_ok=True)
    return len(leftovers)
