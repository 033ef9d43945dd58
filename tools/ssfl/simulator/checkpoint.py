"""Checkpoints of a simulated run: all that its remaining steps depend on, in one file.

    file   := SHA-256 of the rest, hex , newline , JSON of one line , newline , items
    items  := float32 values (little-endian), packed mask bits or coded bytes, one after another

The JSON names vectors and masks by their numbers; equal ones are stored once. Nothing is unpickled.
A checkpoint is read by the code that wrote it: its `run` names run and code.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ssfl.client.memory import Items
from ssfl.codec import values_only
from ssfl.durable.files import write_atomic
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector, item_digest, vector_of
from ssfl.method.settings import RunSettings
from ssfl.server.history.run_history import History
from ssfl.server.recovery.snapshot import from_plain, to_plain
from ssfl.server.run.state import RunState
from ssfl.strategies.contract import ClientId

FORMAT = 1
Item = Vector | Mask | memoryview


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message has the reason."""


@dataclass(frozen=True, eq=False)
class ClientState:
    """What a simulated client holds between its steps."""

    request: bytes  # digests of what it was sent, as a message
    memory: Items


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run between two steps."""

    state: RunState
    history: History
    ledger: Sequence[Mapping[str, Any]]
    sent: Sequence[ModelState]  # to clients, which may hold them; oldest first
    model: ModelState  # the current one; if it was sent, also the last of `sent`
    clients: Mapping[ClientId, ClientState]
    work: Mapping[str, Any]
    seconds: float

    @property
    def is_model_sent(self) -> bool:
        return bool(self.sent) and self.sent[-1] is self.model


def write_checkpoint(path: Path, run: str, kept: Checkpoint, more: Mapping[str, Any]) -> None:
    """Replace the checkpoint of a run; `more` is what the caller keeps with it."""
    items = _ItemWriter()
    document = {
        "format": FORMAT,
        "run": run,
        "more": more,
        "state": {**to_plain(kept.state), "settings": None},
        "history": to_plain(kept.history),
        "ledger": kept.ledger,
        "sent": [_model_entry(model, items) for model in kept.sent],
        "model": None if kept.is_model_sent else _model_entry(kept.model, items),
        "clients": {
            name: [client.request.hex(), items.add_all(client.memory)]
            for name, client in kept.clients.items()
        },
        "work": kept.work,
        "seconds": kept.seconds,
        "items": items.entries,
    }
    buffers: list[bytes | memoryview] = [json.dumps(document).encode(), b"\n", *items.buffers]
    whole = hashlib.sha256()
    for buffer in buffers:
        whole.update(buffer)
    write_atomic(path, [whole.hexdigest().encode(), b"\n", *buffers])


def read_checkpoint(
    path: Path, run: str, settings: RunSettings, first: ModelState
) -> tuple[Checkpoint, dict[str, Any]]:
    """Return the checkpoint of a run and what its caller kept; raise CheckpointError.

    `settings` and `first` are the settings of the run's state and its model before any step.
    """
    try:
        digest, _, rest = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise CheckpointError(f"it cannot be read: {error.strerror}") from error
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        raise CheckpointError("it is damaged")
    try:
        line, _, data = rest.partition(b"\n")
        document = json.loads(line)
        if (document["format"], document["run"]) != (FORMAT, run):
            raise CheckpointError("it belongs to another run or version")
        items = _read_items(document["items"], data)
        state = from_plain(RunState, {**document["state"], "settings": to_plain(settings)})
        sent = [_model(entry, items, first) for entry in document["sent"]]
        entry = document["model"]
        kept = Checkpoint(
            replace(state, settings=settings),
            from_plain(History, document["history"]),
            document["ledger"],
            sent,
            sent[-1] if entry is None else _model(entry, items, first),
            {
                ClientId(name): ClientState(bytes.fromhex(request), _named(memory, items))
                for name, (request, memory) in document["clients"].items()
            },
            document["work"],
            document["seconds"],
        )
        return kept, document["more"]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"it is malformed ({type(error).__name__}: {error})") from error


class _ItemWriter:
    """Numbers items; an item that equals an earlier one gets its number."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, int]] = []  # kind, and size of a mask or length in bytes
        self.buffers: list[memoryview] = []
        self._numbers: dict[tuple[str, bytes], int] = {}

    def add(self, item: Item | None) -> int | None:
        if item is None:
            return None
        if isinstance(item, Mask):
            kind, size, data, digest = "mask", item.size, memoryview(item.bits), item.digest
        elif isinstance(item, memoryview):
            kind, size, data, digest = "bytes", len(item), item, hashlib.sha256(item).digest()
        else:
            data, digest = values_only.encode(item), item_digest(item)
            kind, size = "vector", len(data)
        number = self._numbers.setdefault((kind, digest), len(self.entries))
        if number == len(self.entries):
            self.entries.append((kind, size))
            self.buffers.append(data)
        return number

    def add_all(self, items: Items) -> dict[str, int | None]:
        return {name: self.add(item) for name, item in items.items()}


def _read_items(entries: Sequence[Sequence[Any]], data: bytes) -> list[Item]:
    items: list[Item] = []
    rest = memoryview(data)
    for kind, size in entries:
        length = (size + 7) // 8 if kind == "mask" else size
        if not 0 <= length <= len(rest):
            raise ValueError("items are missing")
        part, rest = rest[:length], rest[length:]
        if kind == "mask":
            items.append(Mask(bytes(part), size))
        elif kind == "vector":
            items.append(np.frombuffer(part, dtype="<f4").astype(np.float32))
        else:
            items.append(part)
    return items


def _named(numbers: Mapping[str, int], items: Sequence[Item]) -> dict[str, Vector | Mask]:
    found: dict[str, Vector | Mask] = {}
    for name, number in numbers.items():
        item = items[number]
        if isinstance(item, memoryview):
            raise ValueError(f"{name} is neither a vector nor a mask")
        found[name] = item
    return found


_ITEMS_OF_MODEL = ("mask", "values", "change", "scored", "resting", "first")
_WORDS_OF_MODEL = ("mask_epoch", "stage")


def _model_entry(model: ModelState, items: _ItemWriter) -> dict[str, Any]:
    """Return what a model has beyond the first one."""
    scored = None if model.scored is None else vector_of(model.scored)
    resting = None if model.resting is None else vector_of(model.resting)
    held = (model.mask, model.values, model.change, scored, resting, model.first)
    return {
        **dict(zip(_ITEMS_OF_MODEL, map(items.add, held), strict=True)),
        **{name: getattr(model, name) for name in _WORDS_OF_MODEL},
        "extra": items.add_all(model.extra),
    }


def _model(entry: Mapping[str, Any], items: Sequence[Item], first: ModelState) -> ModelState:
    held = {name: None if entry[name] is None else items[entry[name]] for name in _ITEMS_OF_MODEL}
    return replace(
        first,
        **held,  # type: ignore[arg-type]
        **{name: entry[name] for name in _WORDS_OF_MODEL},
        scored_digest=b"" if held["scored"] is not None else first.scored_digest,
        extra=_named(entry["extra"], items),
    )
