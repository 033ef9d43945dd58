"""Robust means: a few clients that send arbitrary updates cannot decide the model.

    median        of each value, over the clients                            (Yin et al. 2018)
    trimmed-mean  of each value, without the `trim` share of the largest and of the smallest values
                                                                             (Yin et al. 2018)
    krum          the update with the smallest score, where client i's score is the sum of its
                  squared distances to the n - f - 2 nearest other updates   (Blanchard et al. 2017)
                  Multi-Krum: the mean of the `chosen` updates with the smallest scores

Clients have equal weights, as in the papers, whatever `update_weights` says: a client must not gain
influence by claiming many samples. Every update is read, so secure aggregation is not possible.

Choices where the papers leave room:
- The median of an even number is the mean of the two middle values.
- The trimmed mean drops floor(trim * n) values at either end.
- Krum's distances cover all values of an update, including norms, biases and running statistics.
  Of equal scores, the first in the order of client names wins.
- The papers' guarantees need more than 2 f + 2 updates for Krum. A run is refused if --min-clients
  allows fewer, or so few that a trimmed mean would drop nothing.

Updates are read in blocks, sorted by client. Sums and squared distances are float64 in a fixed
order, so every machine computes the same bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ssfl.method.errors import SettingsError
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import choice, setting
from ssfl.strategies.contract import (
    ClientId,
    Plan,
    Position,
    Reduced,
    Reducer,
    Rule,
    StepDone,
    Uploads,
    committed,
)
from ssfl.strategies.registry import OWN_MASKS

BLOCK = 1 << 14  # values of each client that are read at a time
CACHED = 1 << 10  # values per partial sum of distances; changing it changes the last bits

Distances = npt.NDArray[np.float64]  # (clients, clients), squared


@dataclass(frozen=True)
class RobustOptions:
    """Hyper-parameters; the papers leave them to the user."""

    kind: str = choice("how updates are combined", "median", "trimmed-mean", "krum")
    trim: float = setting(0.1, "trimmed-mean: share dropped at either end, below 0.5", le=0.5)
    byzantine: int = setting(1, "krum: f, the number of clients that may send anything")
    chosen: int = setting(1, "krum: number of updates in the mean; above 1: Multi-Krum", ge=1)


def trimmed_mean(rows: Vector, trim: int) -> Vector:
    """Return the mean of each column without its `trim` largest and smallest values.

    >>> trimmed_mean(np.array([[1], [9], [2], [6]], dtype=np.float32), 1).tolist()
    [4.0]
    """
    inside = np.sort(rows, axis=0)[trim : len(rows) - trim]
    mean: Vector = (inside.sum(axis=0, dtype=np.float64) / len(inside)).astype(np.float32)
    return mean


def median(rows: Vector) -> Vector:
    """Return the median of each column.

    >>> median(np.array([[1], [9], [2], [6]], dtype=np.float32)).tolist()
    [4.0]
    """
    return trimmed_mean(rows, (len(rows) - 1) // 2)


def add_distances(distances: Distances, rows: Vector) -> None:
    """Add the squared distances between clients in a block, which has a row per client."""
    for start in range(0, rows.shape[1], CACHED):
        exact = rows[:, start : start + CACHED].astype(np.float64)
        for i in range(len(rows) - 1):
            apart = exact[i + 1 :] - exact[i]
            apart *= apart
            distances[i, i + 1 :] += apart.sum(axis=1)
    distances[:] = np.triu(distances) + np.triu(distances).T


def krum_scores(distances: Distances, byzantine: int) -> npt.NDArray[np.float64]:
    """Return each client's sum of squared distances to the n - f - 2 nearest others."""
    others = ~np.eye(len(distances), dtype=np.bool_)
    nearest = [np.sort(row[other]) for row, other in zip(distances, others, strict=True)]
    count = len(distances) - byzantine - 2
    return np.array([row[:count].sum() for row in nearest], dtype=np.float64)


def lowest(scores: npt.NDArray[np.float64], count: int) -> list[int]:
    """Return the places of the lowest scores, ascending; of equal scores the first are taken.

    >>> lowest(np.array([3.0, 1.0, 2.0, 1.0, 2.0]), 3)
    [1, 2, 3]
    """
    return sorted(np.argsort(scores, kind="stable")[:count].tolist())


class Robust(Rule):
    """FedAvg with another mean."""

    Options = RobustOptions
    reads_single_uploads = True

    def check(self) -> None:
        options, fewest = self.options, self.settings.min_clients
        if self.settings.criterion == OWN_MASKS:
            raise SettingsError(
                f"--strategy robust compares updates under one mask: --criterion {OWN_MASKS} "
                "gives every client its own"
            )
        if options.kind == "trimmed-mean":
            if not 0 < options.trim < 0.5:
                raise SettingsError(
                    f"--robust.trim must be above 0 and below 0.5, got {options.trim:g}"
                )
            needed = math.ceil(1 / Fraction(str(options.trim)))
            why = f"with fewer updates, --robust.trim {options.trim:g} drops none"
        elif options.kind == "krum":
            needed = max(2 * options.byzantine + 3, options.byzantine + options.chosen)
            why = (
                f"krum with --robust.byzantine {options.byzantine} and --robust.chosen "
                f"{options.chosen} needs that many"
            )
        else:
            return
        if fewest < needed:
            raise SettingsError(f"--min-clients {fewest} must be at least {needed}: {why}")

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        plan = super().plan(position, clients)
        return plan and replace(plan, reducer=Reducer.NONE, equal_weights=True)

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        assert state.values is not None
        options, clients, size = self.options, uploads.clients, state.values.size
        trim = 0
        if options.kind == "krum":
            distances = np.zeros((len(clients), len(clients)))
            for start in range(0, size, BLOCK):
                add_distances(distances, block(uploads, clients, start))
            scores = krum_scores(distances, options.byzantine)
            clients = [clients[i] for i in lowest(scores, options.chosen)]
        elif options.kind == "trimmed-mean":
            trim = int(Fraction(str(options.trim)) * len(clients))
        combine = median if options.kind == "median" else lambda rows: trimmed_mean(rows, trim)
        blocks = [combine(block(uploads, clients, start)) for start in range(0, size, BLOCK)]
        return committed(self.settings, state, np.concatenate(blocks))


def block(uploads: Uploads, clients: Sequence[ClientId], start: int) -> Vector:
    """Return a row of values for each client.

    Minus zero becomes zero: sorting does not order the two, so either could be a median.
    """
    rows = np.stack([uploads.read(client, start, BLOCK) for client in clients])
    return rows + np.float32(0)
