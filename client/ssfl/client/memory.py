"""What a client keeps between its steps: the memory of a strategy, and coding errors.

memory/<digest>.bin  a vector (float32) or a mask (packed bits)
memory.json          index of the current items: names, kinds and digests, with run and round
memory.old.json      index before that round, in case a coordinator of an older version
                     declared the round void
memory.next.json     index after the pending step, with its number

The index files name items by digest, so an item never changes. What a step puts here takes effect
when the coordinator's next task reports that the step counted (`settle`). A coordinator of an older
version does not report it; there, a step counts if the receipt says that the upload was accepted.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ssfl.codec import values_only
from ssfl.durable.failpoints import failpoint
from ssfl.durable.files import write_atomic
from ssfl.method.mask import Mask
from ssfl.method.model_state import Vector, item_digest
from ssfl.strategies.contract import CODING_ERROR, CODING_ERROR_MASK

Items = Mapping[str, Vector | Mask]


def residual_of(items: Items, mask: Mask) -> Vector | None:
    """Return the coding error of the client's last update if its values lay on this mask."""
    residual = items.get(CODING_ERROR)
    if isinstance(residual, Mask) or items.get(CODING_ERROR_MASK) != mask:
        return None
    return residual


def residual_items(residual: Vector | None, mask: Mask) -> dict[str, Vector | Mask]:
    """Return what to keep of an update's coding error."""
    return {} if residual is None else {CODING_ERROR: residual, CODING_ERROR_MASK: mask}


@dataclass
class StepMemory:
    """The memory as one step sees it."""

    items: Items
    puts: dict[str, Vector | Mask] = field(default_factory=dict)

    def vector(self, name: str) -> Vector | None:
        """Return a vector by name; None if there is none."""
        found = self.puts.get(name, self.items.get(name))
        return None if isinstance(found, Mask) else found

    def mask(self, name: str) -> Mask | None:
        """Return a mask by name; None if there is none."""
        found = self.puts.get(name, self.items.get(name))
        return found if isinstance(found, Mask) else None

    def put(self, name: str, value: Vector | Mask) -> None:
        """Set a vector or mask; it takes effect if the step counts."""
        self.puts[name] = value


class ClientMemory:
    """The memory in a client's state directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._items = folder / "memory"

    def load(self, run_id: str, round_number: int) -> dict[str, Vector | Mask]:
        """Return the vectors and masks as they were before a round; empty for another run."""
        index = self._index("memory.json")
        if index.get("run_id") != run_id:
            return {}
        if index["round"] == round_number:  # an older coordinator may have voided it
            index = self._index("memory.old.json") or index
        return self._read(index)

    def save_next(self, run_id: str, step: int, round_number: int, puts: Items) -> None:
        """Store the items of a step, before its upload is sent."""
        if not puts:
            (self._folder / "memory.next.json").unlink(missing_ok=True)
            return
        current = self._index("memory.json")
        entries = dict(current["items"]) if current.get("run_id") == run_id else {}
        self._items.mkdir(exist_ok=True)
        for name, value in puts.items():
            digest = item_digest(value).hex()
            path = self._items / f"{digest}.bin"
            if isinstance(value, Mask):
                entries[name], data = ["mask", digest, value.size], memoryview(value.bits)
            else:
                entries[name], data = ["vector", digest, 0], values_only.encode(value)
            if not path.exists():
                write_atomic(path, data)
        index = {"run_id": run_id, "step": step, "round": round_number, "items": entries}
        write_atomic(self._folder / "memory.next.json", json.dumps(index).encode())
        failpoint("client.remembered")

    def settle(self, step: int, counted_step: int | None) -> None:
        """Promote or discard the items of an earlier step; `step` is that of the new task.

        `counted_step` is the client's newest step that counted; None if the coordinator does not
        report it. The pending step then counted: `discard` was called if it did not.
        """
        pending = self._index("memory.next.json")
        if not pending or pending["step"] == step:
            return  # the step is open again: its upload was lost
        if counted_step is not None and counted_step != pending["step"]:
            self.discard()
            return
        old = self._folder / "memory.old.json"
        if counted_step is None:
            before = self._index("memory.json")
            if before.get("run_id") != pending["run_id"]:
                before = {**pending, "items": {}}
            if before["round"] != pending["round"] or not before["items"]:
                write_atomic(old, json.dumps(before).encode())
        else:
            old.unlink(missing_ok=True)
        (self._folder / "memory.next.json").replace(self._folder / "memory.json")
        failpoint("client.promoted")
        self._drop_unnamed()

    def discard(self) -> None:
        """Discard the items of a step that did not count."""
        (self._folder / "memory.next.json").unlink(missing_ok=True)

    def _index(self, name: str) -> dict[str, Any]:
        """Return an index; empty if it is missing or damaged."""
        try:
            index: dict[str, Any] = json.loads((self._folder / name).read_bytes())
            _ = index["run_id"], index["step"], index["round"], index["items"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {}
        return index

    def _read(self, index: Mapping[str, Any]) -> dict[str, Vector | Mask]:
        """Return the items of an index; those that are missing or damaged are left out."""
        found: dict[str, Vector | Mask] = {}
        for name, (kind, digest, size) in index["items"].items():
            try:
                data = (self._items / f"{digest}.bin").read_bytes()
                value: Vector | Mask
                if kind == "mask":
                    value = Mask(data, size)
                else:
                    value = np.frombuffer(data, dtype="<f4").astype(np.float32)
            except (FileNotFoundError, ValueError):
                continue
            if item_digest(value).hex() == digest:
                found[name] = value
        return found

    def _drop_unnamed(self) -> None:
        named = {
            digest
            for index in map(self._index, ("memory.json", "memory.old.json"))
            for _, digest, _ in index.get("items", {}).values()
        }
        for path in self._items.glob("*.bin"):
            if path.stem not in named:
                path.unlink()
