"""The relay of a gossip strategy: it keeps every client's last update and hands it to others.

A client uploads its update once. Each client that asks for it gets the same bytes. They are coded
against the initial weights, if at all, since these are all that every client holds.

Bytes are counted in two ways: as a relay carries them (up once, down once for each receiver), and
as if the clients sent them to each other (out and in, at each client).
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ssfl.client.memory import Items, StepMemory
from ssfl.server.accounting.ledger import encoding_word
from ssfl.server.uploads.update_parts import sections_of
from ssfl.strategies.contract import ClientId, PeerModel, Rule
from ssfl.v1 import update_pb2

Sizes = tuple[tuple[str, int], ...]  # encoding and bytes of each part of an update


@dataclass(frozen=True, eq=False)
class RelayedUpdate:
    """The last update of a client."""

    model: PeerModel
    sizes: Sizes

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self.sizes)


class Relay:
    """The last updates of all clients, and the bytes that they cost."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._updates: dict[ClientId, RelayedUpdate] = {}
        self._up: Counter[ClientId] = Counter()
        self._in: Counter[ClientId] = Counter()
        self._out: Counter[ClientId] = Counter()

    @property
    def updates(self) -> Collection[RelayedUpdate]:
        """The last update of every client."""
        return self._updates.values()

    def hand_out(
        self, round_number: int, client: ClientId, memory: Items
    ) -> dict[ClientId, RelayedUpdate]:
        """Return and count the updates that a client receives in a round, by client, sorted."""
        others = sorted(self._updates.keys() - {client})
        chosen = self._rule.neighbours(round_number, client, others, StepMemory(memory))
        found = {name: self._updates[name] for name in sorted(chosen)}
        for name, update in found.items():
            self._in[client] += update.num_bytes
            self._out[name] += update.num_bytes
        return found

    def publish(self, client: ClientId, model: PeerModel, header: update_pb2.SparseUpdate) -> Sizes:
        """Replace a client's update; return encoding and bytes of each of its parts."""
        payloads = [section.payload for section in sections_of(header)]
        sizes = tuple((encoding_word(part.encoding), part.num_bytes) for part in payloads)
        self._updates[client] = RelayedUpdate(model, sizes)
        self._up[client] += self._updates[client].num_bytes
        return sizes

    def document(self) -> dict[str, Any]:
        """Return the entry of the history: bytes in total, at the busiest client, and by client."""
        names = sorted(self._up)
        received = self._in.total()
        both = [self._in[name] + self._out[name] for name in names]
        return {
            "bytes_relay": self._up.total() + received,
            "bytes_peers": received,
            "bytes_busiest": max(both, default=0),
            "bytes_busiest_in": max((self._in[name] for name in names), default=0),
            "clients": {name: {"in": self._in[name], "out": self._out[name]} for name in names},
        }
