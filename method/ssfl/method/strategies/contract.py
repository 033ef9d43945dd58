"""What a strategy decides: who does what next, how it is summed, what the sum becomes.

The run asks `plan` for the next step, collects one upload from every client of the step, sums
the accepted ones with the step's reducer and gives the result to `finish`, which returns the
next model state. `plan` sees only counts and names, so it can run inside the pure state
machine; `finish` sees the arrays and runs on a worker. What they return depends on their
arguments alone.
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
        """Tell whether the step changes nothing but what is known of the model."""
        return self in (Work.EVALUATE, Work.PERSONALIZE)


class Reducer(StrEnum):
    """How the uploads of a step become one vector."""

    WEIGHTED_SUM = "weighted_sum"  # exact mean by weight
    WEIGHTED_SUM_BY_HOLDER = "weighted_sum_by_holder"  # of each value over those who hold it


@dataclass(frozen=True, slots=True)
class Plan:
    """A step before it starts: who is asked for what, and how their uploads are summed.

    A step that asks nobody is one that the coordinator finishes alone.
    """

    work: Work
    cohort: tuple[ClientId, ...]  # sorted
    reducer: Reducer = Reducer.WEIGHTED_SUM
    equal_weights: bool = False  # in the mean; else clients weigh what they have in samples
    criterion: str = ""  # SCORE: which scores, "saliency" for |gradient x weight|
    num_batches: int = 0  # SCORE: minibatches that each client scores


@dataclass(frozen=True, slots=True)
class Position:
    """How far the run is: what `plan` may look at."""

    rounds_done: int
    mask_epoch: int
    attempt: int  # how often the coming step was void
    refresh: bool = False  # the mask is to be renewed now
    newcomers: frozenset[ClientId] = frozenset()  # clients at hand that joined after the start
    spare: int = 0  # clients to ask besides those a round wants: some may get lost


class Strategy(Protocol):
    """The coordinator's half of a way of learning."""

    def begin(self, manifest: Manifest, initial: ModelVector) -> ModelState:
        """Return the state before the first step."""
        ...

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        """Return the next step for the clients at hand (sorted), or None when all is done."""
        ...

    def finish(
        self,
        work: Work,
        state: ModelState,
        aggregate: npt.NDArray[np.float32],
        rounds_done: int,
    ) -> ModelState:
        """Return the state after a step whose uploads were reduced to `reduced`."""
        ...

    def client_state(self, client: ClientId, work: Work, state: ModelState) -> ModelState:
        """Return the state as a client gets it: the same for all, unless masks are personal."""
        ...

    def num_kept(self, manifest: Manifest, rounds_done: int = 0) -> int:
        """Return how many weights a mask agreed on after so many rounds keeps."""
        ...

    def num_decisive(self, manifest: Manifest, rounds_done: int = 0) -> int:
        """Return how many of a client's largest scores can matter to the mask; 0: all."""
        ...
