"""The state of a run: a value, made by folding facts. No I/O, no clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server import facts
from ssfl.server.facts import Fact


class Phase(StrEnum):
    """What a run is doing, as people see it."""

    GATHERING = "gathering"
    SCORE = "score"
    TRAIN = "train"
    EVALUATE = "evaluate"
    BETWEEN = "between"  # too few clients for the next step
    FINISHED = "finished"
    STOPPED = "stopped"  # finished early, by an operator


@dataclass(frozen=True, slots=True)
class Member:
    """A client that has joined."""

    client: ClientId
    session: int
    token: str
    num_samples: int
    manifest_digest: str
    fingerprint: str
    encodings: tuple[int, ...] = ()
    left: bool = False
    has_final_model: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A step in progress: from its start to its commit."""

    number: int
    work: Work
    criterion: str
    round_number: int
    attempt: int
    cohort: Mapping[ClientId, int]  # client -> training samples
    uploads: Mapping[ClientId, facts.UploadAccepted]
    closed: tuple[ClientId, ...] | None = None  # who counts, once decided

    @property
    def pending(self) -> set[ClientId]:
        return set(self.cohort) - set(self.uploads)


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything the run knows. The last block is not journalled: it starts anew after a crash."""

    settings: RunSettings
    run_id: str = ""
    members: Mapping[ClientId, Member] = field(default_factory=dict)
    manifest_digest: str = ""
    described_by: str = ""  # the client whose model the run has
    initial_digest: str = ""
    mask_epoch: int = 0
    mask_digest: str = ""
    num_kept: int = 0
    base_digest: str = ""
    model_step: int = 0  # the step whose result mask and base are; 0: the beginning
    founders: tuple[ClientId, ...] = ()  # there when the run started; empty: not started
    rounds_done: int = 0
    rounds_evaluated: int = 0  # rounds_done at the newest evaluation of all clients
    attempt: int = 0  # how often the coming step was void
    last_step: int = 0
    # Step and digest of the newest upload of every client that counted.
    counted: Mapping[ClientId, tuple[int, str]] = field(default_factory=dict)
    step: Step | None = None
    stop_asked: bool = False
    finished: bool = False
    stopped: bool = False
    last_session: int = 0

    lost: frozenset[ClientId] = frozenset()
    newcomer_s: float = 0.0  # when a client last became ready
    step_began_s: float = 0.0

    @property
    def phase(self) -> Phase:
        if self.finished:
            return Phase.STOPPED if self.stopped else Phase.FINISHED
        if self.step:
            return Phase(self.step.work.value)
        return Phase.BETWEEN if self.founders else Phase.GATHERING

    @property
    def ready(self) -> list[ClientId]:
        """Members that built the run's model and have not left, sorted."""
        return sorted(
            m.client
            for m in self.members.values()
            if self.manifest_digest and m.manifest_digest == self.manifest_digest and not m.left
        )


def apply(state: RunState, fact: Fact) -> RunState:
    """Return the state after a fact."""
    match fact:
        case facts.RunOpened():
            return replace(state, run_id=fact.run_id)
        case facts.ClientJoined():
            before = state.members.get(fact.client)
            member = Member(
                fact.client, fact.session, fact.token, fact.num_samples, fact.manifest_digest,
                fact.fingerprint, fact.encodings,
                has_final_model=before.has_final_model if before else False,
            )  # fmt: skip
            return replace(
                state,
                members={**state.members, fact.client: member},
                last_session=max(state.last_session, fact.session),
                lost=state.lost - {fact.client},
            )
        case facts.ModelInitialized():
            return replace(
                state,
                manifest_digest=fact.manifest_digest,
                described_by=fact.client,
                initial_digest=fact.initial_digest,
                mask_epoch=fact.mask_epoch,
                mask_digest=fact.mask_digest,
                num_kept=fact.num_kept,
                base_digest=fact.base_digest,
            )
        case facts.RunStarted():
            return replace(state, founders=fact.clients)
        case facts.StepStarted():
            step = Step(
                fact.step, fact.work, fact.criterion, fact.round_number, fact.attempt,
                fact.cohort, uploads={},
            )  # fmt: skip
            return replace(state, step=step, last_step=fact.step)
        case facts.UploadAccepted():
            step = _open(state)
            return replace(state, step=replace(step, uploads={**step.uploads, fact.client: fact}))
        case facts.StepClosed():
            return replace(state, step=replace(_open(state), closed=fact.accepted))
        case facts.StepVoided():
            return replace(state, step=None, attempt=state.attempt + 1)
        case facts.StepCommitted():
            return _committed(state, fact)
        case facts.StopRequested():
            return replace(state, stop_asked=True)
        case facts.RunFinished():
            return replace(state, step=None, finished=True, stopped=fact.stopped)
        case facts.ClientLeft():
            member = replace(state.members[fact.client], left=True, has_final_model=fact.finished)
            return replace(state, members={**state.members, fact.client: member})
        case facts.BytesCounted():
            return state
        case _:
            assert_never(fact)


def _open(state: RunState) -> Step:
    if state.step is None:
        raise ValueError("the journal speaks of a step that is not open")
    return state.step


def _committed(state: RunState, fact: facts.StepCommitted) -> RunState:
    step = _open(state)
    state = replace(
        state,
        step=None,
        attempt=0,
        mask_epoch=fact.mask_epoch,
        mask_digest=fact.mask_digest,
        num_kept=fact.num_kept,
        base_digest=fact.base_digest,
    )
    if step.work is Work.EVALUATE:
        return replace(state, rounds_evaluated=state.rounds_done)
    return replace(
        state,
        rounds_done=state.rounds_done + (step.work is Work.TRAIN),
        model_step=fact.step,
        counted={
            **state.counted,
            **{client: (fact.step, step.uploads[client].digest) for client in step.closed or ()},
        },
    )
