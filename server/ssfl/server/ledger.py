"""Bytes, counted as they pass: by what they were for, in which direction and how encoded."""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from ssfl.method.strategies.contract import ClientId
from ssfl.v1 import transfer_pb2

PHASES = ("initial", "scores", "mask", "values", "evaluation", "control")
ONE_OFF = ("initial", "scores", "mask")


class Direction(StrEnum):
    UP = "up"  # client to coordinator
    DOWN = "down"


class Ledger:
    """Running totals of payload and message bytes of one run, and the detail since the last take.

    The detail is by client: it is taken when a step ends, so it does not grow with the rounds.
    """

    def __init__(self) -> None:
        self._detail: dict[tuple[str, str, Direction, str], list[int]] = {}
        self._payload: Counter[tuple[str, Direction, str]] = Counter()
        self._message: Counter[tuple[str, Direction, str]] = Counter()

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
        """Add one protobuf message and the tensor bytes inside it."""
        self._message[phase, direction, encoding] += message_bytes
        self._payload[phase, direction, encoding] += payload_bytes
        sums = self._detail.setdefault((client, phase, direction, encoding), [0, 0])
        sums[0] += payload_bytes
        sums[1] += message_bytes

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per phase, direction and encoding that saw a byte."""
        return [
            {
                "phase": phase,
                "direction": direction.value,
                "encoding": encoding,
                "payload_bytes": self._payload[phase, direction, encoding],
                "message_bytes": self._message[phase, direction, encoding],
            }
            for phase, direction, encoding in sorted(self._message, key=_order)
        ]

    def take(self) -> list[dict[str, Any]]:
        """Return rows by client of what was counted since the last call, and begin anew."""
        detail, self._detail = self._detail, {}
        return [
            {
                "client": client,
                "phase": phase,
                "direction": direction.value,
                "encoding": encoding,
                "payload_bytes": payload,
                "message_bytes": message,
            }
            for (client, phase, direction, encoding), (payload, message) in detail.items()
        ]

    def resume(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Go on from the totals of an earlier process."""
        for row in rows:
            key = (str(row["phase"]), Direction(row["direction"]), str(row.get("encoding", "")))
            self._payload[key] = int(row["payload_bytes"])
            self._message[key] = int(row["message_bytes"])


def encoding_word(encoding: transfer_pb2.Encoding) -> str:
    """Return the plain name of a wire encoding, as in `values_only`."""
    if encoding == transfer_pb2.ENCODING_UNSPECIFIED:
        return ""
    return transfer_pb2.Encoding.Name(encoding).removeprefix("ENCODING_").lower()


def _order(key: tuple[str, Direction, str]) -> tuple[int, int, str]:
    phase, direction, encoding = key
    return PHASES.index(phase), list(Direction).index(direction), encoding
