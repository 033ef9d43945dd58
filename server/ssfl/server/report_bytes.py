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
from ssfl.server.view import BYTES_PER_VALUE, payload

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
    against: Against, rows: Sequence[Mapping[str, Any]], reported: int, asked: int, voted: int,
    clients: int, masks: int,
) -> list[Entry]:  # fmt: skip
    """Return lines of what each kind of transfer comes to: dense, by the paper, and here.

    `voted`: scores that counted, over all masks; `clients` got the model and every mask.
    """
    values, masked = against.num_values, against.num_masked

    def line(
        what: str, times: int, formula: str, paper: float, ours: int, dense: int | None, kept: int
    ) -> Entry:
        return {
            "what": what, "transfers": times, "dense_bytes": dense, "formula": formula,
            "paper_bytes": round(paper), "kept_bytes": kept, "bytes": ours,
            "to_paper": ours / paper if paper else None,
            "to_dense": ours / dense if dense else None,
        }  # fmt: skip

    four, up, down = BYTES_PER_VALUE, Direction.UP, Direction.DOWN
    out = [
        line(
            "updates up", reported, "4sP", four * against.paper_values_up,
            payload(rows, up, ("values",)), four * values * reported,
            four * against.kept_values_up,
        ),
        line(
            "models down", asked, "4sP", four * against.paper_values_down,
            payload(rows, down, ("values",)), four * values * asked,
            four * against.kept_values_down,
        ),
    ]  # fmt: skip
    once = [
        ("initial model", down, "initial", clients, "4P", four * values),
        ("scores up", up, "scores", voted, "4W", four * masked),
        ("mask down", down, "mask", clients * masks, "W/8", -(-masked // 8)),
    ]
    for what, way, phase, times, formula, each in once if masks else once[:1]:
        ours = payload(rows, way, (phase,))
        dense = four * values * times if phase == "initial" else None
        out.append(line(what, times, formula, each * times, ours, dense, each * times))
    return out


def paper_break_even(num_values: int, num_masked: int, num_kept: int) -> float | None:
    """Return after how many rounds a client has, by the formulas, moved less than in a dense run.

    (4P + 4W + W/8) / (8 (P - k - D)); None: never, since nothing is pruned.
    """
    spared = 2 * BYTES_PER_VALUE * (num_masked - num_kept)
    once = BYTES_PER_VALUE * (num_values + num_masked) + num_masked / 8
    return once / spared if spared else None
