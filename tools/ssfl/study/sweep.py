"""Many runs in one call: side by side, stored one by one, and gone on with after a stop.

    from ssfl.study.data import DataSpec
    from ssfl.study.sweep import RunSpec, run_all

    specs = [
        RunSpec(f"sparsity={sparsity}", DataSpec(clients=8), {"sparsity": sparsity}, seed)
        for sparsity in ("0.5", "0.9")
        for seed in range(5)
    ]
    results = run_all(specs, Path("runs/sparsity"))

Each run that ends well is a file in FOLDER/runs, named after its configuration, its seed and a
digest of its spec. Called again, only runs without a file are run: those that are new, that
failed, or whose spec changed.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ssfl.durable.files import remove_leftovers
from ssfl.durable.lock import DirectoryLock
from ssfl.learning.cores import usable_cores
from ssfl.study.errors import StudyError
from ssfl.study.outcome import outcome_of
from ssfl.study.run_spec import RunSpec
from ssfl.study.workers import FORMAT, Job, JobDone, RoundDone, Workers

__all__ = ["NoProgress", "RunResult", "RunSpec", "SweepProgress", "run_all"]

RUNS = "runs"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of one run.

    Attributes:
        spec: what was asked for
        path: the stored run
        outcome: accuracies, bytes, seconds and so on by name (`ssfl.study.outcome`); empty if
            there is an error
        error: why there is no result; empty if there is one
        is_bug: nobody expected this error
        reused: it was stored before
    """

    spec: RunSpec
    path: Path
    outcome: dict[str, Any]
    error: str = ""
    is_bug: bool = False
    reused: bool = False

    @property
    def document(self) -> dict[str, Any]:
        """The run's history, read from the disk."""
        if self.error:
            raise StudyError(f"{self.spec.label} has no history: {self.error}")
        history: dict[str, Any] = _stored(self.path)["history"]
        return history


class SweepProgress(Protocol):
    """Who watches a study."""

    def begin(self, todo: Sequence[RunSpec], reused: int) -> None:
        """So many are stored already, these are to be run."""

    def round_done(self, spec: RunSpec, rounds_done: int) -> None:
        """A run has come so far."""

    def run_done(self, result: RunResult) -> None:
        """A run is over."""


class NoProgress:
    """Nobody watches."""

    def begin(self, todo: Sequence[RunSpec], reused: int) -> None: ...
    def round_done(self, spec: RunSpec, rounds_done: int) -> None: ...
    def run_done(self, result: RunResult) -> None: ...


def run_all(
    specs: Sequence[RunSpec], folder: Path, workers: int = 0, progress: SweepProgress | None = None
) -> list[RunResult]:
    """Run what is not stored in `folder` yet; return the results of all, in the order of `specs`.

    `workers` processes run at once, 0: one for every core. A run that fails leaves the others
    alone: its result says why. Raises StudyError, SettingsError, DataError for a spec that no run
    can follow, before any is begun; ProgramError if another process works in `folder`.
    """
    watcher = progress or NoProgress()
    for spec in specs:
        spec.check()
    _check_names(specs)
    place = folder / RUNS
    jobs = [Job(spec, place / spec.file_name()) for spec in specs]
    with DirectoryLock(place):
        remove_leftovers(place)
        results = {job.path: _read(job, reused=True) for job in jobs if job.path.is_file()}
        # Seed by seed, so that configurations can be compared from early on.
        todo = sorted((job for job in jobs if job.path not in results), key=lambda j: j.spec.seed)
        watcher.begin([job.spec for job in todo], len(results))
        count = min(workers or usable_cores(), max(1, len(todo)))
        # A single run may use them all, unless it was said how many processes there may be.
        cores = 1 if workers else max(1, usable_cores() // count)
        with _tidied(place), Workers(count) as pool:
            for event in pool.run(replace(job, cores=cores) for job in todo):
                match event:
                    case RoundDone():
                        watcher.round_done(event.job.spec, event.rounds_done)
                    case JobDone():
                        result = _result(event)
                        results[result.path] = result
                        watcher.run_done(result)
    return [results[job.path] for job in jobs]


@contextmanager
def _tidied(place: Path) -> Iterator[None]:
    """Remove empty logs in the end: of runs that were stopped."""
    try:
        yield
    finally:
        for log in place.glob("*.log"):
            if not log.stat().st_size:
                log.unlink()


def _check_names(specs: Sequence[RunSpec]) -> None:
    counts = Counter((spec.name, spec.seed) for spec in specs)
    for (name, seed), count in counts.items():
        if count > 1:
            raise StudyError(
                f"{count} runs are called {name!r} and have seed {seed}: give each configuration "
                "a name of its own, and each seed once"
            )


def _result(done: JobDone) -> RunResult:
    if done.error:
        return RunResult(done.job.spec, done.job.path, {}, done.error, done.is_bug)
    return _read(done.job, reused=False)


def _read(job: Job, *, reused: bool) -> RunResult:
    stored = _stored(job.path)
    try:
        outcome = {
            **outcome_of(stored["history"]),
            **{name: stored[name] for name in ("seconds", "cpu_seconds", "software", "torch")},
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise _damaged(job.path, error) from error
    return RunResult(job.spec, job.path, outcome, reused=reused)


def _stored(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_bytes())
        if stored["format"] != FORMAT:
            raise StudyError(
                f"{path} is in format {stored['format']}, this program writes {FORMAT}: move it "
                "away to run it again"
            )
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(path, error) from error
    assert isinstance(stored, dict)
    return stored


def _damaged(path: Path, error: Exception) -> StudyError:
    return StudyError(
        f"{path} is no stored run ({type(error).__name__}: {error}): remove it to run it again"
    )
