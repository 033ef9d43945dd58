"""Bytes, counted as they pass: by what they were for and in which direction."""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

PHASES = ("initial", "scores", "mask", "values", "evaluation", "control")
ONE_OFF = ("initial", "scores", "mask")


class Direction(StrEnum):
    UP = "up"  # client to coordinator
    DOWN = "down"


class Ledger:
    """Running totals of payload and message bytes of one run."""

    def __init__(self) -> None:
        self._payload: Counter[tuple[str, Direction]] = Counter()
        self._message: Counter[tuple[str, Direction]] = Counter()

    def count(
        self, phase: str, direction: Direction, message_bytes: int, payload_bytes: int = 0
    ) -> None:
        """Add one protobuf message and the tensor bytes inside it."""
        self._message[phase, direction] += message_bytes
        self._payload[phase, direction] += payload_bytes

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per phase and direction that saw a byte."""
        return [
            {
                "phase": phase,
                "direction": direction.value,
                "payload_bytes": self._payload[phase, direction],
                "message_bytes": self._message[phase, direction],
            }
            for phase in PHASES
            for direction in Direction
            if self._message[phase, direction]
        ]

    def resume(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Go on from the totals of an earlier process."""
        for row in rows:
            key = (str(row["phase"]), Direction(row["direction"]))
            self._payload[key] = int(row["payload_bytes"])
            self._message[key] = int(row["message_bytes"])
