"""history.json: the whole history of a run, generated from its journal.

A coordinator keeps only the newest entries in memory (run_history.py). The rest is read from the
journal on demand and streamed record by record, so that memory does not depend on the number of
rounds. Run it on a worker thread: 20,000 updates take about a second.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

from ssfl.server.history.run_history import Entry, HistoryEntry, Newest
from ssfl.server.run import facts
from ssfl.server.storage.contracts import LogReader

_IN_MEMORY = 1 << 20  # bytes of a buffered list; more go to a temporary file
_BLOCK_BYTES = 1 << 18


def history_blocks(journal: LogReader, stop: int, summary: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield history.json: the `summary`, then a line for every step up to byte `stop`."""
    with (
        tempfile.SpooledTemporaryFile(_IN_MEMORY) as masks,
        tempfile.SpooledTemporaryFile(_IN_MEMORY) as evaluations,
    ):
        waiting: dict[str, IO[bytes]] = {"masks": masks, "evaluations": evaluations}
        yield json.dumps(dict(summary))[:-1].encode() + b',\n"rounds": ['
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
    """Reads a growing journal: yields each entry once, and continues where it stopped."""

    def __init__(self, journal: LogReader) -> None:
        self._journal = journal
        self._story = Newest()
        self.num_bytes = 0  # read so far

    def resume(self, num_bytes: int) -> None:
        """Continue at a byte where a record begins; skip a step that began before it."""
        self._story, self.num_bytes = Newest(), num_bytes

    def entries(self, stop: int) -> Iterator[HistoryEntry]:
        """Yield new entries up to byte `stop`; the caller may stop early."""
        for end, record in self._journal.read_from(self.num_bytes, stop):
            self.num_bytes = end
            fact = facts.from_json(record)
            if self._story.started is None and not isinstance(fact, facts.StepStarted):
                continue
            self._story.add(fact)
            if isinstance(fact, facts.StepCommitted) and (entry := self._story.newest_entry):
                yield entry


def _line(entry: Entry) -> bytes:
    return json.dumps(entry).encode()
