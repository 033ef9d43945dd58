"""The runs of value_bytes.py: each trains for real and returns the bytes of every round."""

import argparse
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.fashion import Vector, federation
from benchmarks.parallel import Report
from benchmarks.value_channel import CodedChannel, Round, Variant
from benchmarks.value_compare import compare

COMPARED_EVERY = 10  # rounds
COMPARED_CLIENTS = 3
LAST = 10  # the final accuracy is the mean of the last rounds


@dataclass(frozen=True)
class TrainingRun:
    """A training run."""

    data: Path
    seed: int
    variant: Variant
    num_clients: int
    per_round: int  # 0: all
    rounds: int
    compared: bool = False  # whether some updates are coded in many ways
    kept_in: Path | None = None  # folder of finished runs, so that a long benchmark can resume

    @property
    def kept(self) -> Path | None:
        """The file of the outcome."""
        name = f"{self.variant.name}, {self.per_round or 'all'} of {self.num_clients}"
        file = f"{name}, seed {self.seed}, {self.rounds} rounds.json"
        return self.kept_in / file if self.kept_in else None

    @property
    def cost(self) -> int:
        """Training samples in thousands; time is proportional to it."""
        return self.rounds * self.cost_per_round

    @property
    def cost_per_round(self) -> int:
        return 60 * (self.per_round or self.num_clients) // self.num_clients


@dataclass
class TrainingOutcome:
    """The bytes and the accuracy of a run."""

    paper_bytes: float  # 4sP
    plain_bytes: int  # 4 bytes for each sent value
    rounds: list[Round]
    accuracy: list[float]  # of the base after each of the last rounds
    compared: dict[str, float] = field(default_factory=dict)  # means, as shares of 4sP

    @property
    def final_accuracy(self) -> float:
        return float(np.mean(self.accuracy))

    def up(self) -> list[float]:
        """Return each round's mean upload, as a share of 4sP."""
        return [float(np.mean(entry.up)) / self.paper_bytes for entry in self.rounds]

    def down(self, form: str = "") -> list[float]:
        """Return each round's mean download, of one form or of all; NaN where there is none."""
        means = []
        for entry in self.rounds:
            sizes = [s for name, some in entry.down.items() if form in ("", name) for s in some]
            means.append(float(np.mean(sizes)) / self.paper_bytes if sizes else float("nan"))
        return means

    def forms(self, first: int) -> dict[str, float]:
        """Return the share of each form among downloads, from round `first` on."""
        counts: dict[str, int] = {}
        for entry in self.rounds[first:]:
            for form, sizes in entry.down.items():
                counts[form] = counts.get(form, 0) + len(sizes)
        return {form: count / sum(counts.values()) for form, count in counts.items()}

    def relative_errors(self, first: int) -> dict[str, float]:
        rounds = self.rounds[first:]
        return {
            "up": float(np.mean([error for entry in rounds for error in entry.up_error])),
            "down": float(np.mean([entry.base_error for entry in rounds])),
        }


def add_runs_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=Path, help="folder that keeps finished runs; the same command resumes"
    )


def run(work: TrainingRun, report: Report) -> TrainingOutcome:
    """Return the outcome of a run, stored or new; runs in a process of its own."""
    if work.kept and work.kept.exists():
        report(work.cost)
        return _read(work.kept)
    outcome = _train(work, report)
    if work.kept:
        work.kept.parent.mkdir(parents=True, exist_ok=True)
        unfinished = work.kept.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(outcome)))
        unfinished.replace(work.kept)
    return outcome


def _read(path: Path) -> TrainingOutcome:
    fields = json.loads(path.read_text())
    fields["rounds"] = [Round(**row) for row in fields["rounds"]]
    return TrainingOutcome(**fields)


def _train(work: TrainingRun, report: Report) -> TrainingOutcome:
    clients = federation(work.data, work.seed, work.num_clients, work.per_round)
    mask = clients.mask
    first = mask.gather(clients.initial)
    samples: list[dict[str, float]] = []
    chosen = list(clients.sites)[:COMPARED_CLIENTS]

    def watch(round_number: int, client: str, values: Vector, base: Vector) -> None:
        if client in chosen and round_number and round_number % COMPARED_EVERY == 0:
            samples.append(compare(values, base))

    accuracy: list[float] = []

    def on_round(round_number: int, base: Vector) -> None:
        if round_number >= work.rounds - LAST:
            accuracy.append(clients.accuracy(mask, base))
        report(work.cost_per_round)

    channel = CodedChannel(work.variant, clients.settings, first, watch if work.compared else None)
    clients.train(mask, work.rounds, channel, on_round)
    paper_bytes = clients.paper_bytes
    means: dict[str, Any] = {
        code: float(np.mean([sample[code] for sample in samples])) / paper_bytes
        for code in (samples[0] if samples else ())
    }
    return TrainingOutcome(paper_bytes, first.nbytes, channel.rounds, accuracy, means)
