"""State directories of long runs, made with the pure core, without network or training.

Reports have the size of a real client's, and every commit has byte counts, so a journal takes the
disk space and the replay time of a real one with as many rounds.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ssfl.method.settings import RunSettings
from ssfl.server.accounting.ledger import Direction, Ledger
from ssfl.server.run import events, facts
from ssfl.server.run.apply import apply
from ssfl.server.run.events import Event, Persist
from ssfl.server.run.machine import advance
from ssfl.server.run.state import RunState, Step
from ssfl.server.storage.journal import Journal
from ssfl.strategies.contract import ClientId, Work

RECORDS_AT_ONCE = 1000  # one sync per record would take minutes
TEST = {"correct": 312, "total": 400, "loss_sum": 231.48210525512695, "metric_sums": {}}


class LongRun:
    """A run in which every client answers at once, written to a journal."""

    def __init__(self, settings: RunSettings, manifest_digest: str, initial_digest: str) -> None:
        self.state = RunState(settings)
        self.records: list[bytes] = []
        self._ledger = Ledger()
        self._now_s = 0.0
        self._digests = manifest_digest, initial_digest

    def go(self, journal: Journal, rounds: int, run_id: str = "long") -> None:
        """Run until `rounds` rounds are committed; the next step stays open."""
        opened = facts.RunOpened(run_id, asdict(self.state.settings), "0")
        self.state = apply(self.state, opened)
        self.records = [facts.to_json(opened)]
        for event in self._events(rounds):
            self._post(event)
            if len(self.records) >= RECORDS_AT_ONCE:
                self._write(journal)
        self._write(journal)

    def _events(self, rounds: int) -> Iterator[Event]:
        manifest, initial = self._digests
        for number in range(self.state.settings.clients):
            client = ClientId(f"client_{number:04d}")
            yield events.Joined(client, "00" * 16, 500 + number, manifest, "torch 2.13 avx2 1")
        yield events.Initialized(ClientId("client_0000"), manifest, initial, 0, "", 0, "")
        while self.state.rounds_done < rounds and not self.state.finished:
            step = self.state.step
            assert step is not None
            for client in sorted(step.cohort):
                yield self._upload(step, client)
            if not step.work.is_test:
                yield self._reduced(step)

    def _upload(self, step: Step, client: ClientId) -> events.UploadReceived:
        name = hashlib.sha256(f"{step.number} {client}".encode()).hexdigest()
        for direction in Direction:
            self._ledger.count("values", direction, 4_500_000, 4_499_000, encoding="reference")
            self._ledger.count("control", direction, 100)
        report: dict[str, Any] = {
            "work_s": 1.2345678901234567,
            "training_loss": 0.5678901234567890,
            "coding_error": 0.0,
            "evaluation": TEST,
            "personal": TEST,
            "encoding": "reference",
            "upload_bytes": 4_499_000,
            "upload_s": 0.40123456789012345,
            "asked_s": 0.012345678901234567,
            "received_s": 1.7345678901234567,
        }
        if step.work is not Work.TRAIN:
            report.pop("personal")
        return events.UploadReceived(
            step.number, client, "" if step.work.is_test else name, 1.5, report
        )

    def _reduced(self, step: Step) -> events.StepReduced:
        base = hashlib.sha256(f"{step.number}".encode()).hexdigest()
        state = self.state
        scores = step.work is Work.SCORE
        epoch = state.mask_epoch + 1 if scores else state.mask_epoch
        return events.StepReduced(
            step.number, epoch, hashlib.sha256(bytes([epoch])).hexdigest(), 1000, base,
            {"seconds": 1.9}, "",
        )  # fmt: skip

    def _post(self, event: Event) -> None:
        self._now_s += 0.01
        self.state, actions, _ = advance(self.state, event, self._now_s)
        for action in actions:
            if isinstance(action, Persist):
                self.records.append(facts.to_json(self._with_bytes(action.fact)))

    def _with_bytes(self, fact: facts.Fact) -> facts.Fact:
        if not isinstance(fact, facts.StepCommitted | facts.RunFinished):
            return fact
        account = {"ledger": self._ledger.rows(), "ledger_bytes": 0}
        return replace(fact, report={**fact.report, **account})

    def _write(self, journal: Journal) -> None:
        journal.append(self.records)
        self.records = []


def long_journal(
    folder: Path, settings: RunSettings, rounds: int, manifest_digest: str, initial_digest: str
) -> RunState:
    """Write the journal of a run of `rounds` committed rounds; return its state."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder / "journal")
    run = LongRun(settings, manifest_digest, initial_digest)
    run.go(journal, rounds)
    journal.close()
    return run.state
