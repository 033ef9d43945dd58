"""The fold of a journal's beginning, so that a restart replays only what came after it.

    file   := SHA-256 of the rest, hex , newline , JSON

A snapshot says how many bytes of the journal it covers, and their CRC-32; with it come the run's
state and the newest of its story. It saves time, nothing else: one that is missing, damaged, of
another version or of another journal is ignored, and the whole journal replayed. It is made from
the journal alone, never from the memory of a running coordinator, so it cannot know more.
"""

import hashlib
import json
import logging
from dataclasses import dataclass, fields, replace
from typing import Any

from ssfl.durable.files import write_atomic
from ssfl.method.settings import RunSettings
from ssfl.program.version import ssfl_version
from ssfl.server.history.run_history import Newest
from ssfl.server.recovery.dataclass_json import from_plain, to_plain
from ssfl.server.run import facts
from ssfl.server.run.apply import apply
from ssfl.server.run.state import Best, Member, RunState, Step, StepCounts
from ssfl.server.storage.journal import JournalFile
from ssfl.server.storage.state_directory import StateDirectory

log = logging.getLogger(__name__)

EVERY_BYTES = 1 << 21  # of the journal: an eighth of a second of replay
_KINDS = (
    *(RunState, Member, Step, StepCounts, Best, Newest),
    *(facts.StepStarted, facts.UploadAccepted),
)


@dataclass(frozen=True)
class SnapshotHeader:
    """What a journal tells up to one of its bytes."""

    state: RunState
    newest: Newest
    num_bytes: int  # of the journal
    crc32: int  # of these bytes


def replay(journal: JournalFile, told: SnapshotHeader, stop: int) -> SnapshotHeader:
    """Return what the journal tells up to byte `stop`; `told.newest` is used up.

    Raise ValueError for a record that is no fact.
    """
    state, newest, end = told.state, told.newest, told.num_bytes
    for at, record in journal.read_from(told.num_bytes, stop):
        fact = facts.from_json(record)
        state, end = apply(state, fact), at
        newest.add(fact)
    return SnapshotHeader(state, newest, end, journal.crc32(told.num_bytes, end, told.crc32))


def read_snapshot(directory: StateDirectory, settings: RunSettings) -> SnapshotHeader:
    """Return what the snapshot beside a journal tells; nothing if there is none that fits."""
    nothing = SnapshotHeader(RunState(settings), Newest(), 0, 0)
    try:
        data = directory.snapshot.read_bytes()
    except FileNotFoundError:
        return nothing
    try:
        told = _parsed(data, settings)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("the snapshot is ignored, the journal read instead: %s", error)
        return nothing
    journal = JournalFile(directory.journal)
    if told is None or journal.num_bytes < told.num_bytes:
        return nothing
    fits = journal.crc32(0, told.num_bytes) == told.crc32
    return told if fits else nothing  # else whoever reads the journal says where it is damaged


def write_snapshot(directory: StateDirectory, settings: RunSettings, stop: int) -> int:
    """Bring the snapshot up to byte `stop` of the journal; return how many bytes it covers."""
    known = read_snapshot(directory, settings)
    told = replay(JournalFile(directory.journal), known, stop)
    document = {
        "kinds": _kinds(),
        "num_bytes": told.num_bytes,
        "crc32": told.crc32,
        "state": {**to_plain(told.state), "settings": None},  # those of a start are its own
        "newest": to_plain(told.newest),
    }
    text = json.dumps(document).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    # Like the journal, it holds what clients prove their names with.
    write_atomic(directory.snapshot, [digest, b"\n", text], private=True)
    return told.num_bytes


def _parsed(data: bytes, settings: RunSettings) -> SnapshotHeader | None:
    """Return what a snapshot tells; None if another version wrote it, ValueError if damaged."""
    digest, _, text = data.partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise ValueError("it is damaged")
    document: dict[str, Any] = json.loads(text)
    if document["kinds"] != _kinds():
        return None
    state = from_plain(RunState, {**document["state"], "settings": to_plain(settings)})
    newest = from_plain(Newest, document["newest"])
    state = replace(state, settings=settings)
    return SnapshotHeader(state, newest, document["num_bytes"], document["crc32"])


def _kinds() -> list[str]:
    """Return what a snapshot of this version is made of."""
    names = [
        f"{kind.__name__}: " + ", ".join(f"{one.name} {one.type}" for one in fields(kind))
        for kind in _KINDS
    ]
    return [ssfl_version(), *names]
