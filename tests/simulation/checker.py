"""The promises, checked against the journal on disk and a simple model of the run.

The checker sees only external effects: the synced records of the journal, the uploads of clients
and the answers they received. It does not see the memory of the coordinator.
"""

import json
import struct
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.model import DENSE, MASKED, Model, initial_values
from ssfl.method.settings import RunSettings

Vector = npt.NDArray[np.float32]
_HEAD = struct.Struct("<III")
_MAGIC_BYTES = 8


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Made:
    """A result of a client, and what it was computed from."""

    client: str
    work: str  # "score" or "train"
    base_digest: str  # of the vector that was scored or trained
    round_number: int
    values: Vector
    is_sound: bool = True  # False: it must never count
    kept: tuple[int, ...] | None = None  # the mask of its own
    memory: Vector | None = None  # what the client keeps if this counts


@dataclass
class Step:
    """A step according to the journal."""

    number: int
    work: str
    round_number: int
    weights: dict[str, int]
    equal_weights: bool
    task: str = ""
    uploads: dict[str, str] = field(default_factory=dict)  # client -> digest
    closed: list[str] | None = None


def read_records(path: Path) -> list[bytes]:
    """Return the sound records of a journal."""
    data, at, records = path.read_bytes(), _MAGIC_BYTES, []
    while at + _HEAD.size <= len(data):
        length, checksum, _ = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if not length or len(body) < length or zlib.crc32(body) != checksum:
            break
        records.append(body)
        at += _HEAD.size + length
    return records


class Checker:
    """Follows one run across all its crashes."""

    def __init__(self, settings: RunSettings, *, sent: bool) -> None:
        self._settings = settings
        self.model = Model(
            initial_values(sent=sent),
            sparse=settings.strategy in ("ssfl", "ditto") and not settings.warmup_rounds,
            sparsity=settings.sparsity,
            keep=settings.deactivated == "keep",
            moves=settings.strategy == "feddst",
        )
        self.facts: list[bytes] = []  # synced records
        self.made: dict[tuple[str, str], Made] = {}  # by client and digest
        self.sessions: dict[str, int] = {}  # the newest of every client
        self.is_initialized = False
        self.is_finished = False
        self.is_paused = False
        self.rounds_done = 0
        self.rounds_begun: dict[int, int] = defaultdict(int)
        self.commits: list[str] = []
        self._left: set[str] = set()
        self._attempt = 0
        self._last_step = 0
        self._step: Step | None = None
        self._history: dict[int, Step] = {}
        self._void: set[int] = set()
        self._promised: dict[int, set[tuple[str, str]]] = defaultdict(set)
        self._memory: dict[str, Vector] = {}  # of each client, after its newest step that counted

    # -- the journal

    def synced(self, path: Path) -> list[str]:
        """Read the synced records; return a line for each new one."""
        records = read_records(path)
        before = len(self.facts)
        _must(
            records[:before] == self.facts,
            f"{before} journal records were safe, but now they are others, or gone",
        )
        lines = []
        for record in records[before:]:
            self.facts.append(record)
            fact = json.loads(record)
            kind = fact["fact"]
            if act := getattr(self, f"_{kind}", None):
                act(fact)
            lines.append(_line(kind, fact))
        return lines

    def _ClientJoined(self, fact: dict[str, Any]) -> None:
        client = fact["client"]
        _must(fact["session"] > max(self.sessions.values(), default=0), "a session came twice")
        self.sessions[client] = fact["session"]
        self._left.discard(client)

    def _ClientLeft(self, fact: dict[str, Any]) -> None:
        self._left.add(fact["client"])

    def _ModelInitialized(self, _fact: dict[str, Any]) -> None:
        _must(not self.is_initialized, "the model was described twice")
        self.is_initialized = True

    def _RunPaused(self, _fact: dict[str, Any]) -> None:
        _must(not self.is_paused, "a paused run was paused")
        self.is_paused = True

    def _RunResumed(self, _fact: dict[str, Any]) -> None:
        _must(self.is_paused, "a run was resumed that was not paused")
        self.is_paused = False

    def _RunStarted(self, _fact: dict[str, Any]) -> None:
        _must(not self.is_paused, "a paused run began")

    def _StepStarted(self, fact: dict[str, Any]) -> None:
        _must(not self.is_paused, "a paused run began a step")
        _must(self._step is None, "a step began inside another one")
        _must(fact["step"] == self._last_step + 1, "a step's number is not the next")
        _must(fact["attempt"] == self._attempt, "a void step did not raise the attempt")
        _must(fact["round_number"] == self.rounds_done, "a round was skipped or undone")
        weights = dict.fromkeys(fact["cohort"], 1) if fact["equal_weights"] else fact["cohort"]
        self._step = Step(
            fact["step"], fact["work"], fact["round_number"], dict(weights), fact["equal_weights"],
            fact.get("task", ""),
        )  # fmt: skip
        self._history[fact["step"]] = self._step
        self._last_step = fact["step"]

    def _ClientsAdded(self, fact: dict[str, Any]) -> None:
        step = self._open(fact)
        _must(step.closed is None, "a client was asked after the close")
        added = dict.fromkeys(fact["cohort"], 1) if step.equal_weights else fact["cohort"]
        _must(not set(added) & set(step.weights), "a client was asked twice")
        step.weights.update(added)

    def _UploadAccepted(self, fact: dict[str, Any]) -> None:
        step, client = self._open(fact), fact["client"]
        _must(step.closed is None, "an upload was accepted after the close")
        _must(client in step.weights, f"{client} was not asked")
        _must(client not in step.uploads, f"{client} was counted twice")
        step.uploads[client] = fact["digest"]

    def _StepClosed(self, fact: dict[str, Any]) -> None:
        step = self._open(fact)
        _must(step.closed is None, "a step was closed twice")
        closed = fact["accepted"]
        _must(len(closed) == len(set(closed)), "a client is in the closed set twice")
        _must(set(closed) == set(step.uploads), "the closed set is not who was accepted")
        for client, digest in self._promised[step.number]:
            _must(
                client in closed and step.uploads[client] == digest,
                f"the upload of {client} was acknowledged but does not count",
            )
        step.closed = closed

    def _StepVoided(self, fact: dict[str, Any]) -> None:
        step = self._open(fact)
        _must(step.closed is None, "a closed step was declared void")
        self._void.add(step.number)
        self._attempt += 1
        self._step = None

    def _StepCommitted(self, fact: dict[str, Any]) -> None:
        step = self._open(fact)
        _must(step.closed is not None, "a step was committed before it was closed")
        assert step.closed is not None
        if step.work in ("score", "train"):
            made = {client: self._counted(step, client) for client in step.closed}
            if step.task:
                self.model.move({c: _by_place(one) for c, one in made.items()}, step.weights)
            else:
                vectors = {client: one.values for client, one in made.items()}
                apply = self.model.score if step.work == "score" else self.model.train
                apply(vectors, step.weights)
            self._memory |= {c: one.memory for c, one in made.items() if one.memory is not None}
        if step.work == "train":
            self.rounds_done += 1
        now = (self.model.epoch, self.model.mask_digest, self.model.base_digest)
        _must(
            (fact["mask_epoch"], fact["mask_digest"], fact["base_digest"]) == now,
            f"step {step.number} is not the exact mean of {', '.join(step.closed)}",
        )
        self.commits.append(fact["base_digest"])
        self._attempt = 0
        self._step = None

    def _RunFinished(self, _fact: dict[str, Any]) -> None:
        _must(self._step is None or self._step.closed is None, "a run ended inside a sum")
        _must(not self.is_paused, "a paused run ended by itself")
        self._step = None
        self.is_finished = True

    def _open(self, fact: dict[str, Any]) -> Step:
        _must(
            self._step is not None and self._step.number == fact["step"],
            f"{fact['fact']} of a step that is not open",
        )
        assert self._step is not None
        return self._step

    def _counted(self, step: Step, client: str) -> Made:
        """Return the result behind a client's upload, which must be for this step."""
        made = self.made.get((client, step.uploads[client]))
        _must(made is not None, f"{client} never sent what was counted for it")
        assert made is not None
        _must(made.is_sound, f"an unsound upload of {client} was counted")
        _must(made.work == step.work, f"{client} did other work than step {step.number} asks for")
        base = self.model.base_digest
        if step.work == "score":
            base = _scored(self.model)
        _must(made.base_digest == base, f"{client} counted with a stale base")
        if step.work == "train":
            _must(made.round_number == step.round_number, f"{client} counted with a stale round")
        return made

    # -- replies to clients

    def acknowledged(self, client: str, step: int, digest: str, outcome: str) -> None:
        """A client received the reply that its upload counts."""
        recorded = self._history.get(step)
        _must(
            recorded is not None and recorded.uploads.get(client) == digest,
            f"{client} has a receipt ({outcome}) for step {step}, but the journal does not know",
        )
        if step not in self._void:
            self._promised[step].add((client, digest))
            assert recorded is not None
            if recorded.closed is not None:
                _must(client in recorded.closed, f"{client} has a receipt but does not count")

    def joined(self, client: str, session: int) -> None:
        """A client got a session."""
        known = 0 < session <= self.sessions.get(client, 0)
        _must(known, f"{client}'s session is not in the journal")

    def described(self) -> None:
        """A client received the reply that its description of the model is stored."""
        _must(self.is_initialized, "a described model is not in the journal")

    def left(self, client: str) -> None:
        """A client received the reply to its Leave."""
        _must(client in self._left, f"the goodbye of {client} is not in the journal")

    def paused(self, *, is_paused: bool) -> None:
        """An operator received the reply that the run is paused or resumed."""
        _must(self.is_paused is is_paused or self.is_finished, "the reply to an operator is lost")

    def asked(self, client: str, step: int, work: str, digests: tuple[str, str]) -> None:
        """A client received a task, which must match the journal, as must its model."""
        recorded = self._history.get(step)
        _must(
            recorded is not None and recorded.work == work,
            f"{client} got {work} that was not assigned",
        )
        assert recorded is not None
        _must(client in recorded.weights, f"{client} got a task of step {step} without being asked")
        if self._step is recorded:  # else an old task, in transit when the step ended
            now = (self.model.mask_digest, self.model.base_digest)
            if work == "score":
                now = (now[0], _scored(self.model))
            _must(digests == now, f"{client} got another model than that of step {step}")

    def remembers(self, client: str, step: int, memory: Vector | None) -> None:
        """A client begins a step with its memory, which must come from steps that counted."""
        if self._step is None or self._step.number != step:
            return  # an old task, in transit when the step ended
        known = self._memory.get(client)
        same = known is memory if known is None or memory is None else np.array_equal(known, memory)
        _must(same, f"{client} begins step {step} with a memory that is not of its counted steps")

    def finished(self, client: str, values: Vector) -> None:
        """A client has the final model."""
        _must(self.is_finished, f"{client} got a final model before the end")
        same = self.model.values is not None and np.array_equal(values, self.model.values)
        _must(same, f"{client} got another final model")

    def end(self) -> None:
        """The run is over and all clients have left."""
        _must(self.is_finished, "the run did not end")
        for number, promised in self._promised.items():
            step = self._history[number]
            if number not in self._void and step.closed is not None:
                counted = {(client, step.uploads[client]) for client in step.closed}
                _must(promised <= counted, f"step {number}: an acknowledged upload does not count")


def _by_place(made: Made) -> dict[int, float]:
    """Return the values of an update that came with a mask of its own, by place."""
    _must(made.kept is not None, f"{made.client} counted without a mask of its own")
    places = [*(made.kept or ()), *range(MASKED, MASKED + DENSE)]
    return dict(zip(places, map(float, made.values), strict=True))


def _scored(model: Model) -> str:
    from simulation.model import digest_of

    return digest_of(model.whole)


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)


def _line(kind: str, fact: dict[str, Any]) -> str:
    """Return a fact as readable text."""
    match kind:
        case "StepStarted":
            who = ",".join(fact["cohort"])
            return f"step {fact['step']} {fact['work']} round {fact['round_number']} asks {who}"
        case "UploadAccepted":
            return f"step {fact['step']} accepts {fact['client']} {fact['digest'][:8]}"
        case "StepClosed":
            return f"step {fact['step']} closes with {','.join(fact['accepted']) or 'no client'}"
        case "StepVoided":
            return f"step {fact['step']} is void: {fact['reason']}"
        case "StepCommitted":
            return f"step {fact['step']} commits {fact['base_digest'][:8]}"
        case "ClientsAdded":
            return f"step {fact['step']} asks {','.join(fact['cohort'])}, too"
        case "ClientJoined":
            return f"{fact['client']} joins, session {fact['session']}"
        case "ClientLeft":
            return f"{fact['client']} leaves"
    return kind
