"""What a run did, told from its facts: rounds, evaluations, votes and bytes.

Accuracies: `pooled` is correct / total over all test samples of the clients that reported,
`mean` the plain mean over clients, `personal` the mean over clients of each one's own freshly
trained model. `loss` and `metrics` are pooled, too. A round's accuracies are those of its
*base*: sampled clients test what they were given before they train. At the end of a run with
`personalize_epochs`, `personal` has every client's own model beside the global one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server import facts
from ssfl.server.facts import Fact
from ssfl.server.quality import accuracies


class History:
    """Collects a run's story, fact by fact."""

    def __init__(self) -> None:
        self.votes: list[dict[str, Any]] = []
        self.not_voted: list[str] = []
        self.densities: list[dict[str, Any]] = []  # what other sparsities would cost
        self.masks: list[dict[str, Any]] = []  # every agreed one: why, and what each layer keeps
        self.personal: list[dict[str, Any]] = []  # clients' own models at the end
        self.rounds: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        # The totals so far and the length of ledger.csv whose sums they are: one moment, one value.
        self.account: tuple[list[dict[str, Any]], int] = ([], 0)
        self.num_void = 0
        self.last_work: Work | None = None  # of the newest committed step
        self._started: facts.StepStarted | None = None
        self._uploads: dict[ClientId, facts.UploadAccepted] = {}
        self._missing: tuple[ClientId, ...] = ()

    def add(self, fact: Fact) -> None:
        """Take in the next fact of the run."""
        match fact:
            case facts.StepStarted():
                self._started, self._uploads, self._missing = fact, {}, ()
            case facts.ClientsAdded():
                assert self._started is not None
                cohort = {**self._started.cohort, **fact.cohort}
                self._started = replace(self._started, cohort=cohort)
            case facts.UploadAccepted():
                self._uploads[fact.client] = fact
            case facts.StepClosed():
                self._missing = fact.missing
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
        started = self._started
        assert started is not None
        self.last_work = started.work
        self._account(fact.report)
        clients = [
            {"client": client, "num_samples": started.cohort[client], **upload.report}
            for client, upload in sorted(self._uploads.items())
        ]
        entry = {
            "rounds_done": started.round_number,
            "seconds": fact.report.get("seconds"),
            "ledger": self.ledger,
            "missing": list(self._missing),
            "clients": clients,
        }
        match started.work:
            case Work.SCORE:
                excluded = fact.report.get("outliers", [])  # whose scores did not count
                voters = [row for row in clients if row["client"] not in excluded]
                weights = [1 if started.equal_weights else row["num_samples"] for row in voters]
                self.votes = [
                    {**row, "share": weight / sum(weights)}
                    for row, weight in zip(voters, weights, strict=True)
                ]
                self.not_voted = sorted([*self._missing, *excluded])
                self.densities = list(fact.report.get("densities", []))
                self.masks.append(
                    {
                        "step": fact.step,
                        "epoch": fact.mask_epoch,
                        "rounds_done": started.round_number,
                        "reason": started.reason,
                        "criterion": started.criterion,
                        "num_batches": started.num_batches,
                        "num_kept": fact.num_kept,
                        "digest": fact.mask_digest,
                        "layers": fact.report.get("layers", {}),
                        "renewed": fact.report.get("renewed"),
                        "votes": {row["client"]: row["share"] for row in self.votes},
                    }
                )
            case Work.TRAIN:
                losses = [row["training_loss"] for row in clients]
                errors = [row.get("coding_error", 0.0) for row in clients]
                self.rounds.append(
                    {
                        "round": started.round_number,
                        "attempt": started.attempt,
                        "training_loss": sum(losses) / len(losses),
                        "coding_error": sum(errors) / len(errors),
                        **accuracies(row["evaluation"] for row in clients),
                        "personal": accuracies(row["personal"] for row in clients)["mean"],
                        **entry,
                    }
                )
            case Work.EVALUATE:
                validated = [row["validation"] for row in clients if row.get("validation")]
                self.evaluations.append(
                    {
                        **accuracies(row["evaluation"] for row in clients),
                        "validation": accuracies(validated) if validated else None,
                        **entry,
                    }
                )
            case Work.PERSONALIZE:
                self.personal = clients

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """Total bytes, as they were last journalled."""
        return self.account[0]

    @property
    def newest_mask(self) -> dict[str, Any]:
        """The newest agreed mask; empty before the first."""
        return self.masks[-1] if self.masks else {}

    @property
    def newest(self) -> dict[str, Any]:
        """The newest test of a global model: `pooled`, `loss`, `metrics`; empty before it."""
        tested = [
            entries[-1]
            for entries in (self.evaluations, self.rounds)
            if entries and entries[-1]["loss"] is not None
        ]  # of the same model, an evaluation by all comes before a test by the round's sample
        return max(tested, key=lambda entry: int(entry["rounds_done"]), default={})

    @property
    def seconds_per_round(self) -> float | None:
        """Mean duration of the rounds so far."""
        seconds = [entry["seconds"] for entry in self.rounds if entry["seconds"] is not None]
        return sum(seconds) / len(seconds) if seconds else None

    def _personal(self) -> dict[str, Any] | None:
        """Return the end of a run with personal models: means over clients, and every client."""
        if not self.personal:
            return None
        return {
            "global": accuracies(row["evaluation"] for row in self.personal),
            "personal": accuracies(row["personal"] for row in self.personal),
            "clients": personal_rows(self.personal),
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "votes": self.votes,
            "not_voted": self.not_voted,
            "densities": self.densities,
            "masks": self.masks,
            "rounds": self.rounds,
            "evaluations": self.evaluations,
            "personal": self._personal(),
            "ledger": self.ledger,
            "num_void": self.num_void,
        }


def personal_rows(clients: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each client's accuracy with the global model and with its own, and its data size."""
    return [
        {
            "client": row["client"],
            "num_samples": row["num_samples"],
            "global": accuracies([row["evaluation"]])["pooled"],
            "personal": accuracies([row["personal"]])["pooled"],
            "global_loss": accuracies([row["evaluation"]])["loss"],
            "personal_loss": accuracies([row["personal"]])["loss"],
            "test_samples": row["evaluation"]["total"],
        }
        for row in clients
    ]
