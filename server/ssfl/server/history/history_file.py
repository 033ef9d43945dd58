"""The whole story of a run, told from its journal: history.json.

A coordinator keeps only the newest of it in memory (history.py). The rest is in the journal, and
is read again when somebody asks: one record at a time, written on as it comes, so that the memory
needed does not depend on the number of rounds. For a worker thread: it takes about a second for
20,000 updates.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

from ssfl.server.history.live_entries import HistoryEntry
from ssfl.server.history.run_history import Entry, Newest
from ssfl.server.run import facts
from ssfl.server.storage.contracts import LogReader

_IN_MEMORY = 1 << 20  # bytes of a list that has to wait for its turn; more go to a temporary file
_BLOCK_BYTES = 1 << 18


def history_blocks(journal: LogReader, stop: int, told: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield history.json: what is `told` already, and every step up to byte `stop` of the journal.

    One line for each round, mask and evaluation.
    """
    with (
        tempfile.SpooledTemporaryFile(_IN_MEMORY) as masks,
        tempfile.SpooledTemporaryFile(_IN_MEMORY) as evaluations,
    ):
        waiting: dict[str, IO[bytes]] = {"masks": masks, "evaluations": evaluations}
        yield json.dumps(dict(told))[:-1].encode() + b',\n"rounds": ['
        between = b"\n"
        for _, name, entry in Follower(journal).entries(stop):
            if name in waiting:
                waiting[name].write((b",\n" if waiting[name].tell() else b"\n") + _line(entry))
            else:
                yield between + _line(entry)
                between = b",\n"
        for name, file in waiting.items():
            yield b'],\n"%s": [' % name.encode()
            file.seek(0)
            yield from iter(lambda file=file: file.read(_BLOCK_BYTES), b"")  # type: ignore[misc]
        yield b"]}\n"


class Follower:
    """Reads a journal that grows: every entry once, from where it stopped the last time."""

    def __init__(self, journal: LogReader) -> None:
        self._journal = journal
        self._story = Newest()
        self.num_bytes = 0  # read so far

    def resume(self, num_bytes: int) -> None:
        """Go on from there, where a record begins; a step that has begun before is passed over."""
        self._story, self.num_bytes = Newest(), num_bytes

    def entries(self, stop: int) -> Iterator[HistoryEntry]:
        """Yield what is new up to byte `stop`; may be left early."""
        for end, record in self._journal.read_from(self.num_bytes, stop):
            self.num_bytes = end
            fact = facts.from_json(record)
            if self._story.started is None and not isinstance(fact, facts.StepStarted):
                continue
            self._story.add(fact)
            if isinstance(fact, facts.StepCommitted) and (entry := self._story.newest_entry):
                yield HistoryEntry(fact.step, *entry)


def _line(entry: Entry) -> bytes:
    return json.dumps(entry).encode()
