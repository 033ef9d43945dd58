"""Patience with a full disk: what must be written waits for room, and says so.

Nothing acknowledged is lost and nothing half-written is kept (journal.py cuts it), so a
coordinator whose disk is full stands still and goes on by itself when there is room.
"""

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ssfl.server.errors import DiskFull

log = logging.getLogger("ssfl.run")

Result = TypeVar("Result")
FULL = (errno.ENOSPC, errno.EDQUOT)
LOOK_EVERY_S = 1.0


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


class Room:
    """Lets jobs wait for room on the disk."""

    def __init__(self, pause: Callable[[float], object] | None = None) -> None:
        """`pause` waits for so many seconds; by default until then or until `close`."""
        self.missing = ""  # what could not be written; empty while there is room
        self._waiting = 0  # jobs: those of several threads
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pause = pause or self._closing.wait

    def close(self) -> None:
        """Wait no longer: a job that finds no room fails from now on."""
        self._closing.set()

    def wait_for(self, job: Callable[[], Result]) -> Result:
        """Do a job that may be repeated, again and again until the disk has room for it."""
        waits = False
        while True:
            try:
                result = job()
            except OSError as error:
                if not is_full(error) or self._closing.is_set():
                    if waits:
                        self._end_waiting()
                    raise
                if not waits:
                    waits = True
                    self._begin_waiting(error)
                self._pause(LOOK_EVERY_S)
            else:
                if waits:
                    self._end_waiting()
                return result

    def _begin_waiting(self, error: OSError) -> None:
        with self._lock:
            self._waiting += 1
            if self._waiting > 1:
                return
            self.missing = f"room on the disk: {error}"
        log.error(
            "the disk is full: make room, then the run goes on by itself",
            extra={"error": str(error)},
        )

    def _end_waiting(self) -> None:
        with self._lock:
            self._waiting -= 1
            if self._waiting:
                return
            self.missing = ""
        log.warning("nothing waits for room on the disk any more")
