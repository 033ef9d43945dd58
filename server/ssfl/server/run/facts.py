"""What happened in a run, as the journal keeps it.

A run's state is the fold of its facts (state.py), so replaying the journal gives it back.
Each fact is one JSON object; digests are hex, so that a person can read the journal.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ssfl.method.strategies.contract import ClientId, Reducer, Work


@dataclass(frozen=True, slots=True)
class RunOpened:
    """First fact of every journal."""

    run_id: str
    settings: Mapping[str, Any]
    software: str


@dataclass(frozen=True, slots=True)
class ClientJoined:
    """A client entered, or entered again with a new session."""

    client: ClientId
    session: int
    token: str
    num_samples: int
    manifest_digest: str  # empty until the client has built its model
    fingerprint: str
    class_counts: Mapping[str, int] = field(default_factory=dict)  # empty: the site keeps them
    encodings: tuple[int, ...] = ()  # that it can read and write
    labels: tuple[int, ...] = ()  # classes it has samples of; empty: the site keeps them


@dataclass(frozen=True, slots=True)
class ModelInitialized:
    """The run's model is known; the files are in the state directory."""

    client: ClientId  # who built it
    manifest_digest: str
    initial_digest: str
    mask_epoch: int  # 0: a mask has to be agreed; 1: the strategy keeps everything
    mask_digest: str
    num_kept: int
    base_digest: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Gathering is over; these clients are there at the start."""

    clients: tuple[ClientId, ...]


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A cohort was asked to work; the weights of its members are fixed from here on."""

    step: int
    work: Work
    criterion: str
    round_number: int
    attempt: int
    cohort: Mapping[ClientId, int]  # client -> training samples
    reducer: Reducer = Reducer.WEIGHTED_SUM
    equal_weights: bool = False  # in the mean, instead of by training samples
    num_batches: int = 0  # SCORE: minibatches that each client scores
    reason: str = ""  # SCORE: why the mask is renewed; empty for the first one
    goal: int = 0  # TRAIN: reports that end it; 0: those of the whole cohort
    fraction_bits: int | None = None  # TRAIN: of the sum's grid; None: follows from the cohort


@dataclass(frozen=True, slots=True)
class ClientsAdded:
    """Others were asked in place of clients that were lost."""

    step: int
    cohort: Mapping[ClientId, int]  # client -> training samples


@dataclass(frozen=True, slots=True)
class UploadAccepted:
    """A verified upload is in the spool and counts."""

    step: int
    client: ClientId
    digest: str  # of the payload; empty for an evaluation, which has none
    largest: float  # largest |value|; decides the grid of a sum of scores
    report: Mapping[str, Any] = field(default_factory=dict)  # metrics and timings, for history
    stored: str = ""  # SHA-256 of its file in the spool: of the values, as they count


@dataclass(frozen=True, slots=True)
class StepClosed:
    """Nobody else is waited for: the step's result is the sum of these."""

    step: int
    accepted: tuple[ClientId, ...]
    missing: tuple[ClientId, ...]
    lost: tuple[ClientId, ...] = ()  # of the missing: away, or too late for the deadline


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """The step's result is in the state directory."""

    step: int
    mask_epoch: int
    mask_digest: str
    num_kept: int
    base_digest: str
    report: Mapping[str, Any] = field(default_factory=dict)  # bytes and times so far, for history
    scored_digest: str = ""  # of the whole model the mask was agreed on; empty: the initial one


@dataclass(frozen=True, slots=True)
class StepVoided:
    """Too few reported; the step is tried again with a new attempt."""

    step: int
    reason: str
    lost: tuple[ClientId, ...] = ()  # who was asked and did not report


@dataclass(frozen=True, slots=True)
class RefreshRequested:
    """An operator asked for a new mask: it is agreed before the next round."""


@dataclass(frozen=True, slots=True)
class RunPaused:
    """An operator paused the run: what is under way is finished or void, nothing new begins."""

    at: float  # unix seconds, for people


@dataclass(frozen=True, slots=True)
class RunResumed:
    """An operator let a paused run go on."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """An operator ended the run: it finishes as soon as no sum is being made."""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The last committed values are the final model."""

    stopped: bool  # by an operator, before the last round
    reason: str = ""  # why it ended before the last round by itself
    report: Mapping[str, Any] = field(default_factory=dict)  # bytes so far, for history


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """A client said goodbye."""

    client: ClientId
    finished: bool  # it has stored the final model


@dataclass(frozen=True, slots=True)
class ClientRemoved:
    """An operator removed a site: it is refused from here on."""

    client: ClientId


@dataclass(frozen=True, slots=True)
class ClientReadmitted:
    """An operator took the removal of a site back."""

    client: ClientId


@dataclass(frozen=True, slots=True)
class BytesCounted:
    """Bytes that passed since the last commit, when no other will come that would tell."""

    report: Mapping[str, Any]  # bytes so far, for history


Fact = (
    RunOpened
    | ClientJoined
    | ModelInitialized
    | RunStarted
    | StepStarted
    | ClientsAdded
    | UploadAccepted
    | StepClosed
    | StepCommitted
    | StepVoided
    | RefreshRequested
    | RunPaused
    | RunResumed
    | StopRequested
    | RunFinished
    | ClientLeft
    | ClientRemoved
    | ClientReadmitted
    | BytesCounted
)
_KINDS: dict[str, type[Fact]] = {
    kind.__name__: kind
    for kind in (
        RunOpened, ClientJoined, ModelInitialized, RunStarted, StepStarted, ClientsAdded,
        UploadAccepted, StepClosed, StepCommitted, StepVoided, RefreshRequested, RunPaused,
        RunResumed, StopRequested, RunFinished, ClientLeft, ClientRemoved, ClientReadmitted,
        BytesCounted,
    )
}  # fmt: skip


def to_json(fact: Fact) -> bytes:
    """Return the journal form of a fact."""
    return json.dumps({"fact": type(fact).__name__, **asdict(fact)}, separators=(",", ":")).encode()


def from_json(text: bytes) -> Fact:
    """Return the fact of a journal record; raise ValueError if it is none we know."""
    try:
        fields = json.loads(text)
        kind = _KINDS[fields.pop("fact")]
        if "work" in fields:
            fields["work"] = Work(fields["work"])
        if "reducer" in fields:
            fields["reducer"] = Reducer(fields["reducer"])
        for name in ("clients", "accepted", "missing", "lost", "encodings", "labels"):
            if name in fields:
                fields[name] = tuple(fields[name])
        return kind(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"unknown record: {error}") from error
