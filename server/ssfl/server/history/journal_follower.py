"""A run's entries, each once and in order: from the journal, and then as the run makes them.

The journal has them all, also those from before a restart, but reading it costs more. So a reader
reads the journal to its end. It then takes new entries from the run itself (live_entries.py). A
reader that has not asked for a while reads the journal again.
"""

import time
from collections.abc import Callable, Iterator

from ssfl.server.history.history_file import Follower
from ssfl.server.history.live_entries import HistoryEntry, LiveEntries
from ssfl.server.storage.contracts import LogReader


class Following:
    """Where one reader is in the story of a run that goes on."""

    def __init__(
        self, journal: LogReader, fresh: LiveEntries, published_journal_bytes: Callable[[], int]
    ) -> None:
        """`published_journal_bytes`: how much of the journal is told by now."""
        self._live = fresh
        self._follower = Follower(journal)
        self._published_bytes = published_journal_bytes
        self._is_live = False  # the journal is read
        self._step = -1  # of the newest entry
        # How long the journal was with the newest entry, and with one before it; None: not known.
        # What was written between the two has the newest entry, so the next step begins behind
        # the second of them, or later.
        self._lengths: tuple[int | None, int | None] = (None, None)

    @property
    def read_bytes(self) -> int:
        """How much of the journal is told by what was taken."""
        return self._published_bytes() if self._is_live else self._follower.num_bytes

    def entries(self, seconds: float) -> Iterator[HistoryEntry]:
        """Yield what is new; of a long journal, what can be read in so many seconds."""
        told = self._live.take() if self._is_live else None
        if told is None:
            yield from self._from_journal(seconds)
            return
        for one, num_bytes in told:
            if num_bytes != self._lengths[0]:
                self._lengths = num_bytes, self._lengths[0]
            yield from self._once(one)

    def _from_journal(self, seconds: float) -> Iterator[HistoryEntry]:
        if self._is_live and self._lengths[1] is not None:
            self._follower.resume(self._lengths[1])
        self._is_live, self._lengths = False, (None, None)
        self._live.follow()  # before the end is looked up: nothing falls in between
        end_s, stop = time.monotonic() + seconds, self._published_bytes()
        for one in self._follower.entries(stop):
            yield from self._once(one)
            if time.monotonic() > end_s:
                return
        self._is_live = True

    def _once(self, told: HistoryEntry) -> Iterator[HistoryEntry]:
        """Yield it, unless journal and run have both told it."""
        if told.step > self._step:
            self._step = told.step
            yield told
