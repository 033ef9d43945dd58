"""Counters since the start of this process. They are not persisted.

Numbers that the state of the run and the ledger hold are not repeated here. The metrics show both.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ssfl.program.monitor.series import SECONDS, SYNC_SECONDS, Histogram
from ssfl.server.accounting.dense_equivalent import (
    BYTES_PER_VALUE,
    COMPARED,
    ModelHolders,
)
from ssfl.server.accounting.ledger import COUNTS, Direction, Ledger
from ssfl.server.history.timing import PHASES
from ssfl.server.run import facts
from ssfl.server.run.facts import Fact
from ssfl.server.run.state import RunState, Step
from ssfl.strategies.contract import ClientId, Work
from ssfl.strategies.registry import strategy_for

Key = tuple[str, str, str]  # phase, direction, encoding


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
    # Each client's newest report about scores or an update; times are from the start of its step.
    results: dict[ClientId, Mapping[str, Any]] = field(default_factory=dict)
    steps: dict[str, Histogram] = field(
        default_factory=lambda: {work.value: Histogram(SECONDS) for work in Work}
    )
    phases: dict[str, Histogram] = field(
        default_factory=lambda: {phase: Histogram(SECONDS) for phase in PHASES}
    )
    syncs: Histogram = field(default_factory=lambda: Histogram(SYNC_SECONDS))
    # Bytes sent since the start as a share of the dense equivalent, at the newest committed round.
    ratios: Mapping[Direction, float] = field(default_factory=dict)
    _known: set[ClientId] = field(default_factory=set)  # joined clients, earlier processes included
    # The ledger's rows as earlier processes left them.
    _before: Mapping[Key, Mapping[str, Any]] = field(default_factory=dict)
    _holders: ModelHolders = field(default_factory=ModelHolders)

    def begin(self, state: RunState, ledger: Ledger) -> None:
        """Initialize the counters from the state that earlier processes left."""
        self.recovered = bool(state.members)
        self._known = set(state.members)
        self._before = {_key(row): row for row in ledger.rows()}
        settings = state.settings
        own_masks = strategy_for(settings).has_own_masks
        self._holders = ModelHolders(is_first=state.rounds_done == 0, own_masks=own_masks)

    def take(self, fact: Fact, before: RunState, ledger: Ledger, num_values: int) -> None:
        """Count a fact; `before` is the state before it, `num_values` the size of the model."""
        match fact:
            case facts.ClientJoined() if fact.manifest_digest:  # the first Join has no model
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

    def bytes_since_start(self, ledger: Ledger) -> list[dict[str, Any]]:
        """Return the ledger's rows without the bytes of earlier processes."""
        rows = []
        for row in ledger.rows():
            before = self._before.get(_key(row), {})
            rows.append(row | {name: (row[name] or 0) - (before.get(name) or 0) for name in COUNTS})
        return rows

    def _asked(
        self, work: Work, state: RunState, cohort: Mapping[ClientId, int], num_values: int
    ) -> None:
        self.selected[work.value] += len(cohort)
        # Before the first round the model to score is sent as `initial`.
        if work is not Work.SCORE or state.rounds_done:
            self._models_sent(self._holders.asked(cohort, to_test=work.is_test), num_values)

    def _models_sent(self, count: int, num_values: int) -> None:
        self.dense_bytes[Direction.DOWN] += count * BYTES_PER_VALUE * num_values

    def _reported(self, fact: facts.UploadAccepted, work: Work, num_values: int) -> None:
        self.reported[work.value] += 1
        if work is Work.TRAIN:
            self.dense_bytes[Direction.UP] += BYTES_PER_VALUE * num_values
        if "upload_s" in fact.report:  # a test has none; the round's report stays
            self.results[fact.client] = fact.report

    def _committed(
        self, fact: facts.StepCommitted, step: Step, ledger: Ledger, num_values: int
    ) -> None:
        work = step.work
        if work is Work.SCORE:
            self._models_sent(self._holders.scored(step.uploads), num_values)
        if work is Work.TRAIN:
            sent = dict.fromkeys(Direction, 0)
            for row in self.bytes_since_start(ledger):
                if row["phase"] in COMPARED:
                    sent[Direction(row["direction"])] += row["payload_bytes"]
            self._models_sent(self._holders.trained(sent[Direction.DOWN]), num_values)
            dense = self.dense_bytes
            self.ratios = {way: sent[way] / dense[way] for way in Direction if dense[way]}
        if (seconds := fact.report.get("seconds")) is not None:
            self.steps[work.value].observe(seconds)
        if work is Work.TRAIN and (phases := fact.report.get("phases")):
            for name, seconds in phases.items():
                self.phases[name].observe(seconds)


def _key(row: Mapping[str, Any]) -> Key:
    return str(row["phase"]), str(row["direction"]), str(row["encoding"])
