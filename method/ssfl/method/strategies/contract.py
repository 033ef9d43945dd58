"""The interface of a strategy: plan a step, and turn its aggregate into the next model.

The run calls `plan` for the next step, collects one upload from every client of the step, sums
the accepted ones with the step's reducer and passes the result to `finish`, which returns the
next model state. `plan` sees only counts and names, so it can run inside the pure state machine.
`finish` sees the arrays and runs on a worker thread. Both depend only on their arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, Protocol

import numpy as np
import numpy.typing as npt

from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState, ModelVector

ClientId = NewType("ClientId", str)


class Work(StrEnum):
    """What a client is asked to do in a step."""

    SCORE = "score"
    TRAIN = "train"
    EVALUATE = "evaluate"
    PERSONALIZE = "personalize"

    @property
    def is_test(self) -> bool:
        """True if the step only measures the model."""
        return self in (Work.EVALUATE, Work.PERSONALIZE)


class Reducer(StrEnum):
    """How the uploads of a step are reduced to one vector."""

    WEIGHTED_SUM = "weighted_sum"  # exact weighted mean
    WEIGHTED_SUM_BY_HOLDER = "weighted_sum_by_holder"  # each value over the clients that hold it


@dataclass(frozen=True, slots=True)
class Plan:
    """A step to start: its work, its clients, and how their uploads are summed.

    The coordinator finishes a step with an empty cohort alone.
    """

    work: Work
    cohort: tuple[ClientId, ...]  # sorted
    reducer: Reducer = Reducer.WEIGHTED_SUM
    equal_weights: bool = False  # of the clients in the mean; else their numbers of samples
    criterion: str = ""  # SCORE: which scores, "saliency" for |gradient x weight|
    num_batches: int = 0  # SCORE: minibatches that each client scores


@dataclass(frozen=True, slots=True)
class Position:
    """Progress of the run, as `plan` sees it."""

    rounds_done: int
    mask_epoch: int
    attempt: int  # how often the next step was void
    refresh: bool = False  # refresh the mask now
    newcomers: frozenset[ClientId] = frozenset()  # available clients that joined after the start
    spare: int = 0  # clients to ask in addition, in case some get lost


class Strategy(Protocol):
    """The coordinator's half of a learning method."""

    def begin(self, manifest: Manifest, initial: ModelVector) -> ModelState:
        """Return the state before the first step."""
        ...

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        """Return the next step for the available clients (sorted), or None at the end."""
        ...

    def finish(
        self,
        work: Work,
        state: ModelState,
        aggregate: npt.NDArray[np.float32],
        rounds_done: int,
    ) -> ModelState:
        """Return the state after a step, given the `aggregate` of its uploads."""
        ...

    def client_state(self, client: ClientId, work: Work, state: ModelState) -> ModelState:
        """Return the state for a client: the same for all, unless clients have own masks."""
        ...

    def num_kept(self, manifest: Manifest, rounds_done: int = 0) -> int:
        """Return how many weights a mask agreed after `rounds_done` rounds keeps."""
        ...

    def num_decisive(self, manifest: Manifest, rounds_done: int = 0) -> int:
        """Return how many of a client's largest scores can affect the mask; 0: all."""
        ...
