"""Snapshots: the folded beginning of a journal, so that a restart replays only the rest.

    file   := SHA-256 of the rest, hex , newline , JSON

A snapshot holds the number of journal bytes it covers, their CRC-32, the state of the run and the
newest history entries. It only saves time. A snapshot that is missing, damaged, or of another
version or journal is ignored, and the whole journal is replayed. It is made from the journal alone,
never from the memory of a running coordinator, so it cannot know more than the journal.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from ssfl.method.settings import RunSettings
from ssfl.program.version import ssfl_version
from ssfl.server.history.run_history import Newest
from ssfl.server.run import facts
from ssfl.server.run.apply import apply
from ssfl.server.run.state import Best, Member, RunState, Step, StepCounts
from ssfl.server.storage.journal import JournalFile
from ssfl.server.storage.state_directory import StateDirectory

log = logging.getLogger(__name__)
_hints = cache(get_type_hints)

EVERY_BYTES = 1 << 21  # journal bytes between snapshots: an eighth of a second of replay
_KINDS = (
    *(RunState, Member, Step, StepCounts, Best, Newest),
    *(facts.StepStarted, facts.UploadAccepted),
)


@dataclass(frozen=True)
class SnapshotHeader:
    """The state of a run and its newest history after the first `num_bytes` of a journal."""

    state: RunState
    newest: Newest
    num_bytes: int  # of the journal
    crc32: int  # of these bytes


def replay(journal: JournalFile, known: SnapshotHeader, stop: int) -> SnapshotHeader:
    """Return the state and history at byte `stop` of the journal; `known.newest` is modified.

    Raise ValueError for a record that is not a fact.
    """
    state, newest, end = known.state, known.newest, known.num_bytes
    for at, record in journal.read_from(known.num_bytes, stop):
        fact = facts.from_json(record)
        state, end = apply(state, fact), at
        newest.add(fact)
    return SnapshotHeader(state, newest, end, journal.crc32(known.num_bytes, end, known.crc32))


def read_snapshot(directory: StateDirectory, settings: RunSettings) -> SnapshotHeader:
    """Return the snapshot of a journal; an empty one if there is none that fits."""
    nothing = SnapshotHeader(RunState(settings), Newest(), 0, 0)
    data = directory.read_snapshot()
    if data is None:
        return nothing
    try:
        snapshot = _parsed(data, settings)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("the snapshot is ignored, and the journal is read instead: %s", error)
        return nothing
    journal = JournalFile(directory.journal)
    if snapshot is None or journal.num_bytes < snapshot.num_bytes:
        return nothing
    fits = journal.crc32(0, snapshot.num_bytes) == snapshot.crc32
    return snapshot if fits else nothing  # reading the journal reports where it is damaged


def write_snapshot(directory: StateDirectory, settings: RunSettings, stop: int) -> int:
    """Update the snapshot to byte `stop` of the journal; return how many bytes it covers."""
    known = read_snapshot(directory, settings)
    snapshot = replay(JournalFile(directory.journal), known, stop)
    document = {
        "kinds": _kinds(),
        "num_bytes": snapshot.num_bytes,
        "crc32": snapshot.crc32,
        "state": {**to_plain(snapshot.state), "settings": None},  # each start has its own
        "newest": to_plain(snapshot.newest),
    }
    text = json.dumps(document).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    directory.put_snapshot([digest, b"\n", text])
    return snapshot.num_bytes


def _parsed(data: bytes, settings: RunSettings) -> SnapshotHeader | None:
    """Return a snapshot; None if another version wrote it. Raise ValueError if it is damaged."""
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
    """Return the version and the fields of all classes in a snapshot."""
    names = [
        f"{kind.__name__}: " + ", ".join(f"{field.name} {field.type}" for field in fields(kind))
        for kind in _KINDS
    ]
    return [ssfl_version(), *names]


def to_plain(value: Any) -> Any:
    """Return a value that json.dumps can write, and `from_plain` can read.

    Dataclasses may hold numbers, strings, enums, tuples, frozensets, lists, mappings and each
    other. Fields hinted as `Any` must already be JSON values.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def from_plain(hint: Any, value: Any) -> Any:
    """Return a value of a type; raise ValueError, KeyError or TypeError if it does not fit."""
    if isinstance(hint, NewType):
        hint = hint.__supertype__
    inner = get_args(hint)
    match get_origin(hint) or hint:
        case one if is_dataclass(one) and isinstance(one, type):
            hints = _hints(one)
            return one(**{name: from_plain(hints[name], found) for name, found in value.items()})
        case one if one is Union or one is UnionType:
            (some,) = (arm for arm in inner if arm is not NoneType)
            return None if value is None else from_plain(some, value)
        case one if one is tuple and len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(from_plain(inner[0], found) for found in value)
        case one if one is tuple:
            pairs = zip(inner, value, strict=True)
            return tuple(from_plain(kind, found) for kind, found in pairs)
        case one if one in (frozenset, list):
            return one(from_plain(inner[0], found) for found in value)
        case one if isinstance(one, type) and issubclass(one, Mapping):
            return {key: from_plain(inner[1], found) for key, found in value.items()}
        case one if isinstance(one, type) and issubclass(one, Enum):
            return one(value)
        case one if one in (int, float, str, bool, Any):
            return value
    raise TypeError(f"{hint} cannot be read back")
