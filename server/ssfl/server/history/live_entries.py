"""The history entries of a run, each once and in order, for a live reader.

The journal has all entries, including those before a restart, but is slower to read. It is read to
its end; later entries come from a bounded buffer, to which the run adds them as it makes them. When
the reader stops asking, the buffer fills up and keeps nothing from then on. The reader finds the
rest in the journal.
"""

import threading
import time
from collections.abc import Callable, Iterator

from ssfl.server.history.history_file import Follower
from ssfl.server.history.run_history import HistoryEntry
from ssfl.server.storage.contracts import LogReader

MAX_ROWS = 4000  # clients and layers in all buffered entries: some megabytes


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


class Following:
    """The position of one reader in the history of a running run."""

    def __init__(
        self, journal: LogReader, live: LiveEntries, published_journal_bytes: Callable[[], int]
    ) -> None:
        """`published_journal_bytes` returns the length of the journal that may be read."""
        self._live = live
        self._follower = Follower(journal)
        self._published_bytes = published_journal_bytes
        self._is_live = False  # the journal was read to its end
        self._step = -1  # of the newest entry
        # Lengths of the journal after the newest entry and after the one before; None: not known.
        # The newest entry lies between the two, so reading from the second misses no later step.
        self._lengths: tuple[int | None, int | None] = (None, None)

    @property
    def read_bytes(self) -> int:
        """The length of the journal whose entries have been yielded."""
        return self._published_bytes() if self._is_live else self._follower.num_bytes

    def entries(self, seconds: float) -> Iterator[HistoryEntry]:
        """Yield new entries; of a long journal, those that can be read within `seconds`."""
        new = self._live.take() if self._is_live else None
        if new is None:
            yield from self._from_journal(seconds)
            return
        for entry, num_bytes in new:
            if num_bytes != self._lengths[0]:
                self._lengths = num_bytes, self._lengths[0]
            yield from self._once(entry)

    def _from_journal(self, seconds: float) -> Iterator[HistoryEntry]:
        if self._is_live and self._lengths[1] is not None:
            self._follower.resume(self._lengths[1])
        self._is_live, self._lengths = False, (None, None)
        self._live.follow()  # BEFORE the end is determined, so that no entry is missed
        end_s, stop = time.monotonic() + seconds, self._published_bytes()
        for entry in self._follower.entries(stop):
            yield from self._once(entry)
            if time.monotonic() > end_s:
                return
        self._is_live = True

    def _once(self, entry: HistoryEntry) -> Iterator[HistoryEntry]:
        """Yield an entry unless it was yielded before; journal and run may both supply it."""
        if entry.step > self._step:
            self._step = entry.step
            yield entry
