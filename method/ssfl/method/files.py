"""A file that is either the old one or the new one, never half of it, even after a power cut."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ssfl.method.failpoints import failpoint

TEMPORARY = ".tmp"  # ends the name of a file being written, which begins with a dot


@contextmanager
def atomic_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write; when the block ends, it takes the place of `path`, whole.

    Then content and name are on the disk. If the block fails, `path` is as it was. Nobody but
    its owner may read a `private` one.
    """
    kind = path.name.partition("-")[0].partition(".")[0]
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
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
