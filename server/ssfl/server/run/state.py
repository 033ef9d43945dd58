"""The state of a run: a value, made by folding facts. No I/O, no clock.

Sentences that begin with INVARIANT hold in every state that `apply` and the machine can reach.
tests/server/run/test_invariants.py quotes each of them and checks it after every event of
hundreds of random runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId, Reducer, Work
from ssfl.method.strategies.ssfl import SCORED_BY_ONE_CLIENT, SCORED_WITHOUT_CLIENTS
from ssfl.server.run import facts
from ssfl.server.run.facts import Fact
from ssfl.server.run.quality import chosen_on, mean_client_loss, quality

LOSS_MEMORY = 0.8  # of the share of lost clients, from one round to the next
MAX_LOSSES = 6  # of the newest rounds: what a jump is measured by


class Phase(StrEnum):
    """What a run is doing, as people see it."""

    GATHERING = "gathering"
    SCORE = "score"
    TRAIN = "train"
    EVALUATE = "evaluate"
    PERSONALIZE = "personalize"
    WAITING = "waiting"  # too few clients are here to go on
    PAUSED = "paused"  # by an operator, and nothing is under way any more
    FINISHED = "finished"
    STOPPED = "stopped"  # finished early, by an operator


@dataclass(frozen=True, slots=True)
class Member:
    """A client that has joined."""

    client: ClientId
    session: int  # INVARIANT: no two members have the same session.
    token: str  # owns the name; empty: the next token that joins will own it
    num_samples: int
    manifest_digest: str
    fingerprint: str
    encodings: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    left: bool = False
    has_final_model: bool = False


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Counts over the cohort of a step, kept up to date by `apply`, so that no event walks it.

    INVARIANT: the counts of a step equal those of a walk over its cohort (`count_step`).
    """

    pending: int = 0  # asked, not removed, and without an accepted upload
    not_left: int = 0  # pending clients that have not left; lost ones are included
    here: int = 0  # pending clients that can still report: neither left nor lost
    slowest_s: float = 0.0  # the latest arrival among accepted uploads, from the step's start


@dataclass(frozen=True, slots=True)
class Step:
    """A step in progress: from its start to its commit."""

    # INVARIANT: step numbers only grow; a void step's number is not used again.
    number: int
    work: Work
    criterion: str
    round_number: int
    attempt: int
    # Client -> training samples. INVARIANT: every client of a cohort is a member.
    # INVARIANT: a cohort only grows while its step is open.
    cohort: Mapping[ClientId, int]
    # INVARIANT: accepted uploads come from the cohort; none is replaced or withdrawn.
    uploads: Mapping[ClientId, facts.UploadAccepted]
    # The clients whose uploads count, sorted; None while the step is open.
    # INVARIANT: a closed step counts exactly its accepted uploads, and accepts no more.
    closed: tuple[ClientId, ...] | None = None
    reducer: Reducer = Reducer.WEIGHTED_SUM
    equal_weights: bool = False
    num_batches: int = 0
    reason: str = ""
    goal: int = 0
    fraction_bits: int | None = None
    counts: StepCounts = StepCounts()

    def awaits(self, client: ClientId) -> bool:
        """Return True if the client was asked and has no accepted upload."""
        return client in self.cohort and client not in self.uploads

    @property
    def weights(self) -> Mapping[ClientId, int]:
        """What each client weighs in the mean."""
        return dict.fromkeys(self.cohort, 1) if self.equal_weights else self.cohort

    @property
    def pending(self) -> set[ClientId]:
        return set(self.cohort) - set(self.uploads)


@dataclass(frozen=True, slots=True)
class Stall:
    """Why a run cannot go on with the clients that are here."""

    reason: str
    missing: tuple[ClientId, ...]
    unblock: str  # what would let it go on
    since_s: float


@dataclass(frozen=True, slots=True)
class Best:
    """The best model so far, by all clients' evaluation."""

    step: int  # whose result it is
    rounds_done: int
    mask_epoch: int
    mask_digest: str
    base_digest: str
    accuracy: float | None  # pooled; None if the task has none: then by loss
    loss: float
    chosen_on: str  # validation or test: the split that was looked at
    clients: tuple[ClientId, ...]  # who tested it, sorted

    def beats(self, other: "Best") -> bool:
        """Tell whether this one is better; what was validated beats what was only tested."""
        if self.chosen_on != other.chosen_on:
            return self.chosen_on == "validation"
        if self.accuracy is None or other.accuracy is None:
            return self.loss < other.loss
        return self.accuracy > other.accuracy


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything the run knows. The last block is not journalled: it starts anew after a crash."""

    settings: RunSettings
    run_id: str = ""
    # INVARIANT: a member never disappears; one that leaves or is removed stays listed.
    members: Mapping[ClientId, Member] = field(default_factory=dict)
    # INVARIANT: the model is described once; its manifest digest never changes afterwards.
    manifest_digest: str = ""
    described_by: str = ""  # the client whose model the run has
    initial_digest: str = ""
    # INVARIANT: the mask epoch never falls, and the mask digest changes only with it.
    mask_epoch: int = 0
    mask_digest: str = ""
    num_kept: int = 0
    base_digest: str = ""
    model_step: int = 0  # the step whose result mask and base are; 0: the beginning
    # The clients that were ready when the run started; empty before that.
    # INVARIANT: founders are set once.
    founders: tuple[ClientId, ...] = ()
    # INVARIANT: rounds_done grows by one with each committed TRAIN step, and never otherwise.
    rounds_done: int = 0
    rounds_evaluated: int = 0  # rounds_done at the newest evaluation of all clients
    attempt: int = 0  # how often the coming step was void
    last_step: int = 0
    scored_digest: str = ""  # of the whole model the mask was agreed on; empty: the initial one
    masked_round: int = 0  # rounds_done when the newest mask was agreed
    refresh_asked: bool = False
    paused_at: float | None = None  # unix seconds; None: it is not paused
    known_labels: frozenset[int] = frozenset()  # of clients that were asked about a mask
    losses: tuple[float, ...] = ()  # mean client loss of the newest rounds under this mask
    best: Best | None = None
    evaluations_since_best: int = 0
    end_reason: str = ""  # why the run ends before its last round; empty: it does not
    personalized: bool = False
    # Step and digest of the newest upload of every client that counted.
    # INVARIANT: no counted upload belongs to a later step than the model's.
    counted: Mapping[ClientId, tuple[int, str]] = field(default_factory=dict)
    step: Step | None = None
    stop_asked: bool = False
    # INVARIANT: a finished run has no step and stays finished.
    finished: bool = False
    stopped: bool = False
    last_session: int = 0  # INVARIANT: no member has a later session than the last one.
    removed: frozenset[ClientId] = frozenset()
    # INVARIANT: num_ready is the length of `ready`.
    num_ready: int = 0
    share_lost: float | None = None  # of the clients asked of late; None: nothing is known yet

    lost: frozenset[ClientId] = frozenset()
    newcomer_s: float = 0.0  # when a client last became ready
    step_began_s: float = 0.0
    asked_s: float = 0.0  # when clients were last asked in this step
    stall: Stall | None = None
    draining: bool = False  # the coordinator is being stopped

    @property
    def phase(self) -> Phase:
        if self.finished:
            return Phase.STOPPED if self.stopped else Phase.FINISHED
        if self.step and not self.stall:
            return Phase(self.step.work.value)
        if self.paused:
            return Phase.PAUSED
        return Phase.WAITING if self.founders else Phase.GATHERING

    @property
    def paused(self) -> bool:
        """Whether an operator wants nothing new to begin."""
        return self.paused_at is not None

    @property
    def loss_rate(self) -> float:
        """The share of asked clients that will not report: as set at first, then as seen."""
        return 1 - 1 / self.settings.over_selection if self.share_lost is None else self.share_lost

    @property
    def ready(self) -> list[ClientId]:
        """Members that built the run's model, have not left and were not removed, sorted."""
        return sorted(client for client in self.members if _is_ready(self, client))


def apply(state: RunState, fact: Fact) -> RunState:
    """Return the state after a fact."""
    after = _applied(state, fact)
    match fact:
        case facts.StepStarted() | facts.ClientsAdded():
            return _recounted(state, after, fact.cohort)
        case facts.UploadAccepted():
            return _recounted(state, after, [fact.client])
        case (
            facts.ClientJoined()
            | facts.ClientLeft()
            | facts.ClientRemoved()
            | facts.ClientReadmitted()
        ):
            readier = _is_ready(after, fact.client) - _is_ready(state, fact.client)
            after = replace(after, num_ready=after.num_ready + readier)
            return _recounted(state, after, [fact.client])
        case facts.ModelInitialized():
            return replace(after, num_ready=len(after.ready))
        case _:
            return after


def with_lost(state: RunState, lost: frozenset[ClientId]) -> RunState:
    """Return the state in which exactly these members are lost."""
    return _recounted(state, replace(state, lost=lost), state.lost ^ lost)


def count_step(state: RunState, step: Step) -> StepCounts:
    """Return the counts of a step by walking over its whole cohort."""
    standings = [(0, 0, 0), *(_standing(state, step, client) for client in step.cohort)]
    pending, not_left, here = (sum(column) for column in zip(*standings, strict=True))
    slowest_s = max((received_s(upload) for upload in step.uploads.values()), default=0.0)
    return StepCounts(pending, not_left, here, slowest_s)


def received_s(upload: facts.UploadAccepted) -> float:
    """Return when an upload was complete, in seconds from the step's start."""
    return float(upload.report.get("received_s", 0.0))


def _is_ready(state: RunState, client: ClientId) -> bool:
    member = state.members.get(client)
    if member is None or member.left or client in state.removed:
        return False
    return bool(state.manifest_digest) and member.manifest_digest == state.manifest_digest


def _standing(state: RunState, step: Step | None, client: ClientId) -> tuple[int, int, int]:
    """Return what a client adds to the counts of a step: pending, not left, here."""
    if step is None or not step.awaits(client) or client in state.removed:
        return 0, 0, 0
    if client not in state.members or state.members[client].left:
        return 1, 0, 0
    return 1, 1, int(client not in state.lost)


def _recounted(before: RunState, after: RunState, clients: Iterable[ClientId]) -> RunState:
    """Return `after` with the counts of its step, given which clients' standing changed."""
    step = after.step
    if step is None:
        return after
    pending, not_left, here = step.counts.pending, step.counts.not_left, step.counts.here
    slowest_s = step.counts.slowest_s
    for client in clients:
        was = _standing(before, before.step, client)
        now = _standing(after, step, client)
        pending += now[0] - was[0]
        not_left += now[1] - was[1]
        here += now[2] - was[2]
        if client in step.uploads:
            slowest_s = max(slowest_s, received_s(step.uploads[client]))
    counts = StepCounts(pending, not_left, here, slowest_s)
    return replace(after, step=replace(step, counts=counts))


def _applied(state: RunState, fact: Fact) -> RunState:
    match fact:
        case facts.RunOpened():
            return replace(state, run_id=fact.run_id)
        case facts.ClientJoined():
            before = state.members.get(fact.client)
            member = Member(
                fact.client, fact.session, fact.token, fact.num_samples, fact.manifest_digest,
                fact.fingerprint, fact.encodings, fact.labels,
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
                fact.cohort, uploads={}, reducer=fact.reducer, equal_weights=fact.equal_weights,
                num_batches=fact.num_batches, reason=fact.reason, goal=fact.goal,
                fraction_bits=fact.fraction_bits,
            )  # fmt: skip
            return replace(state, step=step, last_step=fact.step)
        case facts.ClientsAdded():
            step = _open(state)
            return replace(state, step=replace(step, cohort={**step.cohort, **fact.cohort}))
        case facts.UploadAccepted():
            step = _open(state)
            return replace(state, step=replace(step, uploads={**step.uploads, fact.client: fact}))
        case facts.StepClosed():
            state = _with_losses(state, fact.lost)
            return replace(state, step=replace(_open(state), closed=fact.accepted))
        case facts.StepVoided():
            state = _with_losses(state, fact.lost)
            return replace(state, step=None, attempt=state.attempt + 1)
        case facts.StepCommitted():
            return _committed(state, fact)
        case facts.RefreshRequested():
            return replace(state, refresh_asked=True)
        case facts.RunPaused():
            return replace(state, paused_at=fact.at)
        case facts.RunResumed():
            return replace(state, paused_at=None)
        case facts.StopRequested():
            return replace(state, stop_asked=True)
        case facts.RunFinished():
            return replace(state, step=None, finished=True, stopped=fact.stopped, paused_at=None)
        case facts.ClientLeft():
            member = replace(state.members[fact.client], left=True, has_final_model=fact.finished)
            return replace(state, members={**state.members, fact.client: member})
        case facts.ClientRemoved():
            return replace(state, removed=state.removed | {fact.client})
        case facts.ClientReadmitted():
            return _readmitted(state, fact.client)
        case facts.BytesCounted():
            return state
        case _:
            assert_never(fact)


def _readmitted(state: RunState, client: ClientId) -> RunState:
    """Return the state with a site that may join again; the next token that joins owns its name."""
    members = dict(state.members)
    if member := members.get(client):
        members[client] = replace(member, token="")
    return replace(state, removed=state.removed - {client}, members=members)


def newest_counted(state: RunState) -> tuple[int, dict[ClientId, str]]:
    """Return the step whose result the model is, and the digests of the uploads that made it."""
    made = state.model_step
    return made, {who: digest for who, (step, digest) in state.counted.items() if step == made}


def _open(state: RunState) -> Step:
    if state.step is None:
        raise ValueError("the journal speaks of a step that is not open")
    return state.step


def _with_losses(state: RunState, lost: tuple[ClientId, ...]) -> RunState:
    """Return the state that has learnt from a training step how many clients get lost."""
    step = _open(state)
    if step.work is not Work.TRAIN or not step.cohort:
        return state
    now = len(lost) / len(step.cohort)
    return replace(state, share_lost=LOSS_MEMORY * state.loss_rate + (1 - LOSS_MEMORY) * now)


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
    match step.work:
        case Work.EVALUATE:
            return _evaluated(replace(state, rounds_evaluated=state.rounds_done), step)
        case Work.PERSONALIZE:
            return replace(state, personalized=True)
        case Work.SCORE:
            asks_all = state.settings.criterion not in (
                *SCORED_BY_ONE_CLIENT,
                *SCORED_WITHOUT_CLIENTS,
            )
            asked = step.cohort if asks_all else state.ready
            known = {label for client in asked for label in state.members[client].labels}
            state = replace(
                state,
                scored_digest=fact.scored_digest,
                masked_round=state.rounds_done,
                refresh_asked=False,
                known_labels=state.known_labels | known,
                losses=(),
            )
        case Work.TRAIN:
            loss = mean_client_loss([upload.report for upload in _closed(step)])
            losses = (*state.losses, *([] if loss is None else [loss]))[-MAX_LOSSES:]
            state = replace(state, rounds_done=state.rounds_done + 1, losses=losses)
    counted = {upload.client: (fact.step, upload.digest) for upload in _closed(step)}
    return replace(state, model_step=fact.step, counted={**state.counted, **counted})


def _closed(step: Step) -> list[facts.UploadAccepted]:
    return [step.uploads[client] for client in step.closed or ()]


def _evaluated(state: RunState, step: Step) -> RunState:
    """Return the state after a test by all clients: is it the best, is it time to end?"""
    reports = [upload.report for upload in _closed(step)]
    accuracy, loss = quality(reports)
    if loss is None:
        return state
    tested = Best(
        state.model_step, state.rounds_done, state.mask_epoch, state.mask_digest,
        state.base_digest, accuracy, loss, chosen_on(reports), tuple(sorted(step.closed or ())),
    )  # fmt: skip
    if not _is_comparable(state, tested, step):
        return state
    more = state.best is not None and bool(set(tested.clients) - set(state.best.clients))
    if state.best is None or more or tested.beats(state.best):
        state = replace(state, best=tested, evaluations_since_best=0)
    elif tested.chosen_on == state.best.chosen_on:
        state = replace(state, evaluations_since_best=state.evaluations_since_best + 1)
    return replace(state, end_reason=_end_reason(state, accuracy))


def _is_comparable(state: RunState, tested: Best, step: Step) -> bool:
    """Tell whether enough clients tested: all who tested the best so far and were asked again.

    Who is lost or has left is not asked. With more of them than before, the comparison begins
    anew: they may bring other data.
    """
    if len(tested.clients) < min(state.settings.min_clients, len(state.ready)):
        return False
    before = state.best.clients if state.best else ()
    return {client for client in before if client in step.cohort} <= set(tested.clients)


def _end_reason(state: RunState, accuracy: float | None) -> str:
    settings = state.settings
    if settings.target_accuracy and accuracy is not None and accuracy >= settings.target_accuracy:
        return f"accuracy {accuracy:.4f} reached --target-accuracy {settings.target_accuracy:g}"
    if settings.patience and state.evaluations_since_best >= settings.patience:
        return f"no better evaluation in the last {state.evaluations_since_best} (--patience)"
    return ""
