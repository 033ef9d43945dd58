"""The history of a run, derived from its facts: rounds, evaluations, votes and bytes.

Accuracies: `pooled` is correct / total over all test samples of the clients that reported,
`mean` the plain mean over clients, `personal` the mean over clients of each one's own freshly
trained model. `loss` and `metrics` are pooled, too. A round's accuracies are those of its
*base*: sampled clients test the model they receive before they train. At the end of a run,
`personal` compares the clients' own models with the global one, over the clients that have one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

from ssfl.server.run import facts
from ssfl.server.run.facts import Fact
from ssfl.server.run.quality import accuracies
from ssfl.strategies.contract import ClientId, Work

Entry = dict[str, Any]

PACE_STEPS = 20  # newest rounds and tests from which the next durations are estimated


class HistoryEntry(NamedTuple):
    """An entry that a committed step added to the history."""

    step: int
    name: str  # of its list: masks, rounds or evaluations
    entry: Entry


@dataclass
class Newest:
    """The newest history entries; a coordinator keeps them in memory, the others on disk."""

    votes: list[Entry] = field(default_factory=list)
    not_voted: list[str] = field(default_factory=list)
    densities: list[Entry] = field(default_factory=list)  # what other sparsities would cost
    newest_mask: Entry = field(default_factory=dict)  # why, and what each layer keeps
    newest_round: Entry = field(default_factory=dict)
    newest_evaluation: Entry = field(default_factory=dict)
    personal: list[Entry] = field(default_factory=list)  # clients' own models at the end
    trained: frozenset[ClientId] = frozenset()  # clients with an upload that counted in training
    # Byte totals, and the length of ledger.csv whose rows add up to them; set together.
    account: tuple[list[Entry], int] = field(default_factory=lambda: ([], 0))
    num_void: int = 0
    last_work: Work | None = None  # of the newest committed step
    # Known durations of the newest rounds and tests, and how many were timed in all.
    round_times: tuple[float, ...] = ()
    test_times: tuple[float, ...] = ()
    num_timed: int = 0
    num_tests_timed: int = 0
    # Of the open step.
    started: facts.StepStarted | None = None
    uploads: dict[ClientId, facts.UploadAccepted] = field(default_factory=dict)
    missing: tuple[ClientId, ...] = ()

    def add(self, fact: Fact) -> None:
        """Add the next fact of the run."""
        match fact:
            case facts.StepStarted():
                self.started, self.uploads, self.missing = fact, {}, ()
            case facts.ClientsAdded():
                assert self.started is not None
                cohort = {**self.started.cohort, **fact.cohort}
                self.started = replace(self.started, cohort=cohort)
            case facts.UploadAccepted():
                self.uploads[fact.client] = fact
            case facts.StepClosed():
                self.missing = fact.missing
            case facts.StepVoided():
                self.num_void += 1
            case facts.StepCommitted():
                self._commit(fact)
            case facts.RunFinished() | facts.BytesCounted():
                self._account(fact.report)

    def _account(self, report: Mapping[str, Any]) -> None:
        ledger, num_bytes = self.account
        self.account = report.get("ledger", ledger), report.get("ledger_bytes", num_bytes)

    def _commit(self, fact: facts.StepCommitted) -> None:
        started = self.started
        assert started is not None
        self.last_work = started.work
        self._account(fact.report)
        if started.work is Work.TRAIN:
            self.trained = self.trained.union(self.uploads)
        seconds: float | None = fact.report.get("seconds")
        clients = [
            {"client": client, "num_samples": started.cohort[client], **upload.report}
            for client, upload in sorted(self.uploads.items())
        ]
        entry = {
            "rounds_done": started.round_number,
            **{name: fact.report.get(name) for name in ("began", "seconds", "phases", "last")},
            "ledger": self.ledger,
            "missing": list(self.missing),
            "clients": clients,
        }
        match started.work:
            case Work.TRAIN if not self.is_round:
                self.newest_mask = self._mask_entry(fact)
            case Work.SCORE:
                excluded = fact.report.get("outliers", [])  # clients whose scores did not count
                voters = [row for row in clients if row["client"] not in excluded]
                weights = [1 if started.equal_weights else row["num_samples"] for row in voters]
                self.votes = [
                    {**row, "share": weight / sum(weights)}
                    for row, weight in zip(voters, weights, strict=True)
                ]
                self.not_voted = sorted([*self.missing, *excluded])
                self.densities = list(fact.report.get("densities", []))
                self.newest_mask = self._mask_entry(fact)
            case Work.TRAIN:
                losses = [row["training_loss"] for row in clients]
                errors = [row.get("coding_error", 0.0) for row in clients]
                self.newest_round = {
                    "round": started.round_number,
                    "attempt": started.attempt,
                    "training_loss": sum(losses) / len(losses),
                    "coding_error": sum(errors) / len(errors),
                    **accuracies(row["evaluation"] for row in clients),
                    "personal": accuracies(row["personal"] for row in clients)["mean"],
                    **entry,
                }
                if "mask" in fact.report:  # of a strategy that moves masks
                    self.newest_round["mask"] = fact.report["mask"]
                if seconds is not None:
                    self.num_timed += 1
                    self.round_times = (*self.round_times, seconds)[-PACE_STEPS:]
            case Work.EVALUATE:
                validated = [row["validation"] for row in clients if row.get("validation")]
                self.newest_evaluation = {
                    **accuracies(row["evaluation"] for row in clients),
                    "validation": accuracies(validated) if validated else None,
                    **entry,
                }
                if seconds is not None:
                    self.num_tests_timed += 1
                    self.test_times = (*self.test_times, seconds)[-PACE_STEPS:]
            case Work.PERSONALIZE:
                self.personal = [
                    {**row, "trained": row["client"] in self.trained} for row in clients
                ]

    def _mask_entry(self, fact: facts.StepCommitted) -> Entry:
        """Return the entry of a mask that was agreed; in a step of a strategy, without votes."""
        started = self.started
        assert started is not None
        return {
            "step": fact.step,
            "epoch": fact.mask_epoch,
            "rounds_done": started.round_number,
            "reason": started.reason or started.task,
            "criterion": started.criterion,
            "num_batches": started.num_batches,
            "num_kept": fact.num_kept,
            "digest": fact.mask_digest,
            "layers": fact.report.get("layers", {}),
            "renewed": fact.report.get("renewed"),
            "votes": {row["client"]: row["share"] for row in self.votes},
        }

    @property
    def is_round(self) -> bool:
        """True unless the newest training step is none of the rounds, such as a warm-up."""
        return self.started is None or self.started.counts_as_round

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """Total bytes, as last journalled."""
        return self.account[0]

    @property
    def newest_entry(self) -> HistoryEntry | None:
        """The entry of the step that was just committed; None if it has none."""
        assert self.started is not None
        match self.last_work:
            case Work.SCORE:
                return HistoryEntry(self.started.step, "masks", self.newest_mask)
            case Work.TRAIN if not self.is_round:
                return HistoryEntry(self.started.step, "masks", self.newest_mask)
            case Work.TRAIN:
                return HistoryEntry(self.started.step, "rounds", self.newest_round)
            case Work.EVALUATE:
                return HistoryEntry(self.started.step, "evaluations", self.newest_evaluation)
        return None

    @property
    def newest(self) -> Entry:
        """The newest test of a global model: `pooled`, `loss`, `metrics`; empty before one."""
        tested = [
            entry
            for entry in (self.newest_evaluation, self.newest_round)
            if entry and entry["loss"] is not None
        ]  # for the same model, an evaluation by all clients wins over that of a round
        return max(tested, key=lambda entry: int(entry["rounds_done"]), default={})

    @property
    def seconds_per_round(self) -> float | None:
        """The typical duration of recent rounds, plus their share of the tests between rounds."""
        rounds, tests = self.round_times, self.test_times
        if not rounds:
            return None
        share = self.num_tests_timed / self.num_timed
        # Medians, so that a single long wait for a client does not distort the estimate.
        return median(rounds) + (share * median(tests) if tests else 0.0)

    def to_dict(self, *, from_rounds: bool = False) -> dict[str, Any]:
        """Return the summary; `History` adds the lists of entries.

        With `from_rounds`, a client has a model of its own only if it has trained in a round.
        """
        return {
            "votes": self.votes,
            "not_voted": self.not_voted,
            "densities": self.densities,
            "personal": personal_entry(self.personal, from_rounds=from_rounds),
            "ledger": self.ledger,
            "num_void": self.num_void,
        }


@dataclass
class History(Newest):
    """The whole history of a run in memory, for simulations and tests."""

    masks: list[Entry] = field(default_factory=list)  # all agreed masks
    rounds: list[Entry] = field(default_factory=list)
    evaluations: list[Entry] = field(default_factory=list)

    def _commit(self, fact: facts.StepCommitted) -> None:
        super()._commit(fact)
        if new := self.newest_entry:
            getattr(self, new.name).append(new.entry)

    def to_dict(self, *, from_rounds: bool = False) -> dict[str, Any]:
        steps = {"masks": self.masks, "rounds": self.rounds, "evaluations": self.evaluations}
        return {**super().to_dict(from_rounds=from_rounds), **steps}


def personal_entry(clients: Sequence[Entry], *, from_rounds: bool) -> Entry | None:
    """Return the tests of personal models at the end of a run; None if there were none.

    `global` and `personal` cover the same clients: those that have a model of their own. The rest
    tested the global model twice, and the second test is left out.
    """
    if not clients:
        return None
    having = [row for row in clients if row["trained"] or not from_rounds]
    names = {row["client"] for row in having}
    return {
        "global": accuracies(row["evaluation"] for row in having),
        "personal": accuracies(row["personal"] for row in having),
        "own_models": len(having),
        "clients": [_personal_row(row, has_own=row["client"] in names) for row in clients],
    }


def _personal_row(row: Entry, *, has_own: bool) -> Entry:
    """Return a client's tests of the global model and of its own, and its data size."""
    own = accuracies([row["personal"]] if has_own else [])
    tested = accuracies([row["evaluation"]])
    return {
        "client": row["client"],
        "num_samples": row["num_samples"],
        "global": tested["pooled"],
        "personal": own["pooled"],
        "global_loss": tested["loss"],
        "personal_loss": own["loss"],
        "has_own_model": has_own,
        "test_samples": row["evaluation"]["total"],
    }
