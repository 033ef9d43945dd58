"""Compares a run's bytes with dense training and with the paper's formulas for the same transfers.

The model has P values: W are masked, k of those are kept, and D = P - W are not masked. In float32,
a transfer costs 4P dense, 4sP by the paper (s = k / W, with norms and biases pruned like the rest)
and 4(k + D) as kept values. Before the first round come 4P for the model, 4W for scores and W / 8
for the mask. All are payload bytes, as in the paper; the ledger has messages and TCP in other
columns. dense_equivalent.py defines the transfers that are compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssfl.server.accounting.dense_equivalent import BYTES_PER_VALUE, COMPARED
from ssfl.server.accounting.ledger import MASK, ONE_OFF, ROUND_MASKS, Direction
from ssfl.server.history.run_history import Entry
from ssfl.server.report.run_view import RunView, payload


@dataclass
class DenseComparison:
    """Sums the bytes of dense training and of the paper; all is dense before the first mask."""

    num_values: int
    num_masked: int
    kept_values_up: int = 0  # k + D for every update,
    kept_values_down: int = 0  # and for every model sent
    paper_values_up: float = 0.0  # sP
    paper_values_down: float = 0.0
    break_even: int | None = None  # first round after which less was sent than in dense training
    _kept: int | None = None  # by the newest mask
    _updates: int = 0  # counted so far
    _models: int = 0

    def add(self, name: str, entry: Mapping[str, Any], view: RunView) -> None:
        """Add the next entry of the list `name`. Call it after `view.add`."""
        kept = self.num_masked if self._kept is None else self._kept
        updates, self._updates = view.num_updates - self._updates, view.num_updates
        models, self._models = view.num_models - self._models, view.num_models
        values, share = kept + self.num_values - self.num_masked, kept / self.num_masked
        moved = entry.get("mask") if name == "rounds" else None  # of a strategy that moves masks
        up_values, up_share = values, share
        if moved:
            up_share = moved["client_density"]
            up_values = round(up_share * self.num_masked) + self.num_values - self.num_masked
            self._kept = round(moved["density"] * self.num_masked)
        self.kept_values_up += updates * up_values
        self.kept_values_down += models * values
        self.paper_values_up += updates * up_share * self.num_values
        self.paper_values_down += models * share * self.num_values
        if name == "masks":
            self._kept = entry["num_kept"]  # models sent for scoring are under the previous mask
        if name == "rounds" and self.break_even is None:
            sent = sum(payload(entry["ledger"], way, (*ONE_OFF, *COMPARED)) for way in Direction)
            if sent < BYTES_PER_VALUE * self.num_values * (self._updates + self._models):
                self.break_even = entry["round"] + 1


def formulas(
    against: DenseComparison, rows: Sequence[Mapping[str, Any]], view: RunView, num_clients: int
) -> list[Entry]:
    """Return a row per kind of transfer with its bytes: dense, by the paper, and in this run.

    Each of `num_clients` clients got the model and every mask once.
    """
    values, masked = against.num_values, against.num_masked
    up, down = Direction.UP, Direction.DOWN
    compared = view.bytes(rows, values)
    out = [
        _line("updates up", view.num_updates, "4sP", against.paper_values_up,
              compared["up"]["values"], values, against.kept_values_up),
        _line("models down", view.num_models, "4sP", against.paper_values_down,
              compared["down"]["values"], values, against.kept_values_down),
        _line("initial model", num_clients, "4P", num_clients * values,
              payload(rows, down, ("initial",)), values, num_clients * values),
    ]  # fmt: skip
    if view.num_masks:
        scores, masks = view.num_votes * masked, num_clients * view.num_masks
        if scores or not payload(rows, up, (MASK,)):  # a strategy may ask for masks instead
            sent = payload(rows, up, ("scores",))
            out.append(_line("scores up", view.num_votes, "4W", scores, sent))
        sent = payload(rows, down, (MASK,))
        out.append(_line("mask down", masks, "W/8", masks * masked / 32, sent))
    for way, times in ((up, view.num_updates), (down, view.num_models)):
        if sent := payload(rows, way, (ROUND_MASKS,)):
            name = f"round masks {way.value}"
            out.append(_line(name, times, "W/8", times * masked / 32, sent))
    return out


def _line(
    what: str, times: int, formula: str, paper_values: float, num_bytes: int,
    dense_values: int = 0, kept_values: int | None = None,
) -> Entry:  # fmt: skip
    """Convert counts of values to bytes; `dense_values` is per transfer, the others are totals."""
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
    """Return the rounds after which a client has, by the formulas, sent less than in a dense run.

    (4P + 4W + W/8) / (8 (P - k - D)); None: never, since nothing is pruned.
    """
    spared = 2 * BYTES_PER_VALUE * (num_masked - num_kept)
    once = BYTES_PER_VALUE * (num_values + num_masked) + num_masked / 8
    return once / spared if spared else None
