"""What a strategy decides: who does what next, how it is summed, what the sum becomes.

The run asks `plan` for the next step, collects one upload from every client of the step, sums
the accepted ones with the step's reducer and gives the result to `finish`, which returns the
next model state. `plan` sees only counts and names, so it can run inside the pure state
machine; `finish` sees the arrays and runs on a worker. Neither keeps anything between calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, Protocol

import numpy as np
import numpy.typing as npt

from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState

ClientId = NewType("ClientId", str)


class Work(StrEnum):
    """What a client is asked to do in a step."""

    SCORE = "score"
    TRAIN = "train"
    EVALUATE = "evaluate"


class Reducer(StrEnum):
    """How the uploads of a step become one vector."""

    WEIGHTED_SUM = "weighted_sum"  # exact mean by data size


@dataclass(frozen=True, slots=True)
class Assignment:
    """One client's task in a step."""

    work: Work
    criterion: str = ""  # SCORE: which scores, "saliency" for |gradient x weight|


@dataclass(frozen=True, slots=True)
class Plan:
    """A step before it starts: a task per client, and the reducer of their uploads."""

    work: Work
    tasks: Mapping[ClientId, Assignment]
    reducer: Reducer


@dataclass(frozen=True, slots=True)
class Position:
    """How far the run is: what `plan` may look at."""

    rounds_done: int
    mask_epoch: int
    attempt: int  # how often the coming step was void


class Strategy(Protocol):
    """The coordinator's half of a way of learning."""

    def begin(self, manifest: Manifest, initial: npt.NDArray[np.float32]) -> ModelState:
        """Return the state before the first step."""
        ...

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        """Return the next step for the clients at hand (sorted), or None when all is done."""
        ...

    def finish(self, work: Work, state: ModelState, reduced: npt.NDArray[np.float32]) -> ModelState:
        """Return the state after a step whose uploads were reduced to `reduced`."""
        ...

    def num_decisive(self, manifest: Manifest) -> int:
        """Return how many of a client's largest scores can matter to the mask."""
        ...
