"""Worker processes that run one job after another; if one dies, the others continue.

A worker is a process with one torch thread. It gets jobs over a pipe and stores each
result atomically. Every minute it stores a checkpoint next to it, from which a later call
continues. The output of a run goes into a log next to its result; an empty log is removed. A worker
ends when its pipe is closed.
"""

import contextlib
import json
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ssfl.durable.files import write_atomic
from ssfl.simulator.processes import Inherited, keep_freed_memory, worker_context
from ssfl.study.errors import EXPECTED
from ssfl.study.run_spec import RunSpec

FORMAT = 1
CHECKPOINT_EVERY_S = 60.0
_TERMINATE_TIMEOUT_S = 5.0  # for a process to end after SIGTERM


@dataclass(frozen=True, slots=True)
class Job:
    """A run, and the file for its result."""

    spec: RunSpec
    path: Path
    cores: int = 1  # cores that the run may use
    checkpoint_every_s: float = CHECKPOINT_EVERY_S
    ingredients: Mapping[str, Any] = field(default_factory=dict)  # of the digest in its name

    @property
    def checkpoint(self) -> Path:
        return self.path.with_suffix(".checkpoint")

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")


@dataclass(frozen=True, slots=True)
class Resumed:
    """A job has a checkpoint: it continues after these rounds, or `problem` is why it does not."""

    job: Job
    rounds_done: int
    problem: str


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A job has finished a round."""

    job: Job
    rounds_done: int


@dataclass(frozen=True, slots=True)
class JobDone:
    """A job has ended: its result is stored, or `error` has the reason."""

    job: Job
    error: str = ""
    is_bug: bool = False  # the error is not an expected one


Event = Resumed | RoundDone | JobDone


class Workers:
    """Runs jobs in `count` processes; a context manager that ends all of them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._context = worker_context()
        self._processes: dict[Connection, BaseProcess] = {}
        self._idle: list[Connection] = []
        self._busy: dict[Connection, Job] = {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for connection, process in self._processes.items():
            process.join(_TERMINATE_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
            connection.close()

    def run(self, jobs: Iterable[Job]) -> Iterator[Event]:
        """Run all jobs, started in their order, and yield their events."""
        waiting = deque(jobs)
        while waiting or self._busy:
            while waiting and len(self._busy) < self._count:
                self._assign(waiting.popleft())
            for connection in wait(list(self._busy)):
                assert isinstance(connection, Connection)
                yield self._receive(connection)

    def _assign(self, job: Job) -> None:
        connection = self._idle.pop() if self._idle else self._start()
        self._busy[connection] = job
        # If the worker has died, _receive notices.
        with contextlib.suppress(BrokenPipeError):
            connection.send(job)

    def _start(self) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, Inherited()), daemon=False)
        process.start()
        theirs.close()  # so that the pipe closes when the process ends
        self._processes[ours] = process
        return ours

    def _receive(self, connection: Connection) -> Event:
        try:
            event = connection.recv()
        except (EOFError, OSError):
            job, process = self._busy.pop(connection), self._processes.pop(connection)
            process.join()
            connection.close()
            return JobDone(job, _end_reason(process.exitcode, job.log), is_bug=True)
        if isinstance(event, JobDone):
            del self._busy[connection]
            self._idle.append(connection)
        assert isinstance(event, Event)
        return event


def _end_reason(code: int | None, log: Path) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        memory = "; if memory ran out, use fewer workers"
        reason = f"its process was ended by {name}" + (memory if name == "SIGKILL" else "")
    else:
        reason = f"its process ended with exit code {code}: does its task end the process?"
    return f"{reason} (its output: {log})" if _has_output(log) else reason


def _has_output(log: Path) -> bool:
    """Remove the log if it is empty; return True if it has output."""
    if log.is_file() and not log.stat().st_size:
        log.unlink()
    return log.is_file()


def _work(connection: Connection, inherited: Inherited) -> None:
    """Run jobs until the pipe is closed: the main function of a worker."""
    inherited.apply()
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            job = connection.recv()
            assert isinstance(job, Job)
            connection.send(_done(job, connection))


def _done(job: Job, connection: Connection) -> JobDone:
    _redirect_output_to(job.log)
    reason, is_bug = "", False
    try:
        _store(job, connection)
    except (BrokenPipeError, ConnectionResetError):
        raise  # the parent has ended
    except EXPECTED as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001  no error of a run may affect the others
        traceback.print_exc()
        reason, is_bug = f"{type(error).__name__}: {error} (more in {job.log})", True
    sys.stdout.flush()
    sys.stderr.flush()
    _has_output(job.log)
    return JobDone(job, reason, is_bug)


def _store(job: Job, connection: Connection) -> None:
    from ssfl.learning.device import prepare_torch
    from ssfl.study.checkpoints import Checkpoints
    from ssfl.study.one_run import run_one, shards_of

    prepare_torch(1)  # loads torch before the clock of the run starts
    shards = shards_of(job.spec)

    def on_resume(rounds_done: int, problem: str) -> None:
        connection.send(Resumed(job, rounds_done, problem))

    def on_round(rounds_done: int) -> None:
        connection.send(RoundDone(job, rounds_done))

    run, every_s = job.path.stem, job.checkpoint_every_s
    checkpoints = Checkpoints(job.checkpoint, run, every_s, on_resume)
    history = run_one(job.spec, on_round, shards, job.cores, checkpoints)
    elapsed = checkpoints.elapsed()
    stored = {
        "format": FORMAT,
        "spec": job.spec.document(),
        "ingredients": job.ingredients,
        "seconds": elapsed.seconds,
        "cpu_seconds": elapsed.cpu_seconds,
        "software": version("ssfl"),
        "torch": version("torch"),
        "history": history,
    }
    write_atomic(job.path, json.dumps(stored).encode())
    checkpoints.remove()


def _redirect_output_to(log: Path) -> None:
    """Redirect stdout and stderr of this process to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
