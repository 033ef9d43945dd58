"""Atomic file replacement that survives a power cut."""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ssfl.durable.failpoints import failpoint

Bytes = bytes | bytearray | memoryview | npt.NDArray[Any]

TEMPORARY_SUFFIX = ".tmp"  # of files being written; their names start with a dot


@contextmanager
def atomic_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write; it replaces `path` when the block ends.

    It is synced to disk before that, and its directory entry after. If the block raises, `path` is
    unchanged. A `private` file is readable by its owner only.
    """
    # The first part of the file's name; names of failpoints begin with it.
    kind = path.name.partition("-")[0].partition(".")[0]
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            if private:
                os.fchmod(file.fileno(), 0o600)
            yield file
            file.flush()
            failpoint(f"{kind}.written")
            os.fsync(file.fileno())
        failpoint(f"{kind}.synced")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    failpoint(f"{kind}.renamed")
    sync_directory(path.parent)
    failpoint(f"{kind}.named")


def sync_directory(folder: Path) -> None:
    """Flush the entries of `folder` to disk, after a file was created, renamed or removed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: Bytes | Iterable[Bytes], *, private: bool = False) -> None:
    """Replace `path` atomically with `data`, one buffer or several in order.

    On return, the file and its directory entry are synced to disk. Arrays must be C-contiguous. A
    `private` file is readable by its owner only.
    """
    buffers = [data] if isinstance(data, bytes | bytearray | memoryview | np.ndarray) else data
    with atomic_file(path, private=private) as file:
        for buffer in buffers:
            file.write(buffer.data if isinstance(buffer, np.ndarray) else buffer)


def remove_leftovers(folder: Path) -> int:
    """Remove temporary files that a crash left behind; return their number.

    The caller must be the only user of `folder`: a concurrent write would lose its file.
    """
    leftovers = list(folder.glob(f".*{TEMPORARY_SUFFIX}"))
    for file in leftovers:
        file.unlink(missing_ok=True)
    return len(leftovers)
