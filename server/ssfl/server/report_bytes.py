"""A run's bytes beside what a dense system and the paper's formulas come to for the same transfers.

P values of the model, W of them masked, D = P - W not, k kept: then float32 costs 4P dense, 4sP by
the paper (s = k / W, norms and biases pruned like the rest), 4(k + D) as kept values; and before
the first round 4P for the model, 4W for scores and W / 8 for the mask. Payload bytes, as in the
paper: messages and TCP around them are in the ledger's other columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssfl.server.history import Entry
from ssfl.server.ledger import Direction
from ssfl.server.view import BYTES_PER_VALUE, RunView, payload

KeptFrom = Sequence[tuple[int, int]]  # round from which on, how many weights the mask keeps
_ROUNDS_AND_BEFORE = ("initial", "scores", "mask", "values")  # evaluations are extra, ours or not


def kept_from(masks: Iterable[Mapping[str, Any]]) -> KeptFrom:
    """Return when the number of kept weights changed: as short as it is constant."""
    changes: list[tuple[int, int]] = []
    for mask in masks:
        if not changes or changes[-1][1] != mask["num_kept"]:
            changes.append((mask["rounds_done"], mask["num_kept"]))
    return changes


@dataclass
class Against:
    """Sums, round by round, what others would have sent; rounds before the first mask are dense."""

    num_values: int
    num_masked: int
    changes: KeptFrom
    kept_values_up: int = 0  # k + D for every client that reported,
    kept_values_down: int = 0  # and that was asked
    paper_values_up: float = 0.0  # sP
    paper_values_down: float = 0.0
    dense_bytes: int = 0  # both ways, so far
    break_even: int | None = None  # rounds after which less had been sent than by a dense system
    _place: int = 0  # in `changes`

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take the next round."""
        reported = len(entry["clients"])
        asked = reported + len(entry["missing"])
        kept = self._kept(entry["round"])
        values, share = kept + self.num_values - self.num_masked, kept / self.num_masked
        self.kept_values_up += reported * values
        self.kept_values_down += asked * values
        self.paper_values_up += reported * share * self.num_values
        self.paper_values_down += asked * share * self.num_values
        self.dense_bytes += BYTES_PER_VALUE * self.num_values * (reported + asked)
        sent = sum(payload(entry["ledger"], way, _ROUNDS_AND_BEFORE) for way in Direction)
        if self.break_even is None and sent < self.dense_bytes:
            self.break_even = entry["round"] + 1

    def _kept(self, number: int) -> int:
        later = self._place + 1
        while later < len(self.changes) and self.changes[later][0] <= number:
            self._place, later = later, later + 1
        if not self.changes or number < self.changes[self._place][0]:
            return self.num_masked
        return self.changes[self._place][1]


def formulas(
    against: Against, rows: Sequence[Mapping[str, Any]], view: RunView, num_clients: int
) -> list[Entry]:
    """Return lines of what each kind of transfer comes to: dense, by the paper, and here.

    What every one of `num_clients` got once is the model, and each mask.
    """
    values, masked = against.num_values, against.num_masked
    tests, up, down = view.num_tests, Direction.UP, Direction.DOWN
    newest = against.changes[-1][1] if against.changes else masked
    out = [
        _line("updates up", view.num_reported, "4sP", against.paper_values_up,
              payload(rows, up, ("values",)), values, against.kept_values_up),
        _line("models down", view.num_asked, "4sP", against.paper_values_down,
              payload(rows, down, ("values",)), values, against.kept_values_down),
        _line("models down to test", tests, "4sP", tests * newest / masked * values,
              payload(rows, down, ("evaluation",)), values, tests * (newest + values - masked)),
        _line("initial model", num_clients, "4P", num_clients * values,
              payload(rows, down, ("initial",)), values, num_clients * values),
    ]  # fmt: skip
    if view.num_masks:
        scores, masks = view.num_votes * masked, num_clients * view.num_masks
        out += [
            _line("scores up", view.num_votes, "4W", scores, payload(rows, up, ("scores",))),
            _line("mask down", masks, "W/8", masks * masked / 32, payload(rows, down, ("mask",))),
        ]
    return out


def _line(
    what: str, times: int, formula: str, paper_values: float, num_bytes: int,
    dense_values: int = 0, kept_values: int | None = None,
) -> Entry:  # fmt: skip
    """Numbers of values become float32; `dense_values` are those of one transfer."""
    paper, dense = BYTES_PER_VALUE * paper_values, BYTES_PER_VALUE * dense_values * times
    return {
        "what": what,
        "transfers": times,
        "dense_bytes": dense or None,
        "formula": formula,
        "paper_bytes": round(paper),
        "kept_bytes": None if kept_values is None else BYTES_PER_VALUE * kept_values,
        "bytes": num_bytes,
        "to_paper": num_bytes / paper if paper else None,
        "to_dense": num_bytes / dense if dense else None,
    }


def paper_break_even(num_values: int, num_masked: int, num_kept: int) -> float | None:
    """Return after how many rounds a client has, by the formulas, moved less than in a dense run.

    (4P + 4W + W/8) / (8 (P - k - D)); None: never, since nothing is pruned.
    """
    spared = 2 * BYTES_PER_VALUE * (num_masked - num_kept)
    once = BYTES_PER_VALUE * (num_values + num_masked) + num_masked / 8
    return once / spared if spared else None
