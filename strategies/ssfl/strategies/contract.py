"""The seam between a learning method and the system that runs it.

A method has two roles, which compose: a *mask source* (mask_source.py) decides which weights exist,
and a *rule* decides what clients do in a round, how their uploads are reduced, and the server's
step. A rule is one file with both halves:

    server half  numpy only; every method is a pure function of its arguments, so that the
                 coordinator, recovery, `ssfl audit`, `ssfl plan` and the simulator can call it
    client half  what `client()` returns; it imports torch inside, and runs at a site or in the
                 simulator

The system knows kinds of parts (values, bits, further vectors, numbers), never a method.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, NewType, Protocol

import numpy as np
import numpy.typing as npt

from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.sampling import sample_cohort
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.method.training_rules import Correction, Pull, TrainingRule
from ssfl.method.value_types import commit_change

__all__ = ["Correction", "Pull"]  # for the files of methods

ClientId = NewType("ClientId", str)
Weights = npt.NDArray[np.int64]
OnStep = Callable[[int, int], None]  # steps done, steps in total; may raise to stop


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


class Scorers(StrEnum):
    """The clients that a criterion asks for scores."""

    ALL = "all"
    ONE = "one"
    NONE = "none"


class Reducer(StrEnum):
    """How the values of a step's uploads are reduced."""

    WEIGHTED_SUM = "weighted_sum"  # exact weighted mean; a value that a client lacks counts as 0
    WEIGHTED_SUM_BY_HOLDER = "weighted_sum_by_holder"  # each value over the clients that hold it
    NONE = "none"  # the rule reads the uploads one by one


@dataclass(frozen=True, slots=True)
class Plan:
    """A step to start: its work, its clients, and how their uploads are reduced.

    The coordinator finishes a step with an empty cohort alone.
    """

    work: Work
    cohort: tuple[ClientId, ...]  # sorted
    reducer: Reducer = Reducer.WEIGHTED_SUM
    equal_weights: bool = False  # of the clients in the mean; else their numbers of samples
    criterion: str = ""  # SCORE: which scores, "saliency" for |gradient x weight|
    num_batches: int = 0  # SCORE: minibatches that each client scores
    task: str = ""  # TRAIN: a word of the rule for its client half; empty: a plain round
    counts_as_round: bool = True  # TRAIN


@dataclass(frozen=True, slots=True)
class Position:
    """Progress of the run, as `plan` sees it: names and counts, no arrays."""

    rounds_done: int
    mask_epoch: int
    attempt: int  # how often the next step was void
    refresh: bool = False  # refresh the mask now
    newcomers: frozenset[ClientId] = frozenset()  # available clients that joined after the start
    spare: int = 0  # clients to ask in addition, in case some get lost
    stage: str = ""  # of the model state


@dataclass(frozen=True, slots=True)
class UploadParts:
    """The parts of an update in a step. Every length is known before a byte is read."""

    values: bool = True  # kept values, on the client's mask or on `bits`
    bits: bool = False  # the client may send a mask of its own
    bits_required: bool = False
    max_kept: int | None = None  # most weights that the bits may keep; None: all
    vectors: tuple[str, ...] = ()  # further vectors on the same mask as the values, by name
    num_numbers: int = 0  # every update has this many


@dataclass(frozen=True, eq=False)
class Reduced:
    """The uploads of a step, reduced exactly, in any order of arrival.

    The vectors cover the values of the model state if all clients hold its mask, else the whole
    model (manifest.size).
    """

    values: Vector  # the mean; empty if uploads have no values or are not reduced
    weights: Weights | None = None  # WEIGHTED_SUM_BY_HOLDER: the weight behind each value
    votes: Weights | None = None  # of bits: for each masked weight, the weight of its keepers
    vectors: Mapping[str, Vector] = field(default_factory=dict)  # means of further vectors
    total_weight: int = 0  # of all clients


class Uploads(Protocol):
    """The uploads of a step that count, read from disk one by one."""

    @property
    def clients(self) -> Sequence[ClientId]:
        """The clients, sorted."""
        ...

    def weight(self, client: ClientId) -> int: ...
    def mask(self, client: ClientId) -> Mask:
        """Return the mask that the client's values lie on."""
        ...

    def numbers(self, client: ClientId) -> tuple[float, ...]: ...
    def read(self, client: ClientId, start: int, count: int, vector: str = "") -> Vector:
        """Return up to `count` values from number `start`, of the update or a further vector."""
        ...


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step whose uploads are complete."""

    work: Work
    round_number: int
    task: str = ""


# -- the client's half


@dataclass(frozen=True, eq=False)
class ScoringRequest:
    """The model to score and how to score it."""

    whole: Vector  # (manifest.size,) trained values on the mask, resting values off it
    mask: Mask | None = None  # the current mask; None before the first one
    criterion: str = "saliency"
    num_batches: int = 1
    num_kept: int = 0  # of the next mask
    epoch: int = 0  # selects the draw of minibatches


@dataclass(frozen=True, eq=False)
class PeerModel:
    """The last update of another client."""

    mask: Mask
    values: Vector  # kept values, then unmasked ones


@dataclass(frozen=True, eq=False)
class Received:
    """What the coordinator sent for a training step."""

    mask: Mask
    values: Vector  # kept values, then unmasked ones
    round_number: int
    task: str = ""  # the word of the plan
    vectors: Mapping[str, Vector] = field(default_factory=dict)  # on the same mask
    peers: Mapping[ClientId, PeerModel] = field(default_factory=dict)  # of a gossip rule, sorted


@dataclass(frozen=True, eq=False)
class Answer:
    """A client's answer to a training step."""

    # Its values lie on `bits`, or on the mask that was received. They are sent if the parts of the
    # step have values.
    trained: LocalResult
    bits: Mask | None = None
    vectors: Mapping[str, Vector] = field(default_factory=dict)  # on the same mask
    numbers: tuple[float, ...] = ()


class Memory(Protocol):
    """What a client keeps between its steps: named vectors and masks, never sent by the system.

    What a step puts here takes effect if the step counts. A void step leaves no trace.
    """

    def vector(self, name: str) -> Vector | None: ...
    def mask(self, name: str) -> Mask | None: ...
    def put(self, name: str, value: Vector | Mask) -> None: ...


# In a client's memory, in lossy runs: what coding lost of its last update, and on which mask.
CODING_ERROR, CODING_ERROR_MASK = "coding residual", "coding residual mask"


def take_coding_error(memory: Memory) -> Vector | None:
    """Return what coding lost of the client's last update, over the whole model; None if nothing.

    The system adds it to the next update only if that lies on the same mask. A client half whose
    masks move can take it from here and add it itself.
    """
    lost, mask = memory.vector(CODING_ERROR), memory.mask(CODING_ERROR_MASK)
    if lost is None or mask is None:
        return None
    memory.put(CODING_ERROR, np.zeros_like(lost))
    return mask.scatter(lost)


class SiteTools(Protocol):
    """What a site can do for a client half; every result follows from (seed, round, client).

    `values` are the kept values of `mask`, then the unmasked ones. Splits are "train",
    "validation" and "test".
    """

    manifest: Manifest
    initial: Vector  # (manifest.size,) the weights before any training
    settings: RunSettings
    client_id: str
    network: Any  # torch.nn.Module
    task: Any  # ssfl.learning.task.Task
    shard: Any  # ssfl.datasets.shards.shard_file.Shard

    def train(
        self,
        mask: Mask,
        values: Vector,
        round_number: int,
        on_step: OnStep,
        rules: Sequence[TrainingRule] = (),
        epochs: range | None = None,
    ) -> LocalResult:
        """Test the values, train them inside the mask, test the result.

        `epochs` selects some of the round's epochs, counted from 0; None: all.
        """
        ...

    def evaluate(self, mask: Mask, values: Vector, split: str = "test") -> Evaluation:
        """Return an evaluation without training."""
        ...

    def gradient(self, mask: Mask, values: Vector, round_number: int) -> Vector:
        """Return the gradient of every weight, (manifest.size,), on one batch of a round.

        The weights off the mask are zero, and have gradients like all others.
        """
        ...

    def stream(self, purpose: str, round_number: int) -> Stream:
        """Return the random stream of this client for a purpose in a round."""
        ...

    def scoring_inputs(
        self, request: ScoringRequest
    ) -> tuple[Any, Manifest, Any, Any, RunSettings, str]:
        """Load the model to score; return network, manifest, task, shard, settings and client."""
        ...

    def resting_weights(self, request: ScoringRequest) -> Vector | None:
        """Return the weights to score where the loaded model has zeros; None: its own weights."""
        ...


class ClientHalf:
    """What a client does in the steps of a rule. The defaults are FedAvg's."""

    # True if it uses only `train`, `evaluate`, `gradient`, `stream` and the fixed attributes of a
    # site, not its network: then mode `fast` of the simulator can train clients in one batch.
    can_be_stacked: bool = False

    def rules(self, received: Received) -> tuple[TrainingRule, ...]:
        """Return what changes every step of the local training."""
        return ()

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        """Return the answer to a training step."""
        trained = site.train(
            received.mask, received.values, received.round_number, on_step, self.rules(received)
        )
        return Answer(trained)

    def personal(self, received: Received, site: SiteTools, memory: Memory) -> Vector | None:
        """Return the values of this site's own model on the received mask; None if it has none."""
        return None


@dataclass(frozen=True)
class NoOptions:
    """The options of a rule that has none."""


class Rule:
    """What clients do in a round, how uploads are reduced, and the server's step.

    The defaults are FedAvg: the mean of the updates is the next model.
    """

    Options: ClassVar[type] = NoOptions  # a dataclass of `setting(...)`
    contract: ClassVar[int] = 1  # raised when the arithmetic or the parts change
    dense: ClassVar[bool] = False  # keeps every weight, whatever the settings of the mask say
    moves_mask: ClassVar[bool] = False  # chooses and moves the mask itself
    has_personal_models: ClassVar[bool] = False  # the client half keeps a model of each site's own
    reads_single_uploads: ClassVar[bool] = False
    needs_our_loop: ClassVar[bool] = False  # refuses tasks with their own `fit`
    # Clients receive each other's updates (gossip.py). Only the simulator runs such a rule.
    is_gossip: ClassVar[bool] = False

    def __init__(self, settings: RunSettings, options: Any) -> None:
        self.settings = settings
        self.options = options

    def check(self) -> None:
        """Raise SettingsError if a setting does not fit."""

    def begin(self, state: ModelState) -> ModelState:
        """Return the state before the first step; `state` comes from the mask source."""
        return state

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        """Return the next step for the available clients (sorted), or None at the end."""
        if position.rounds_done >= self.settings.rounds:
            return None
        return self.round_of(position, clients)

    def round_of(
        self,
        position: Position,
        clients: Sequence[ClientId],
        reducer: Reducer = Reducer.WEIGHTED_SUM,
        task: str = "",
    ) -> Plan:
        """Return a training round of a sampled cohort."""
        cohort = sample_cohort(
            self.settings, position.rounds_done, position.attempt, clients, position.newcomers,
            position.spare,
        )  # fmt: skip
        equal = self.settings.update_weights == "equal"
        return Plan(Work.TRAIN, tuple(cohort), reducer, equal, task=task)

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        """Return the parts of an update in a step with this task."""
        return UploadParts()

    def max_kept(self, manifest: Manifest, num_clients: int) -> int:
        """Return the most weights that a mask of this rule keeps after a round, for `ssfl plan`."""
        return manifest.num_masked

    def fewest_kept(self, manifest: Manifest, at_first: int) -> int:
        """Return the fewest weights that a mask keeps if the first keeps some, for `ssfl plan`."""
        return at_first

    def max_changed(self, manifest: Manifest, num_clients: int) -> int:
        """Return the most weights whose values a round changes, for `ssfl plan`."""
        return manifest.num_masked

    def client_state(self, client: ClientId, state: ModelState) -> ModelState:
        """Return the state that a client is sent to train."""
        return state

    def vectors(self, state: ModelState) -> Mapping[str, Vector]:
        """Return further vectors, on the mask of the state, that are sent with the model."""
        return {}

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        """Return the state after a step."""
        return committed(self.settings, state, reduced.values)

    def remasked(self, before: ModelState, after: ModelState) -> ModelState:
        """Return the state under a mask that the source has chosen; `extra` is that of `before`."""
        return after

    def deployed(self, state: ModelState) -> ModelState:
        """Return the plain weights that are tested, served and exported."""
        return state

    def neighbours(
        self, round_number: int, client: ClientId, others: Sequence[ClientId], memory: Memory
    ) -> tuple[ClientId, ...]:
        """Return the clients whose last updates a client receives, for a gossip rule.

        `others` are the other clients that have sent an update, sorted; `memory` is the client's.
        """
        return ()

    def client(self) -> ClientHalf:
        """Return the client's half."""
        return ClientHalf()


def committed(settings: RunSettings, state: ModelState, values: Vector) -> ModelState:
    """Return the state with new values on its mask, through the run's lossy code if it has one."""
    assert state.values is not None
    values, change = commit_change(settings, state.values, values, state.base_digest)
    return replace(state, values=values, change=change)
