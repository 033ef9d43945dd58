"""Byte accounting by phase, direction and encoding.

Three counts: *payload* is encoded tensors alone, *message* whole protobuf messages, *socket* what
TCP carried. The kernel does not know the purpose of a byte, so socket bytes are booked to a
phase of their own, `connection`, which has no messages.

`mask` has the masks that are agreed before or between rounds, and those of a warm-up. Masks that
the rounds of a strategy move are `round_masks`, with those that clients send.

Totals are kept for the whole run. Detail by client is kept until `take` moves it to ledger.csv at
the end of a step (ledger_file.py), so memory does not grow with the rounds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ssfl.strategies.contract import ClientId
from ssfl.v1 import transfer_pb2

MASK, ROUND_MASKS, VALUES = "mask", "round_masks", "values"
RELAY = "relay"  # updates that pass from client to client; in simulations only
PHASES = ("initial", "scores", MASK, VALUES, ROUND_MASKS, RELAY, "evaluation", "control")
ONE_OFF = ("initial", "scores", MASK)
CONNECTION = "connection"
_PHASE_ORDER = {phase: place for place, phase in enumerate((*PHASES, CONNECTION))}
COUNTS = ("payload_bytes", "message_bytes", "socket_bytes")


class Direction(StrEnum):
    UP = "up"  # client to coordinator
    DOWN = "down"


_MASKS = ("bitmask_sorted", "bitmask", "bitmask_zstd")
_VALUES = ("values_only", "reference", "bfloat16", "int8", "grid")
# Encodings of tensors, by phase and direction.
CARRIED = {
    ("initial", Direction.UP): ("dense",),
    ("initial", Direction.DOWN): ("dense", "reference"),
    ("scores", Direction.UP): ("scores", "dense"),
    ("mask", Direction.UP): _MASKS,
    ("mask", Direction.DOWN): _MASKS,
    ("values", Direction.UP): _VALUES,
    ("values", Direction.DOWN): _VALUES,
    ("round_masks", Direction.UP): _MASKS,
    ("round_masks", Direction.DOWN): _MASKS,
    ("evaluation", Direction.DOWN): (*_VALUES, *_MASKS),
}


@dataclass(slots=True)
class _Bytes:
    payload: int = 0
    message: int = 0
    socket: int = 0


Key = tuple[str, Direction, str]  # phase, direction, encoding


class Ledger:
    """The bytes of one run."""

    def __init__(self) -> None:
        self._totals: dict[Key, _Bytes] = {}
        self._detail: dict[tuple[str, Key], _Bytes] = {}

    def count(
        self,
        phase: str,
        direction: Direction,
        message_bytes: int,
        payload_bytes: int = 0,
        *,
        client: ClientId | str = "",
        encoding: str = "",
    ) -> None:
        """Add one protobuf message and the bytes and encoding of the tensor in it, if any."""
        self._add(client, (phase, direction, encoding), payload_bytes, message_bytes, 0)

    def carry(self, client: ClientId, direction: Direction, socket_bytes: int) -> None:
        """Add the bytes a client's connection carried since the last sample."""
        if socket_bytes:
            self._add(client, (CONNECTION, direction, ""), 0, 0, socket_bytes)

    def _add(self, client: str, key: Key, payload: int, message: int, socket: int) -> None:
        if key not in self._totals:
            self._totals[key] = _Bytes()
        if (client, key) not in self._detail:
            self._detail[client, key] = _Bytes()
        for counted in (self._totals[key], self._detail[client, key]):
            counted.payload += payload
            counted.message += message
            counted.socket += socket

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per phase, direction and encoding that saw a byte."""
        return [_row(key, self._totals[key]) for key in sorted(self._totals, key=_order)]

    @property
    def untaken(self) -> bool:
        """Whether bytes were counted since the last `take`."""
        return bool(self._detail)

    def take(self) -> list[dict[str, Any]]:
        """Return rows by client of the bytes since the last call, and reset them."""
        detail, self._detail = self._detail, {}
        keys = sorted(detail, key=lambda one: (one[0], _order(one[1])))
        return [{"client": client, **_row(key, detail[client, key])} for client, key in keys]

    def resume(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Continue from the totals of an earlier process."""
        for row in rows:
            key = (str(row["phase"]), Direction(row["direction"]), str(row.get("encoding", "")))
            self._totals[key] = _Bytes(
                int(row["payload_bytes"]), int(row["message_bytes"]), row.get("socket_bytes") or 0
            )


def encoding_word(encoding: transfer_pb2.Encoding) -> str:
    """Return the plain name of a wire encoding, as in `values_only`."""
    if encoding == transfer_pb2.ENCODING_UNSPECIFIED:
        return ""
    return transfer_pb2.Encoding.Name(encoding).removeprefix("ENCODING_").lower()


def _row(key: Key, counted: _Bytes) -> dict[str, Any]:
    phase, direction, encoding = key
    return {
        "phase": phase,
        "direction": direction.value,
        "encoding": encoding,
        "payload_bytes": counted.payload,
        "message_bytes": counted.message,
        "socket_bytes": counted.socket if phase == CONNECTION else None,
    }


def _order(key: Key) -> tuple[int, bool, str]:
    phase, direction, encoding = key
    return _PHASE_ORDER[phase], direction is Direction.DOWN, encoding
