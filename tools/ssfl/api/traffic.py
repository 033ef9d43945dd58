"""Bytes of a run, round by round, from the rows of its ledger."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.server.accounting.ledger import ONE_OFF

Doubles = npt.NDArray[np.float64]
Row = Mapping[str, Any]
_MEGA = 1e6


@dataclass(frozen=True, eq=False)
class Traffic:
    """Megabytes of all clients together. Arrays have one entry per round; nan means not counted.

    Attributes:
        up: to the coordinator, from the start of the run to the end of each round
        down: to the clients, from the start of the run to the end of each round
        up_per_round: to the coordinator in each round and in an evaluation right before it,
            without one-off bytes
        down_per_round: the same, to the clients
        one_off: initial weights, scores and mask, both directions
        total_up: to the coordinator in the whole run, with the last evaluation
        total_down: to the clients in the whole run, with the final model
    """

    up: Doubles
    down: Doubles
    up_per_round: Doubles
    down_per_round: Doubles
    one_off: float
    total_up: float
    total_down: float

    @classmethod
    def of(cls, rounds: Sequence[Iterable[Row]], end: Iterable[Row], column: str) -> "Traffic":
        """Return the sums of a ledger column, from the ledgers after each round and at the end."""
        states = [list(rows) for rows in (*rounds, end)]

        def so_far(direction: str, phases: tuple[str, ...] = ()) -> Doubles:
            sums = [_sum(rows, direction, phases, column) for rows in states]
            return np.array(sums, dtype=np.float64) / _MEGA

        up, down = so_far("up"), so_far("down")
        once_up, once_down = so_far("up", ONE_OFF), so_far("down", ONE_OFF)
        return cls(
            up[:-1],
            down[:-1],
            np.diff((up - once_up)[:-1], prepend=0.0),
            np.diff((down - once_down)[:-1], prepend=0.0),
            float(once_up[-1] + once_down[-1]),
            float(up[-1]),
            float(down[-1]),
        )


def _sum(rows: list[Row], direction: str, phases: tuple[str, ...], column: str) -> float:
    """Return the bytes of `phases`, or of all phases if empty; nan if they were not counted."""
    if not rows or any(row[column] is None for row in rows):
        return float("nan")
    return float(
        sum(
            row[column]
            for row in rows
            if row["direction"] == direction and (not phases or row["phase"] in phases)
        )
    )
