"""What happened since the coordinator started, counted as it happens; lost with the process.

What the run's state and the ledger tell is not counted again here. `server/metrics.py` shows both.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ssfl.method.strategies.contract import ClientId, Work
from ssfl.program.histogram import Histogram
from ssfl.program.series import SECONDS, SYNC_SECONDS
from ssfl.server import facts
from ssfl.server.facts import Fact
from ssfl.server.ledger import Direction, Ledger
from ssfl.server.state import RunState
from ssfl.server.timing import PHASES

BYTES_PER_VALUE = 4  # of a model that is sent whole


@dataclass(frozen=True, slots=True)
class Result:
    """A client's newest scores or update, in seconds from the start of its step."""

    sent_s: float  # it had its task
    work_s: float
    upload_s: float
    received_s: float
    upload_bytes: int


def _histograms(names: tuple[str, ...]) -> dict[str, Histogram]:
    return {name: Histogram(SECONDS) for name in names}


@dataclass
class Tally:
    """Counts of one process."""

    recovered: bool = False  # it took up a run of an earlier process
    joined: Counter[bool] = field(default_factory=Counter)  # True: it had joined before
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
        default_factory=lambda: _histograms(tuple(one.value for one in Work))
    )
    phases: dict[str, Histogram] = field(default_factory=lambda: _histograms(PHASES))
    syncs: Histogram = field(default_factory=lambda: Histogram(SYNC_SECONDS))
    _before: Mapping[Direction, int] = field(default_factory=dict)  # values, by earlier processes
    _values: Mapping[Direction, int] = field(default_factory=dict)  # at the newest commit

    def begin(self, state: RunState, ledger: Ledger) -> None:
        """Note what earlier processes did."""
        self.recovered = bool(state.members)
        self._before = values_bytes(ledger)

    def take(self, fact: Fact, before: RunState, ledger: Ledger, num_values: int) -> None:
        """Count a fact; `before` is the state it came upon, `num_values` those of the model."""
        match fact:
            case facts.ClientJoined() if fact.manifest_digest:  # the first is only to be told
                member = before.members.get(fact.client)
                self.joined[bool(member and member.manifest_digest)] += 1
            case facts.StepStarted():
                self._asked(fact.work, len(fact.cohort), num_values)
            case facts.ClientsAdded() if before.step:
                self._asked(before.step.work, len(fact.cohort), num_values)
            case facts.UploadAccepted() if before.step:
                self._reported(fact, before.step.work, num_values)
            case facts.StepVoided():
                self.void += 1
            case facts.StepCommitted() if before.step:
                self._committed(fact, before.step.work, ledger)

    def resumed(self) -> None:
        """An upload went on where it had been cut off."""
        self.resumes[Direction.UP] += 1

    def ratio_to_dense(self) -> dict[Direction, float]:
        """Return what rounds sent since this process started, as a share of the dense model's."""
        return {
            direction: (self._values.get(direction, 0) - self._before.get(direction, 0)) / dense
            for direction, dense in self.dense_bytes.items()
            if self._values
        }

    def _asked(self, work: Work, clients: int, num_values: int) -> None:
        self.selected[work.value] += clients
        if work is Work.TRAIN:
            self.dense_bytes[Direction.DOWN] += clients * BYTES_PER_VALUE * num_values

    def _reported(self, fact: facts.UploadAccepted, work: Work, num_values: int) -> None:
        self.reported[work.value] += 1
        if work is Work.TRAIN:
            self.dense_bytes[Direction.UP] += BYTES_PER_VALUE * num_values
        report = fact.report
        if "upload_s" in report:  # tests have none: they would hide the round before them
            self.results[fact.client] = Result(
                report["sent_s"], report["work_s"], report["upload_s"],
                report["received_s"], report["upload_bytes"],
            )  # fmt: skip

    def _committed(self, fact: facts.StepCommitted, work: Work, ledger: Ledger) -> None:
        if work is Work.TRAIN:
            self._values = values_bytes(ledger)
        if (seconds := fact.report.get("seconds")) is not None:
            self.steps[work.value].observe(seconds)
        if work is Work.TRAIN and (phases := fact.report.get("phases")):
            for name, seconds in phases.items():
                self.phases[name].observe(seconds)


def values_bytes(ledger: Ledger) -> dict[Direction, int]:
    """Return the bytes of encoded values so far."""
    found = dict.fromkeys(Direction, 0)
    for row in ledger.rows():
        if row["phase"] == "values":
            found[Direction(row["direction"])] += row["payload_bytes"]
    return found
