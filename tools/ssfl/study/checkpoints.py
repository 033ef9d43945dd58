"""Checkpoints of a study's runs: a run that is killed resumes at a recent round.

The checkpoint of a run is a file next to its result, replaced from time to time. One that is
damaged or of another run is ignored, and the run begins again.
"""

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ssfl.simulator.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from ssfl.simulator.federation import SimulatedFederation


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Wall and CPU seconds."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @classmethod
    def now(cls) -> "Elapsed":
        """Return a reading of the clocks; CPU time includes child processes that have ended."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = time.process_time() + children.ru_utime + children.ru_stime
        return cls(time.perf_counter(), cpu)


class Checkpoints:
    """The checkpoint of one run, and the time that the run has taken in all its processes."""

    def __init__(
        self,
        path: Path,
        run: str,
        every_s: float,
        on_resume: Callable[[int, str], object] | None = None,
    ) -> None:
        """`run` identifies the run and its code.

        `on_resume(rounds_done, problem)` is called if there is a checkpoint: with the rounds that
        it has, or with 0 and the reason why it is ignored.
        """
        self._path = path
        self._run = run
        self._every_s = every_s
        self._on_resume = on_resume or (lambda _rounds_done, _problem: None)
        self._began = Elapsed.now()
        self._written_s = self._began.seconds
        self._before = Elapsed()  # in earlier processes

    def elapsed(self) -> Elapsed:
        """Return the time of the run, as far as it counts: repeated rounds count once."""
        now, began, before = Elapsed.now(), self._began, self._before
        return Elapsed(
            before.seconds + now.seconds - began.seconds,
            before.cpu_seconds + now.cpu_seconds - began.cpu_seconds,
        )

    def resume(self, federation: SimulatedFederation) -> None:
        """Continue from the checkpoint, if there is one."""
        if not self._path.is_file():
            return
        try:
            kept, elapsed = read_checkpoint(
                self._path, self._run, federation.state.settings, federation.model
            )
            self._before = Elapsed(**elapsed)
            federation.resume(kept)
        except (CheckpointError, TypeError) as error:
            self._on_resume(0, f"{self._path} is ignored: {error}")
        else:
            self._on_resume(federation.state.rounds_done, "")

    def step_done(self, federation: SimulatedFederation) -> None:
        """Replace the checkpoint if it is due."""
        if time.perf_counter() - self._written_s < self._every_s or not federation.can_resume:
            return
        elapsed = self.elapsed()
        more = {"seconds": elapsed.seconds, "cpu_seconds": elapsed.cpu_seconds}
        try:
            write_checkpoint(self._path, self._run, federation.checkpoint(), more)
        except OSError as error:  # the run continues without it
            print(f"{self._path} is not written: {error}", file=sys.stderr, flush=True)
        self._written_s = time.perf_counter()

    def remove(self) -> None:
        """Remove the checkpoint, once the result is stored."""
        self._path.unlink(missing_ok=True)
