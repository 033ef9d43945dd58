"""The history entries of a run, each once and in order, for a live reader.

The journal has all entries, including those before a restart, but is slower to read. It is read to
its end; later entries come from the run itself (live_entries.py). If the reader pauses for too
long, it reads the journal again.
"""

import time
from collections.abc import Callable, Iterator

from ssfl.server.history.history_file import Follower
from ssfl.server.history.live_entries import HistoryEntry, LiveEntries
from ssfl.server.storage.contracts import LogReader


class Following:
    """The position of one reader in the history of a running run."""

    def __init__(
        self, journal: LogReader, fresh: LiveEntries, published_journal_bytes: Callable[[], int]
    ) -> None:
        """`published_journal_bytes` returns the length of the journal that may be read."""
        self._live = fresh
        self._follower = Follower(journal)
        self._published_bytes = published_journal_bytes
        self._is_live = False  # the journal was read to its end
        self._step = -1  # of the newest entry
        # Lengths of the journal with the newest entry and with the one before; None: not known.
        # The newest entry lies between the two, so the next step begins at or after the second.
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
