"""Patience with a full disk: what must be written waits for room, and says so.

Nothing acknowledged is lost and nothing half-written is kept (journal.py cuts it), so a
coordinator whose disk is full stands still and goes on by itself when there is room.
"""

import errno
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
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
    """Tell whether an error means that there is no room."""
    return error.errno in FULL


@contextmanager
def refused_if_full() -> Iterator[None]:
    """Tell a sender that there is no room, if that is why its upload cannot be kept."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise DiskFull(
            "the coordinator's disk is full: its operator must make room; the upload goes on "
            "where it stopped"
        ) from error


def existing(folder: Path) -> Path:
    """Return a folder, or the one above it that there is: it will be made on that disk."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def disks(directory: StateDirectory, out_dir: Path) -> dict[str, Path]:
    """Return a folder on each disk that is written to: `out` only if it is not that of `state`."""
    state, out = existing(directory.root), existing(out_dir)
    same = state.stat().st_dev == out.stat().st_dev
    return {"state": state} if same else {"state": state, "out": out}


@dataclass(frozen=True, slots=True)
class Disk:
    """Where something is written: a folder, and the flag that names it."""

    flag: str
    folder: Path

    def told(self) -> str:
        """Say which disk it is and how much is free there; no path, as the status page shows it."""
        free = shutil.disk_usage(existing(self.folder)).free
        return f"the disk of {self.flag}, which has {free / 1e6:.3f} MB"


def _missing(disk: Disk, why: str) -> str:
    return f"room on {disk.told()} free ({why})"


class DiskSpaceWaiter:
    """Repeats jobs that fail because the disk is full, until it has space."""

    def __init__(self, pause: Callable[[float], object] | None = None) -> None:
        """`pause` waits for so many seconds; by default until then or until `close`."""
        self._waiting: list[tuple[Disk, str]] = []  # a job each, of several threads, and why
        self._refused: tuple[float, Disk, str] | None = None  # the newest upload, when and why
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pause = pause or self._closing.wait

    def close(self) -> None:
        """Wait no longer: a job that finds no room fails from now on."""
        self._closing.set()

    @property
    def blocked_on(self) -> str:
        """The disk that jobs wait for, in words; empty while no job waits."""
        for disk, why in self._waiting[:1]:
            return _missing(disk, why)
        return ""

    def blocked_at(self, now_s: float) -> str:
        """Return the same, also if uploads were refused recently for lack of room."""
        refused = self._refused
        if not self.blocked_on and refused and now_s - refused[0] < REFUSED_S:
            return _missing(*refused[1:])
        return self.blocked_on

    def refuse(self, disk: Disk, error: OSError, now_s: float) -> None:
        """Note that an upload was refused for lack of room: its client tries again later."""
        self._refused = now_s, disk, error.strerror or str(error)

    def accept(self) -> None:
        """Note that there was room for an upload."""
        self._refused = None

    def wait_for(self, job: Callable[[], Result], disk: Disk) -> Result:
        """Do a job that may be repeated, again and again until the disk has room for it."""
        waits = ""  # why
        while True:
            try:
                result = job()
            except OSError as error:
                if not is_full(error) or self._closing.is_set():
                    if waits:
                        self._end_waiting(disk, waits)
                    raise
                if not waits:
                    waits = error.strerror or str(error)
                    self._begin_waiting(disk, waits)
                self._pause(LOOK_EVERY_S)
            else:
                if waits:
                    self._end_waiting(disk, waits)
                return result

    def _begin_waiting(self, disk: Disk, why: str) -> None:
        with self._lock:
            self._waiting.append((disk, why))
            if len(self._waiting) > 1:
                return
        log.error(
            "the disk is full: make room, then the run goes on by itself",
            extra={"error": why, "folder": str(disk.folder)},
        )

    def _end_waiting(self, disk: Disk, why: str) -> None:
        with self._lock:
            self._waiting.remove((disk, why))
            if self._waiting:
                return
        log.warning("nothing waits for room on the disk any more")


@dataclass(frozen=True, slots=True)
class StateDisk:
    """The disk of the state directory, and the waiter for space on it."""

    disk: Disk
    waiter: DiskSpaceWaiter

    def retry_while_full(self, job: Callable[[], Result]) -> Result:
        """Do a job that writes to the state directory; repeat it while the disk is full."""
        return self.waiter.wait_for(job, self.disk)
