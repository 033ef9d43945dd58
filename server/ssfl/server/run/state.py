"""The state of a run: an immutable value. All but its last fields follow from the run's facts.

Sentences that begin with INVARIANT hold in every state that `apply` and the machine can reach.
tests/server/invariants.py quotes each of them; the tests check it after every event of hundreds of
random runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ssfl.method.settings import RunSettings
from ssfl.server.errors import TooManySamples
from ssfl.server.run import facts
from ssfl.strategies.contract import ClientId, Reducer, Work


class Phase(StrEnum):
    """The phase of a run, as shown to users."""

    GATHERING = "gathering"
    SCORE = "score"
    TRAIN = "train"
    EVALUATE = "evaluate"
    PERSONALIZE = "personalize"
    WAITING = "waiting"  # too few clients are present to continue
    PAUSED = "paused"  # by an operator, with no open step
    FINISHED = "finished"
    STOPPED = "stopped"  # finished early, by an operator


@dataclass(frozen=True, slots=True)
class Member:
    """A client that has joined."""

    client: ClientId
    session: int  # INVARIANT: no two members have the same session.
    token: str  # the token that owns the name; empty: the next token that joins owns it
    num_samples: int
    manifest_digest: str
    fingerprint: str
    encodings: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    left: bool = False
    has_final_model: bool = False
    replaced: tuple[int, ...] = ()  # earlier sessions of this token; the newest few


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Counts over the cohort of a step, updated by `apply` so that no event walks the cohort.

    INVARIANT: the counts of a step equal those that a new count over its cohort gives.
    """

    pending: int = 0  # clients, other than removed ones, without an accepted upload
    not_left: int = 0  # pending clients that have not left; lost ones are included
    here: int = 0  # pending clients that can still report: neither left nor lost
    slowest_s: float = 0.0  # arrival of the last accepted upload, in seconds from the step's start


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
    # INVARIANT: no client leaves the cohort of a step, and none changes its samples.
    cohort: Mapping[ClientId, int]
    # INVARIANT: accepted uploads come from the cohort; none is replaced or withdrawn.
    uploads: Mapping[ClientId, facts.UploadAccepted]
    # The clients whose uploads count, sorted; None while the step is open.
    # INVARIANT: a closed step counts exactly its accepted uploads, and accepts no more.
    closed: tuple[ClientId, ...] | None = None
    reducer: Reducer = Reducer.WEIGHTED_SUM
    equal_weights: bool = False
    num_batches: int = 0  # SCORE: minibatches scored by each client
    reason: str = ""  # SCORE: why the mask is refreshed; empty for the first mask
    goal: int = 0  # TRAIN: number of reports that closes the step; 0: all of the cohort
    fraction_bits: int | None = None
    task: str = ""  # TRAIN: the strategy's word for the work
    counts_as_round: bool = True  # TRAIN
    counts: StepCounts = StepCounts()

    def awaits(self, client: ClientId) -> bool:
        """Return True if the client was asked and has no accepted upload."""
        return client in self.cohort and client not in self.uploads

    @property
    def weights(self) -> Mapping[ClientId, int]:
        """The weight of each client of the cohort in the mean."""
        return dict.fromkeys(self.cohort, 1) if self.equal_weights else self.cohort

    @property
    def pending(self) -> set[ClientId]:
        """The clients without an accepted upload, removed ones included."""
        return set(self.cohort) - set(self.uploads)


@dataclass(frozen=True, slots=True)
class Stall:
    """Why a run cannot continue with the clients that are present."""

    reason: str
    missing: tuple[ClientId, ...]
    unblock: str  # what would let the run continue
    since_s: float


@dataclass(frozen=True, slots=True)
class Best:
    """The best model so far, according to evaluations by all clients."""

    step: int  # the step that produced it
    rounds_done: int
    mask_epoch: int
    mask_digest: str
    base_digest: str
    accuracy: float | None  # pooled; None if the task has none: the loss is compared instead
    loss: float
    chosen_on: str  # the samples that were tested: validation or test
    clients: tuple[ClientId, ...]  # the clients that tested it, sorted

    def beats(self, other: "Best") -> bool:
        """Return True if this model is better; a validated model beats one that was only tested."""
        if self.chosen_on != other.chosen_on:
            return self.chosen_on == "validation"
        if self.accuracy is None or other.accuracy is None:
            return self.loss < other.loss
        return self.accuracy > other.accuracy


@dataclass(frozen=True, slots=True)
class RunState:
    """All that is known of the run.

    The fields from `lost` on do not come from facts: a restart resets them.
    """

    settings: RunSettings
    run_id: str = ""
    # INVARIANT: a member never disappears; one that leaves or is removed stays listed.
    members: Mapping[ClientId, Member] = field(default_factory=dict)
    # INVARIANT: the model is described once; its manifest digest never changes afterwards.
    manifest_digest: str = ""
    described_by: str = ""  # the client, or the file of --init, that the model came from
    initial_digest: str = ""
    # INVARIANT: the mask epoch never falls, and the mask digest changes only with it.
    mask_epoch: int = 0
    mask_digest: str = ""
    num_kept: int = 0
    base_digest: str = ""
    model_step: int = 0  # the step that produced the current mask or base; 0: none yet
    # The clients that were ready when the run started; empty before that.
    # INVARIANT: founders are set once.
    founders: tuple[ClientId, ...] = ()
    # INVARIANT: rounds_done grows by one with each committed TRAIN step that counts as a round,
    # and never otherwise.
    rounds_done: int = 0
    rounds_evaluated: int = 0  # rounds_done at the newest evaluation by all clients
    attempt: int = 0  # number of void attempts at the next step
    last_step: int = 0
    scored_digest: str = ""  # of the whole model that was scored for the mask; empty: initial
    masked_round: int = 0  # rounds_done when the newest mask was agreed
    extra_digest: str = ""  # of what the strategy keeps with the model; empty: as at the start
    stage: str = ""  # of the strategy
    refresh_asked: bool = False
    paused_at: float | None = None  # unix seconds; None: not paused
    known_labels: frozenset[int] = frozenset()  # of clients that took part in agreeing on a mask
    losses: tuple[float, ...] = ()  # mean client loss of the newest rounds under this mask
    best: Best | None = None
    evaluations_since_best: int = 0
    end_reason: str = ""  # why the run ends early; empty if it does not
    personalized: bool = False
    # For each client, the step and the digest of its newest upload that counted.
    # INVARIANT: no counted upload belongs to a later step than the model's.
    counted: Mapping[ClientId, tuple[int, str]] = field(default_factory=dict)
    step: Step | None = None
    stop_asked: bool = False
    # INVARIANT: a finished run has no step and stays finished.
    finished: bool = False
    stopped: bool = False
    last_session: int = 0  # INVARIANT: no member has a session after last_session.
    removed: frozenset[ClientId] = frozenset()
    # INVARIANT: num_ready is the length of `ready`.
    num_ready: int = 0
    share_lost: float | None = None  # recent share of lost clients; None: not known yet

    lost: frozenset[ClientId] = frozenset()
    # Clients that were asked to describe the model and did not, the latest last.
    passed_over: tuple[ClientId, ...] = ()
    # Start of the countdown to the first step: when a client last became ready, or the run resumed.
    countdown_from_s: float = 0.0
    step_began_s: float = 0.0
    asked_s: float = 0.0  # when clients were last asked in this step
    stall: Stall | None = None
    draining: bool = False  # the coordinator is shutting down

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
        """Whether an operator has paused the run."""
        return self.paused_at is not None

    @property
    def expected_share_lost(self) -> float:
        """The expected share of clients that will not report.

        It follows from the setting `over_selection` until a share has been observed.
        """
        return 1 - 1 / self.settings.over_selection if self.share_lost is None else self.share_lost

    @property
    def ready(self) -> list[ClientId]:
        """Members that built the run's model, have not left and were not removed, sorted."""
        return sorted(client for client in self.members if is_ready(self, client))


def is_ready(state: RunState, client: ClientId) -> bool:
    """Return True if a member has the run's model, has not left and was not removed."""
    member = state.members.get(client)
    if member is None or member.left or client in state.removed:
        return False
    return bool(state.manifest_digest) and member.manifest_digest == state.manifest_digest


def weight_of(member: Member, settings: RunSettings) -> int:
    """Return the number of samples by which a member is weighted."""
    if settings.max_samples and settings.samples_over_max == "clip":
        return min(member.num_samples, settings.max_samples)
    return member.num_samples


def check_samples(client: ClientId, num_samples: int, settings: RunSettings) -> None:
    """Raise TooManySamples if a client claims more samples than the run accepts."""
    limit = settings.max_samples
    if limit and num_samples > limit and settings.samples_over_max == "refuse":
        raise TooManySamples(
            f"{client} claims {num_samples} training samples, but this run takes at most {limit} "
            "(--max-samples of the coordinator; with `--samples-over-max clip` the "
            f"client would be weighted as if it had {limit})"
        )


def initializer(state: RunState) -> Member | None:
    """Return the client that must describe the model: the first of those that can and are present.

    A client that was passed over is asked again only after all others.
    """
    order = {client: place for place, client in enumerate(state.passed_over)}
    able = [m for m in state.members.values() if m.manifest_digest and not m.left]
    present = [m for m in able if m.client not in state.lost | state.removed]
    return min(present, key=lambda m: (order.get(m.client, -1), m.session), default=None)
