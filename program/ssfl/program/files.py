"""Files that are either the old ones or the new ones, never halves, even after a power cut."""

import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = bytes | bytearray | memoryview | npt.NDArray[Any]
_TEMPORARY = ".tmp"


def write_atomic(path: Path, data: Bytes | Iterable[Bytes]) -> None:
    """Write `data`, one buffer or several in order, so that `path` is replaced whole or not at all.

    When this returns, content and name are on the disk. Arrays must be C-contiguous.
    """
    buffers = [data] if isinstance(data, bytes | bytearray | memoryview | np.ndarray) else data
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            for buffer in buffers:
                file.write(buffer.data if isinstance(buffer, np.ndarray) else buffer)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(folder: Path) -> None:
    """Put the names in `folder` on the disk: a new, renamed or removed file is one such fact."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> int:
    """Remove what a crash inside `write_atomic` left behind and return how many files.

    Only for the sole user of `folder`: a write under way elsewhere would lose its file.
    """
    leftovers = list(folder.glob(f".*{_TEMPORARY}"))
    for file in leftovers:
        file.unlink(missing_ok=True)
    return len(leftovers)
