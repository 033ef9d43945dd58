"""Bounded buffer of new history entries for a live reader.

The run adds entries as it makes them, so that the status page need not read them from the journal
again. When the reader stops asking, the buffer fills up and keeps nothing from then on. The reader
finds the rest in the journal.
"""

import threading
from typing import NamedTuple

from ssfl.server.history.run_history import Entry

MAX_ROWS = 4000  # clients and layers in all buffered entries: some megabytes


class HistoryEntry(NamedTuple):
    """An entry that a committed step added to the history."""

    step: int
    name: str  # of its list: masks, rounds or evaluations
    entry: Entry


class LiveEntries:
    """New entries since the last `take`; any thread may call it."""

    def __init__(self) -> None:
        self._waiting: list[tuple[HistoryEntry, int]] | None = None  # None: no reader
        self._num_rows = 0
        self._lock = threading.Lock()

    def follow(self) -> None:
        """Start buffering; drop entries that are buffered already."""
        with self._lock:
            self._waiting, self._num_rows = [], 0

    def add(self, entry: HistoryEntry, num_bytes: int) -> None:
        """Add the next entry, which is in the first `num_bytes` of the journal."""
        with self._lock:
            if self._waiting is None:
                return
            self._waiting.append((entry, num_bytes))
            parts = (part for part in entry.entry.values() if isinstance(part, list | dict))
            self._num_rows += 1 + sum(map(len, parts))
            if self._num_rows > MAX_ROWS:
                self._waiting = None

    def take(self) -> list[tuple[HistoryEntry, int]] | None:
        """Return the entries since the last call; None if not all of them were kept."""
        with self._lock:
            found = self._waiting
            if found is not None:
                self._waiting, self._num_rows = [], 0
            return found
