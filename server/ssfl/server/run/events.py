"""Inputs of the run (events) and its outputs (actions)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from ssfl.server.run import facts
from ssfl.server.run.state import Best, Step
from ssfl.strategies.contract import ClientId


@dataclass(frozen=True, slots=True)
class Joined:
    """A client asks to join; the service has checked the form of its request."""

    client: ClientId
    token: str
    num_samples: int
    manifest_digest: str
    fingerprint: str
    class_counts: Mapping[str, int] = field(default_factory=dict)  # empty: the site keeps them
    encodings: tuple[int, ...] = ()  # those the client can read and write
    labels: tuple[int, ...] = ()  # classes it has samples of; empty: the site keeps them
    name_proven: bool = False  # by a certificate; another token may then take over the name


# Facts that the caller proposes. The run journals them unless they are late or contradict it.
Initialized = facts.ModelInitialized  # a client's model was verified and its files are stored
UploadReceived = facts.UploadAccepted  # a complete, verified upload is synced in the spool
StepReduced = facts.StepCommitted  # the result of a closed step is stored


@dataclass(frozen=True, slots=True)
class Lost:
    """A client missed three heartbeats in a row."""

    client: ClientId


@dataclass(frozen=True, slots=True)
class Returned:
    """A lost client sent a heartbeat again."""

    client: ClientId


@dataclass(frozen=True, slots=True)
class DescriptionOverdue:
    """A client was asked to describe the model, and has not done so."""

    client: ClientId


@dataclass(frozen=True, slots=True)
class Left:
    """A client left."""

    client: ClientId
    finished: bool
    session: int | None = None  # the session that left; None: the newest


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """`ssfl pause`."""

    at: float  # unix seconds


@dataclass(frozen=True, slots=True)
class RemoveAsked:
    """`ssfl remove SITE`; with `--readmit`, the next token that joins owns the name."""

    client: ClientId
    readmit: bool = False


@dataclass(frozen=True, slots=True)
class ProcessSuspended:
    """The coordinator process was suspended for `seconds`; no client is charged for them."""

    seconds: float


class Signal(Enum):
    """An event without further data."""

    START = auto()  # `ssfl start`
    REFRESH = auto()  # `ssfl refresh-mask`
    RESUME = auto()  # `ssfl resume`
    STOP = auto()  # `ssfl stop`
    DRAIN = auto()  # the coordinator is shutting down: start nothing new
    TICK = auto()  # time has passed
    RECOVERED = auto()  # the state was replayed from a journal (or is new): resume the open step


Event = (
    Joined | Initialized | UploadReceived | StepReduced | Lost | Returned | DescriptionOverdue
    | Left | PauseAsked | RemoveAsked | ProcessSuspended | Signal
)  # fmt: skip


class Reply(StrEnum):
    """The reply to the sender of an event."""

    DONE = "done"
    ACCEPTED = "accepted"
    ALREADY_ACCEPTED = "already_accepted"
    STEP_CLOSED = "step_closed"
    CONFLICT = "conflict"  # another upload was accepted, or another token owns the name
    TOO_FEW_CLIENTS = "too_few_clients"
    PAUSED = "paused"  # nothing starts until an operator resumes the run
    NO_MASK = "no_mask"  # no mask to refresh: none agreed yet, or the strategy has none


@dataclass(frozen=True, slots=True)
class Persist:
    """Append a fact to the journal and sync it before the reply is sent."""

    fact: facts.Fact


@dataclass(frozen=True, slots=True)
class OpenStep:
    """Prepare the sum of a step that has started."""

    step: Step


@dataclass(frozen=True, slots=True)
class Fold:
    """Add an accepted upload to the sum."""

    upload: facts.UploadAccepted
    weight: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Finish the sum of a closed step, store the next model, then post StepReduced."""

    step: Step


@dataclass(frozen=True, slots=True)
class DropSpool:
    """Delete the uploads of a step."""

    step: int


@dataclass(frozen=True, slots=True)
class KeepBest:
    """Keep a copy of the current model, the best so far."""

    best: Best


@dataclass(frozen=True, slots=True)
class WriteModel:
    """Write the final model: the run is over."""


Action = Persist | OpenStep | Fold | Reduce | DropSpool | KeepBest | WriteModel
