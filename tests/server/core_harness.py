"""Simulated journal, spool, sums and clients around the pure core.

The world does the work of the run loop in memory and checks the promises after each event. A killed
process loses its memory, and keeps what is on disk.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, assert_never

from server.invariants import check_invariants
from ssfl.method.settings import RunSettings
from ssfl.server.run import events, facts
from ssfl.server.run.apply import apply
from ssfl.server.run.events import Action, Event, Reply
from ssfl.server.run.machine import advance
from ssfl.server.run.state import RunState, Step
from ssfl.strategies.contract import ClientId, Work
from ssfl.strategies.methods.flash_spdst import WARM_UP

MODEL = "m"


def hashed(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()[:12]


def report(step: int, client: ClientId) -> dict[str, Any]:
    """Return a client's report of its work: arbitrary numbers, but always the same."""
    correct = int(hashed(step, client), 16) % 11
    tested = {"correct": correct, "total": 10, "loss_sum": 10.0 - correct}
    return {"training_loss": 1.0, "evaluation": tested, "personal": tested}


@dataclass
class World:
    """One run and everything around it."""

    settings: RunSettings
    clients: list[ClientId]
    now_s: float = 0.0
    # On disk.
    journal: list[bytes] = field(default_factory=list)
    spool: set[tuple[int, ClientId, str]] = field(default_factory=set)
    stored: dict[int, str] = field(default_factory=dict)  # step -> digest of the values after it
    kept: dict[int, str] = field(default_factory=dict)  # step -> digest of a best model's values
    final_model: str | None = None
    # In memory.
    sum_of: int | None = None
    folded: Counter[ClientId] = field(default_factory=Counter)
    results: list[events.StepReduced] = field(default_factory=list)  # sums that are ready
    # Observed so far, for the checks.
    accepted: dict[int, dict[ClientId, str]] = field(default_factory=dict)
    acknowledged: set[tuple[int, ClientId]] = field(default_factory=set)
    closed: dict[int, tuple[ClientId, ...]] = field(default_factory=dict)
    committed: dict[int, str] = field(default_factory=dict)
    void: set[int] = field(default_factory=set)
    is_paused: bool = False
    num_pauses: int = 0

    def __post_init__(self) -> None:
        self.state = RunState(self.settings)
        if not self.journal:
            opened = facts.RunOpened("r1", asdict(self.settings), "test")
            self.journal.append(facts.to_json(opened))
        self.restart()

    # -- the coordinator

    def post(self, event: Event, *, killed_after: int | None = None) -> Reply | None:
        """Post an event to the run and perform the resulting actions.

        `killed_after`: the process dies after this number of the event's facts is on disk. The
        sender then gets no reply.
        """
        rounds_before = self.state.rounds_done
        state, actions, reply = advance(self.state, event, self.now_s)
        new_facts = [action.fact for action in actions if isinstance(action, events.Persist)]
        on_disk = new_facts if killed_after is None else new_facts[:killed_after]
        for fact in on_disk:
            self.journal.append(facts.to_json(fact))
            self._watch(fact)
        if killed_after is not None:
            self.restart()
            return None
        check_invariants(self.state, state)
        self.state = state
        assert state.rounds_done >= rounds_before, "a round was undone"
        for action in actions:
            self._do(action)
        return reply

    def restart(self) -> None:
        """Kill the process and restart it from disk; its clock starts at zero."""
        self.now_s = 0.0
        self.sum_of, self.folded, self.results = None, Counter(), []
        rounds_before = self.state.rounds_done
        self.state = self.replayed()
        assert self.state.rounds_done >= rounds_before, "an acknowledged round was forgotten"
        step = self.state.step
        self.spool = {entry for entry in self.spool if step and entry[0] == step.number}
        if self.state.model_step:
            assert self.stored[self.state.model_step] == self.state.base_digest
        self.post(events.Signal.RECOVERED)

    def replayed(self) -> RunState:
        state = RunState(self.settings)
        for record in self.journal:
            state = apply(state, facts.from_json(record))
        return state

    def _do(self, action: Action) -> None:
        match action:
            case events.Persist():
                pass
            case events.OpenStep():
                self.sum_of, self.folded = action.step.number, Counter()
            case events.Fold():
                upload = action.upload
                assert self.sum_of == upload.step, "a fold into another sum"
                assert (upload.step, upload.client, upload.digest) in self.spool
                self.folded[upload.client] += 1
                assert self.folded[upload.client] == 1, "a client was counted twice"
            case events.Reduce():
                self.results.append(self._reduced(action.step))
            case events.DropSpool():
                self.spool = {entry for entry in self.spool if entry[0] > action.step}
            case events.KeepBest():
                assert self.stored[action.best.step] == action.best.base_digest
                self.kept[action.best.step] = action.best.base_digest
            case events.WriteModel():
                assert self.final_model in (None, self.state.base_digest)
                self.final_model = self.state.base_digest
            case _:
                assert_never(action)

    def _reduced(self, step: Step) -> events.StepReduced:
        assert step.closed is not None
        assert self.sum_of == step.number and set(self.folded) == set(step.closed)
        digests = [step.uploads[client].digest for client in step.closed]
        base = hashed(self.state.base_digest, step.closed, digests)
        assert self.stored.setdefault(step.number, base) == base, "another sum of the same step"
        if step.work is not Work.SCORE and not step.task:
            now = self.state
            return events.StepReduced(
                step.number, now.mask_epoch, now.mask_digest, now.num_kept, base,
                scored_digest=now.scored_digest,
            )  # fmt: skip
        epoch = self.state.mask_epoch + 1
        scored = hashed("whole", self.state.base_digest) if self.state.base_digest else ""
        mask = f"mask {epoch}"
        return events.StepReduced(step.number, epoch, mask, 5, base, scored_digest=scored)

    def _watch(self, fact: facts.Fact) -> None:
        match fact:
            case facts.UploadAccepted():
                uploads = self.accepted.setdefault(fact.step, {})
                assert fact.client not in uploads, "an upload was accepted twice"
                assert fact.step not in self.closed, "an upload was accepted after the close"
                uploads[fact.client] = fact.digest
            case facts.StepClosed():
                assert fact.step not in self.closed, "a step was closed twice"
                assert set(fact.accepted) == set(self.accepted.get(fact.step, {}))
                promised = {c for step, c in self.acknowledged if step == fact.step}
                assert promised <= set(fact.accepted), "an acknowledged upload does not count"
                self.closed[fact.step] = fact.accepted
            case facts.StepCommitted():
                assert fact.step not in self.committed, "a step was committed twice"
                assert fact.step in self.closed and fact.step not in self.void
                self.committed[fact.step] = fact.base_digest
            case facts.StepVoided():
                assert fact.step not in self.closed
                self.void.add(fact.step)
            case facts.RunPaused():
                self.is_paused, self.num_pauses = True, self.num_pauses + 1
            case facts.RunResumed():
                self.is_paused = False
            case facts.RunStarted() | facts.StepStarted():
                assert not self.is_paused, "a paused run began something"

    # -- the clients

    def join(self, client: ClientId) -> None:
        """Let a client join with its model; the first client describes the model."""
        samples = 10 * (1 + self.clients.index(client))
        self.post(events.Joined(client, "token", samples, MODEL, "cpu"))
        if not self.state.manifest_digest:
            self.initialize(client)

    def initialize(self, client: ClientId) -> None:
        settings = self.settings
        has_mask = settings.strategy in ("fedavg", "flash-spdst") or settings.warmup_rounds
        model = (1, "mask 1", 9, "base 0") if has_mask else (0, "", 0, "")
        stage = WARM_UP if settings.strategy == "flash-spdst" else ""
        self.post(events.Initialized(client, MODEL, "initial", *model, stage=stage))

    def answer(self, client: ClientId, step: Step, *, killed_after: int | None = None) -> None:
        """Let a client answer a step; its result depends on the work alone."""
        digest = ""
        if not step.work.is_test:
            digest = hashed(client, step.work, step.round_number, self.state.base_digest)
        self.upload(step.number, client, digest, killed_after=killed_after)

    def upload(
        self, step: int, client: ClientId, digest: str, *, killed_after: int | None = None
    ) -> None:
        """Spool an upload, then post it to the run."""
        self.spool.add((step, client, digest))
        before = self.accepted.get(step, {}).get(client)
        event = events.UploadReceived(step, client, digest, 1.0, report(step, client))
        match self.post(event, killed_after=killed_after):
            case Reply.ACCEPTED:
                assert before is None
                self.acknowledged.add((step, client))
            case Reply.ALREADY_ACCEPTED:
                assert before == digest
            case Reply.CONFLICT:
                assert before is not None and before != digest

    def deliver(self) -> None:
        """Post the oldest finished sum to the run."""
        if self.results:
            self.post(self.results.pop(0))

    def finish_calmly(self, limit: int = 500) -> None:
        """Drive the run to its end with all clients present and answering at once."""
        for client in self.clients:
            member = self.state.members.get(client)
            if member is None or member.left or member.manifest_digest != MODEL:
                self.join(client)
            self.post(events.Returned(client))
        if not self.state.manifest_digest:
            self.initialize(self.clients[0])
        if not self.state.founders:
            self.post(events.Signal.START)
        for _ in range(limit):
            if self.state.finished:
                return
            step = self.state.step
            if self.results:
                self.deliver()
            elif step and step.pending:
                self.answer(min(step.pending), step)
            else:
                self.post(events.Signal.TICK)
        raise AssertionError(f"the run did not finish: {self.state}")
