"""Sweeps: many runs in one call, in parallel; a second call resumes an interrupted sweep.

Each successful run is a file in FOLDER/runs, named after its configuration, its seed and a digest
of all that its result depends on: spec, task, shards, ssfl's code and torch. A call runs only the
specs without such a file; one that was interrupted continues from its checkpoint. docs/simulate.md
has an example.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssfl.durable.files import remove_leftovers
from ssfl.durable.lock import DirectoryLock
from ssfl.learning.cores import usable_cores
from ssfl.method.errors import SettingsError
from ssfl.study.errors import StudyError
from ssfl.study.outcome import outcome_of
from ssfl.study.run_spec import RunSpec, spec_of
from ssfl.study.workers import (
    CHECKPOINT_EVERY_S,
    FORMAT,
    Job,
    JobDone,
    Resumed,
    RoundDone,
    Workers,
)

__all__ = ["RunResult", "RunSpec", "SweepProgress", "read_result", "run_all"]

RUNS = "runs"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one run."""

    spec: RunSpec
    path: Path  # of the stored run
    outcome: dict[str, Any]  # `outcome_of(history)`, durations, versions; empty after an error
    error: str = ""  # why the run failed; empty if it succeeded
    is_bug: bool = False  # the error is unexpected
    reused: bool = False  # the run was stored by an earlier call

    @property
    def document(self) -> dict[str, Any]:
        """The history of the run, read from its file."""
        if self.error:
            raise StudyError(f"{self.spec.label} has no history: {self.error}")
        history: dict[str, Any] = _read_file(self.path)["history"]
        return history


class SweepProgress:
    """Callbacks for the progress of a sweep; the methods of this base class do nothing."""

    def begin(self, todo: Sequence[RunSpec], reused: int) -> None:
        """The sweep begins: it will run `todo`; `reused` is the number of runs stored already."""

    def resumed(self, spec: RunSpec, rounds_done: int, problem: str) -> None:
        """A run continues after these rounds; `problem`: why its checkpoint is ignored instead."""

    def round_done(self, spec: RunSpec, rounds_done: int) -> None:
        """A run has finished a round."""

    def run_done(self, result: RunResult) -> None:
        """A run has ended."""


def run_all(
    specs: Sequence[RunSpec],
    folder: Path,
    workers: int = 0,
    progress: SweepProgress | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
) -> list[RunResult]:
    """Run the specs that are not stored in `folder`; return all results in the order of `specs`.

    At most `workers` processes run at once; 0 means one per core. A run that fails does not affect
    the others, and its result has the error. Raises StudyError, SettingsError or DataError before
    the first run if a spec is invalid, and DirectoryUnusable if another process uses `folder`.
    """
    watcher = progress or SweepProgress()
    for spec in specs:
        try:
            spec.check()
        except SettingsError as wrong:
            several = len({one.name for one in specs}) > 1
            raise SettingsError(f"{spec.name}: {wrong}" if several else str(wrong)) from wrong
    _check_names(specs)
    runs = folder / RUNS
    jobs = [
        Job(
            spec, runs / spec.file_name(), checkpoint_every_s=checkpoint_every_s,
            ingredients=spec.ingredients(),
        )
        for spec in specs
    ]  # fmt: skip
    with DirectoryLock(runs):
        remove_leftovers(runs)
        results = {job.path: _result(job, reused=True) for job in jobs if job.path.is_file()}
        for job in jobs:
            if job.path in results:
                job.checkpoint.unlink(missing_ok=True)  # the result was stored just before a crash
        # All configurations of a seed run before the next seed, so that they can be compared early.
        todo = sorted((job for job in jobs if job.path not in results), key=lambda j: j.spec.seed)
        watcher.begin([job.spec for job in todo], len(results))
        count = min(workers or usable_cores(), max(1, len(todo)))
        # Cores are divided evenly among the runs, rounded down. If the caller sets
        # `workers`, a run gets one.
        cores = 1 if workers else max(1, usable_cores() // count)
        with _empty_logs_removed(runs), Workers(count) as pool:
            for event in pool.run(replace(job, cores=cores) for job in todo):
                match event:
                    case Resumed():
                        watcher.resumed(event.job.spec, event.rounds_done, event.problem)
                    case RoundDone():
                        watcher.round_done(event.job.spec, event.rounds_done)
                    case JobDone(job, "", _):
                        results[job.path] = _result(job, reused=False)
                        watcher.run_done(results[job.path])
                    case JobDone(job, error, is_bug):
                        results[job.path] = RunResult(job.spec, job.path, {}, error, is_bug)
                        watcher.run_done(results[job.path])
    return [results[job.path] for job in jobs]


def read_result(path: Path) -> RunResult:
    """Return the result of a stored run; raise StudyError if the file is not one."""
    try:
        return _result(Job(spec_of(_read_file(path)["spec"]), path), reused=True)
    except (LookupError, TypeError, OSError) as error:
        raise _damaged(path, error) from error


@contextmanager
def _empty_logs_removed(runs: Path) -> Iterator[None]:
    """When the block ends, remove the empty logs of interrupted runs."""
    try:
        yield
    finally:
        for log in runs.glob("*.log"):
            if not log.stat().st_size:
                log.unlink()


def _check_names(specs: Sequence[RunSpec]) -> None:
    counts = Counter((spec.name, spec.seed) for spec in specs)
    for (name, seed), count in counts.items():
        if count > 1:
            raise StudyError(
                f"{count} runs are called {name!r} and have seed {seed}: give each configuration "
                "its own name, and list each seed once"
            )


def _result(job: Job, *, reused: bool) -> RunResult:
    stored = _read_file(job.path)
    try:
        outcome = {
            **outcome_of(stored["history"]),
            **{name: stored[name] for name in ("seconds", "cpu_seconds", "software", "torch")},
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise _damaged(job.path, error) from error
    return RunResult(job.spec, job.path, outcome, reused=reused)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_bytes())
        if stored["format"] != FORMAT:
            raise StudyError(
                f"{path} is in format {stored['format']}; this program reads {FORMAT}: "
                "remove this file, and the next call repeats the run"
            )
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(path, error) from error
    assert isinstance(stored, dict)
    return stored


def _damaged(path: Path, error: Exception) -> StudyError:
    return StudyError(
        f"{path} is not a stored run ({type(error).__name__}: {error}): remove this "
        "file, and the next call repeats the run"
    )
