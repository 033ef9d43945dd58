"""Handling of a full disk: writes wait for free space and are retried.

Acknowledged data is never lost, and partial writes are truncated (journal.py). A coordinator with a
full disk therefore pauses, and resumes by itself when there is space.
"""

import errno
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ssfl.server.errors import DiskFull
from ssfl.server.storage.state_directory import StateDirectory

log = logging.getLogger("ssfl.run")

Result = TypeVar("Result")
FULL = (errno.ENOSPC, errno.EDQUOT)
LOOK_EVERY_S = 1.0
REFUSED_S = 60.0  # after a refused upload, the disk counts as full for this long, or until one fits


def is_full(error: OSError) -> bool:
    """Return True if an error means that the disk or quota is full."""
    return error.errno in FULL


def existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent, which is on the same disk."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def disks(directory: StateDirectory, out_dir: Path) -> dict[str, Path]:
    """Return a folder on each disk in use; `out` only if its disk is not that of `state`."""
    state, out = existing(directory.root), existing(out_dir)
    same = state.stat().st_dev == out.stat().st_dev
    return {"state": state} if same else {"state": state, "out": out}


def full_disk_text(folders: Iterable[Path]) -> str:
    """Return a sentence that names the folder with the least free space, and this space."""
    free = {folder: shutil.disk_usage(existing(folder)).free for folder in folders}
    least = min(free, key=lambda folder: free[folder])
    return f"the disk of {least} is full ({free[least] / 1e6:.3f} MB free)"


class DiskSpaceWaiter:
    """Repeats jobs that fail because the disk is full, until it has space."""

    def __init__(self, pause: Callable[[float], object] | None = None) -> None:
        """`pause` waits for the given seconds; by default it also returns on `close`."""
        # Disk and error of each waiting job, of several threads.
        self._waiting: list[tuple[Disk, str]] = []
        self._refused: tuple[float, Disk, str] | None = None  # of the newest refused upload
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pause = pause or self._closing.wait

    def close(self) -> None:
        """Stop waiting: from now on, a job that finds no space fails."""
        self._closing.set()

    @property
    def blocked_on(self) -> str:
        """The disk that jobs wait for, as text; empty if no job waits."""
        return next((disk.missing(why) for disk, why in self._waiting[:1]), "")

    def blocked_at(self, now_s: float) -> str:
        """Return the disk that jobs wait for, or for which an upload was refused recently."""
        refused = self._refused
        if not self.blocked_on and refused and now_s - refused[0] < REFUSED_S:
            return refused[1].missing(refused[2])
        return self.blocked_on

    @contextmanager
    def refused_if_full(self, disk: "Disk", clock: Callable[[], float]) -> Iterator[None]:
        """Raise DiskFull for the sender if its upload does not fit, and note that."""
        try:
            yield
        except OSError as error:
            if not is_full(error):
                raise
            self._refused = clock(), disk, error.strerror or str(error)
            raise DiskFull(
                "the coordinator's disk is full: its operator must make room; the upload then "
                "resumes where it stopped"
            ) from error

    def accept(self) -> None:
        """Note that there was space for an upload."""
        self._refused = None

    def wait_for(self, job: Callable[[], Result], disk: "Disk") -> Result:
        """Run an idempotent job; repeat it until the disk has space for it."""
        waits = ""  # why
        while True:
            try:
                result = job()
            except OSError as error:
                if not is_full(error) or self._closing.is_set():
                    if waits:
                        self._end_waiting(disk, waits, has_room=False)
                    raise
                if not waits:
                    waits = error.strerror or str(error)
                    self._begin_waiting(disk, waits)
                self._pause(LOOK_EVERY_S)
            else:
                if waits:
                    self._end_waiting(disk, waits)
                return result

    def _begin_waiting(self, disk: "Disk", why: str) -> None:
        with self._lock:
            self._waiting.append((disk, why))
            if len(self._waiting) > 1:
                return
        log.error(
            "the disk is full: make room, then the run continues by itself",
            extra={"error": why, "folder": str(disk.folder)},
        )

    def _end_waiting(self, disk: "Disk", why: str, *, has_room: bool = True) -> None:
        with self._lock:
            self._waiting.remove((disk, why))
            if self._waiting:
                return
        if has_room:
            log.warning("the disk has room again: nothing waits for it")


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder that is written to, the flag that names it, and the waiter for space on it."""

    flag: str
    folder: Path
    waiter: DiskSpaceWaiter

    def retry_while_full(self, job: Callable[[], Result]) -> Result:
        """Run a job that writes to the folder; repeat it while the disk is full."""
        return self.waiter.wait_for(job, self)

    def missing(self, why: str) -> str:
        """Return what is missing and the free space; without the path, for the status page."""
        free = shutil.disk_usage(existing(self.folder)).free
        return f"room on the disk of {self.flag}, which has {free / 1e6:.3f} MB free ({why})"
