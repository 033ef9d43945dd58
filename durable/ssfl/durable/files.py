"""Files that are replaced whole or not at all, even after a power cut."""

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

TEMPORARY_SUFFIX = ".tmp"  # ends the name of a file being written, which begins with a dot


@contextmanager
def atomic_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write; when the block ends, it takes the place of `path`, whole.

    Then content and name are on the disk. If the block fails, `path` is as it was. Nobody but
    its owner may read a `private` one.
    """
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
    """Put the names in `folder` on the disk: a new, renamed or removed file is one such fact."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    leftovers = list(folder.glob(f".*{TEMPORARY_SUFFIX}"))
    for file in leftovers:
        file.unlink(missing_ok=True)
    return len(leftovers)
