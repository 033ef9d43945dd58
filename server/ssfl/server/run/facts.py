"""The facts of a run, as recorded in the journal.

The state of a run is the fold of its facts (apply.py), so replaying the journal restores it.
Each fact is one JSON object. Digests are in hex, so that the journal is readable.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from ssfl.strategies.contract import ClientId, Reducer, Work


@dataclass(frozen=True, slots=True)
class RunOpened:
    """First fact of every journal."""

    run_id: str
    settings: Mapping[str, Any]
    software: str
    strategy: str = ""  # contract number or SHA-256 of the strategy (registry.identity)


@dataclass(frozen=True, slots=True)
class ClientJoined:
    """A client joined, or joined again with a new session."""

    client: ClientId
    session: int
    token: str
    num_samples: int
    manifest_digest: str  # empty until the client has built its model
    fingerprint: str
    class_counts: Mapping[str, int] = field(default_factory=dict)  # empty: the site keeps them
    encodings: tuple[int, ...] = ()  # those the client can read and write
    labels: tuple[int, ...] = ()  # classes it has samples of; empty: the site keeps them


@dataclass(frozen=True, slots=True)
class ModelInitialized:
    """The run's model is known; the files are in the state directory."""

    client: ClientId  # the client that built it
    manifest_digest: str
    initial_digest: str
    mask_epoch: int  # 0: no mask agreed yet; 1: the strategy keeps all weights
    mask_digest: str
    num_kept: int
    base_digest: str
    stage: str = ""  # of the strategy


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Gathering ended; the run starts with these clients."""

    clients: tuple[ClientId, ...]


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A cohort was asked to work; the weights of its members are now fixed."""

    step: int
    work: Work
    criterion: str
    round_number: int
    attempt: int
    cohort: Mapping[ClientId, int]  # client -> training samples
    reducer: Reducer = Reducer.WEIGHTED_SUM
    equal_weights: bool = False  # weigh all clients equally, not by training samples
    num_batches: int = 0  # SCORE: minibatches scored by each client
    reason: str = ""  # SCORE: why the mask is refreshed; empty for the first mask
    goal: int = 0  # TRAIN: number of reports that closes the step; 0: all of the cohort
    fraction_bits: int | None = None  # TRAIN: grid of the sum; None: derived from the cohort
    task: str = ""  # TRAIN: the strategy's word for the work
    counts_as_round: bool = True  # TRAIN


@dataclass(frozen=True, slots=True)
class ClientsAdded:
    """More clients were asked, to replace lost ones."""

    step: int
    cohort: Mapping[ClientId, int]  # client -> training samples


@dataclass(frozen=True, slots=True)
class UploadAccepted:
    """A verified upload is in the spool and counts."""

    step: int
    client: ClientId
    digest: str  # of the payload; empty for an evaluation, which has none
    largest: float = 0.0  # largest |value|; decides the grid of a sum of scores
    report: Mapping[str, Any] = field(default_factory=dict)  # metrics and timings, for history
    stored: str = ""  # SHA-256 of its file in the spool: the values as they enter the sum
    own_mask: str = ""  # digest of the mask that came with it; empty: none
    numbers: tuple[float, ...] = ()  # of the strategy


@dataclass(frozen=True, slots=True)
class StepClosed:
    """The step accepts no more uploads: its result is the sum of the accepted ones."""

    step: int
    accepted: tuple[ClientId, ...]
    missing: tuple[ClientId, ...]
    lost: tuple[ClientId, ...] = ()  # missing clients that are away or missed the deadline


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
    extra_digest: str = ""  # of what the strategy keeps with the model; empty: as at the start
    stage: str = ""  # of the strategy


@dataclass(frozen=True, slots=True)
class StepVoided:
    """Too few clients reported; the step is retried as a new attempt."""

    step: int
    reason: str
    lost: tuple[ClientId, ...] = ()  # asked clients that did not report


@dataclass(frozen=True, slots=True)
class RefreshRequested:
    """An operator requested a new mask, to be agreed before the next round."""


@dataclass(frozen=True, slots=True)
class RunPaused:
    """An operator paused the run: the open step ends or is void, and nothing new starts."""

    at: float  # unix seconds, for people


@dataclass(frozen=True, slots=True)
class RunResumed:
    """An operator resumed a paused run."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """An operator stopped the run: it finishes once no sum is being computed."""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The last committed values are the final model."""

    stopped: bool  # by an operator, before the last round
    reason: str = ""  # why the run ended early by itself
    report: Mapping[str, Any] = field(default_factory=dict)  # bytes so far, for history


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """A client left."""

    client: ClientId
    finished: bool  # the client stored the final model


@dataclass(frozen=True, slots=True)
class ClientRemoved:
    """An operator removed a site: its calls are refused from now on."""

    client: ClientId


@dataclass(frozen=True, slots=True)
class ClientReadmitted:
    """An operator reversed the removal of a site."""

    client: ClientId


@dataclass(frozen=True, slots=True)
class BytesCounted:
    """Bytes transferred since the last commit, recorded when no further commit will follow."""

    report: Mapping[str, Any]  # bytes so far, for history


Fact = (
    RunOpened | ClientJoined | ModelInitialized | RunStarted | StepStarted | ClientsAdded
    | UploadAccepted | StepClosed | StepCommitted | StepVoided | RefreshRequested | RunPaused
    | RunResumed | StopRequested | RunFinished | ClientLeft | ClientRemoved | ClientReadmitted
    | BytesCounted
)  # fmt: skip
WITH_BYTES = (StepCommitted, RunFinished, BytesCounted)  # their reports hold the byte totals
_KINDS: dict[str, type[Fact]] = {kind.__name__: kind for kind in get_args(Fact)}


# Fields that are written only if they differ from their defaults: most strategies do not use them.
_SELDOM: dict[str, Any] = {
    "task": "", "counts_as_round": True, "own_mask": "", "numbers": (), "extra_digest": "",
    "stage": "", "strategy": "",
}  # fmt: skip


def to_json(fact: Fact) -> bytes:
    """Return the journal form of a fact."""
    given = {}
    for one in fields(fact):
        value = getattr(fact, one.name)
        if one.name not in _SELDOM or value != _SELDOM[one.name]:
            given[one.name] = value
    return json.dumps({"fact": type(fact).__name__, **given}, separators=(",", ":")).encode()


def from_json(text: bytes) -> Fact:
    """Return the fact of a journal record; raise ValueError if its kind is unknown."""
    try:
        record = json.loads(text)
        kind = _KINDS[record.pop("fact")]
        if "work" in record:
            record["work"] = Work(record["work"])
        if "reducer" in record:
            record["reducer"] = Reducer(record["reducer"])
        for name in ("clients", "accepted", "missing", "lost", "encodings", "labels", "numbers"):
            if name in record:
                record[name] = tuple(record[name])
        return kind(**record)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"unknown record: {error}") from error
