"""One process per state directory."""

import fcntl
import os
from pathlib import Path
from typing import Self

LOCK = "lock"


class DirectoryUnusable(Exception):
    """The directory cannot be locked: another process holds it, or it is not writable."""


class DirectoryLock:
    """Holds `path/lock` while entered; the kernel releases it when the process ends.

    Entering creates a missing folder. The file stays after release: removing it would let two
    processes lock two files of the same name.
    """

    def __init__(self, path: Path) -> None:
        self._folder = path
        self._descriptor = -1

    def acquire(self) -> None:
        """Acquire the lock, or raise DirectoryUnusable naming the process that holds it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._error(f"cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise self._error(
                    f"is in use by process {holder or 'unknown'}: wait for it, or end it"
                    + (f" with `kill {holder}`" if holder.isdigit() else "")
                ) from None
            raise self._error(f"cannot be locked: {error.strerror}") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock; do nothing if it is not held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _error(self, what: str) -> DirectoryUnusable:
        return DirectoryUnusable(f"the state directory {self._folder} {what}")
