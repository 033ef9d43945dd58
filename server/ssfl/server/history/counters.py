"""Counters since the start of this process. They are not persisted.

Numbers that the state of the run and the ledger hold are not repeated here. The metrics show both.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ssfl.method.strategies.contract import ClientId, Work
from ssfl.program.monitor.series import SECONDS, SYNC_SECONDS, Histogram
from ssfl.server.accounting.dense_equivalent import (
    BYTES_PER_VALUE,
    COMPARED,
    ModelHolders,
    has_own_masks,
)
from ssfl.server.accounting.ledger import Direction, Ledger
from ssfl.server.history.timing import PHASES
from ssfl.server.run import facts
from ssfl.server.run.facts import Fact
from ssfl.server.run.state import RunState, Step

Key = tuple[str, str, str]  # phase, direction, encoding
Counted = tuple[int, int, int]  # payload, message, socket


@dataclass(frozen=True, slots=True)
class Result:
    """A client's newest scores or update; times are in seconds from the start of its step."""

    sent_s: float  # its task was completely sent
    work_s: float
    upload_s: float
    received_s: float
    upload_bytes: int
    asked_s: float = 0.0  # sending of its task began

    @property
    def broadcast_s(self) -> float:
        """How long sending the task took."""
        return max(0.0, self.sent_s - self.asked_s)


def _histograms(names: tuple[str, ...]) -> dict[str, Histogram]:
    return {name: Histogram(SECONDS) for name in names}


@dataclass
class ProcessCounters:
    """Counts since this process started."""

    recovered: bool = False  # it resumed a run of an earlier process
    joined: Counter[bool] = field(default_factory=Counter)  # True: the client had joined before
    selected: Counter[str] = field(default_factory=Counter)  # by work
    reported: Counter[str] = field(default_factory=Counter)  # by work
    late: int = 0
    lost: int = 0
    void: int = 0
    retries: int = 0
    resumes: Counter[Direction] = field(default_factory=Counter)
    dense_bytes: Counter[Direction] = field(default_factory=Counter)
    results: dict[ClientId, Result] = field(default_factory=dict)
    steps: dict[str, Histogram] = field(
        default_factory=lambda: _histograms(tuple(work.value for work in Work))
    )
    phases: dict[str, Histogram] = field(default_factory=lambda: _histograms(PHASES))
    syncs: Histogram = field(default_factory=lambda: Histogram(SYNC_SECONDS))
    # Bytes sent since the start as a share of the dense equivalent, at the newest committed round.
    ratios: Mapping[Direction, float] = field(default_factory=dict)
    _known: set[ClientId] = field(default_factory=set)  # joined clients, earlier processes included
    _before: Mapping[Key, Counted] = field(default_factory=dict)  # by earlier processes
    _holders: ModelHolders = field(default_factory=ModelHolders)

    def begin(self, state: RunState, ledger: Ledger) -> None:
        """Initialize the counters from the state that earlier processes left."""
        self.recovered = bool(state.members)
        self._known = set(state.members)
        self._before = {_key(row): _counted(row) for row in ledger.rows()}
        settings = state.settings
        own_masks = has_own_masks(settings.strategy, settings.criterion)
        self._holders = ModelHolders(is_first=state.rounds_done == 0, own_masks=own_masks)

    def take(self, fact: Fact, before: RunState, ledger: Ledger, num_values: int) -> None:
        """Count a fact; `before` is the state before it, `num_values` the size of the model."""
        match fact:
            case facts.ClientJoined() if (
                fact.manifest_digest
            ):  # the first join only asks for the model
                self.joined[fact.client in self._known] += 1
                self._known.add(fact.client)
            case facts.StepStarted():
                self._asked(fact.work, before, fact.cohort, num_values)
            case facts.ClientsAdded() if before.step:
                self._asked(before.step.work, before, fact.cohort, num_values)
            case facts.UploadAccepted() if before.step:
                self._reported(fact, before.step.work, num_values)
            case facts.StepVoided():
                self.void += 1
            case facts.StepCommitted() if before.step:
                self._committed(fact, before.step, ledger, num_values)

    def resumed(self) -> None:
        """Count an upload that resumed where it had been interrupted."""
        self.resumes[Direction.UP] += 1

    def bytes_since_start(self, ledger: Ledger) -> list[dict[str, Any]]:
        """Return the ledger's rows without the bytes of earlier processes."""
        rows = []
        for row in ledger.rows():
            payload, message, socket = self._before.get(_key(row), (0, 0, 0))
            now = _counted(row)
            rows.append(
                row
                | {
                    "payload_bytes": now[0] - payload,
                    "message_bytes": now[1] - message,
                    "socket_bytes": now[2] - socket,
                }
            )
        return rows

    def _asked(
        self, work: Work, state: RunState, cohort: Mapping[ClientId, int], num_values: int
    ) -> None:
        self.selected[work.value] += len(cohort)
        if (
            work is not Work.SCORE or state.rounds_done
        ):  # before the first round the model is sent as `initial`
            self._models_sent(self._holders.asked(cohort, to_test=work.is_test), num_values)

    def _models_sent(self, count: int, num_values: int) -> None:
        self.dense_bytes[Direction.DOWN] += count * BYTES_PER_VALUE * num_values

    def _reported(self, fact: facts.UploadAccepted, work: Work, num_values: int) -> None:
        self.reported[work.value] += 1
        if work is Work.TRAIN:
            self.dense_bytes[Direction.UP] += BYTES_PER_VALUE * num_values
        report = fact.report
        if "upload_s" in report:  # tests have none and must not hide the round before them
            self.results[fact.client] = Result(
                report["sent_s"], report["work_s"], report["upload_s"],
                report["received_s"], report["upload_bytes"], report.get("asked_s", 0.0),
            )  # fmt: skip

    def _committed(
        self, fact: facts.StepCommitted, step: Step, ledger: Ledger, num_values: int
    ) -> None:
        work = step.work
        if work is Work.SCORE:
            self._models_sent(self._holders.scored(step.uploads), num_values)
        if work is Work.TRAIN:
            sent = self._compared(ledger)
            self._models_sent(self._holders.trained(sent[Direction.DOWN]), num_values)
            dense = self.dense_bytes
            self.ratios = {way: sent[way] / dense[way] for way in Direction if dense[way]}
        if (seconds := fact.report.get("seconds")) is not None:
            self.steps[work.value].observe(seconds)
        if work is Work.TRAIN and (phases := fact.report.get("phases")):
            for name, seconds in phases.items():
                self.phases[name].observe(seconds)

    def _compared(self, ledger: Ledger) -> dict[Direction, int]:
        """Return the bytes that are compared with the dense equivalent."""
        sent = dict.fromkeys(Direction, 0)
        for row in self.bytes_since_start(ledger):
            if row["phase"] in COMPARED:
                sent[Direction(row["direction"])] += row["payload_bytes"]
        return sent


def _key(row: Mapping[str, Any]) -> Key:
    return str(row["phase"]), str(row["direction"]), str(row["encoding"])


def _counted(row: Mapping[str, Any]) -> Counted:
    return row["payload_bytes"], row["message_bytes"], row["socket_bytes"] or 0
