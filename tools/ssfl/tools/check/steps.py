"""The steps of a check. Each tests one thing, and each failure names its remedy and its owner.

A failed step never ends the check, even if the error was not foreseen. Steps that depend on it are
skipped; all others run. Warnings that ssfl logs during a step become part of its result. A slow
step is named on stderr. Ctrl-C ends the check and is reported as the failure of the current step.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from ssfl.program.exits import ExitCode, Terminated
from ssfl.program.printable import printable_lines

SLOW_AFTER_S, REPEAT_S = 15.0, 60.0  # first and further reports of a slow step
INTERRUPTED = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)


class CheckVerdict(StrEnum):
    """How a step ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"
    SKIPPED = "skipped"


class Owner(StrEnum):
    """The people who can fix a problem; docs/check.md uses the same words."""

    NETWORK = "network administrators"
    DATA = "data managers"
    MACHINE = "the administrator of the machine"
    OPERATOR = "the coordinator's operator"
    AUTHOR = "the author of the task"
    YOU = "you"


@dataclass(frozen=True, slots=True)
class Remedy:
    """An action and its owner; any of the `alternatives` would do, too."""

    owner: Owner
    action: str
    alternatives: tuple["Remedy", ...] = ()

    def options(self) -> tuple["Remedy", ...]:
        """Return this remedy, then its alternatives."""
        return (self, *self.alternatives)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a step that passed; with a remedy it is a warning."""

    text: str
    remedy: Remedy | None = None


class StepFailed(Exception):
    """A step failed, with the remedy."""

    def __init__(self, text: str, remedy: Remedy, exit_code: ExitCode) -> None:
        super().__init__(text)
        self.remedy, self.exit_code = remedy, exit_code


class CheckInterrupted(BaseException):
    """Ctrl-C or SIGTERM ended the check. A BaseException: no step may swallow it."""


@dataclass(frozen=True, slots=True)
class CheckStep:
    """One line of a check."""

    part: str  # "network", "coordinator" or "site"
    name: str
    verdict: CheckVerdict
    text: str
    remedy: Remedy | None = None
    seconds: float = 0.0
    exit_code: ExitCode = ExitCode.DONE


class Steps:
    """Runs steps in order, and calls `begin` with the name of each."""

    def __init__(self, begin: Callable[[str], None] = lambda _name: None) -> None:
        self._begin = begin
        self.all: list[CheckStep] = []
        self.part = ""  # of the next steps

    def run(self, name: str, body: Callable[[], CheckResult], needs: Sequence[str] = ()) -> bool:
        """Run a step; return False if it failed, or if a step it needs did not pass."""
        if missing := [needed for needed in needs if not self.passed(needed)]:
            self.skip(name, self._skip_reason(missing[0]))
            return False
        self._begin(name)
        began_s, step = time.monotonic(), partial(CheckStep, self.part, name)
        with _captured_warnings() as warnings, _reporting_slowness(name):
            try:
                result = body()
            except BaseException as error:  # the other steps still run
                failed = _failure(error, began_s)
                code, took_s = failed.exit_code, time.monotonic() - began_s
                self.all.append(step(CheckVerdict.FAILED, str(failed), failed.remedy, took_s, code))
                if code in INTERRUPTED:
                    raise CheckInterrupted from error
                return False
        remedy, warning = result.remedy, "; ".join(warnings)
        if warning and remedy:
            remedy = replace(remedy, action=f"{remedy.action}; {warning}")
        elif warning:
            remedy = Remedy(Owner.MACHINE, warning)
        verdict = CheckVerdict.WARNING if remedy else CheckVerdict.OK
        self.all.append(step(verdict, result.text, remedy, time.monotonic() - began_s))
        return True

    def skip(self, name: str, why: str) -> None:
        """Record that a step is not run."""
        self.all.append(CheckStep(self.part, name, CheckVerdict.SKIPPED, why))

    def passed(self, name: str) -> bool:
        """Return True if a step ran and did not fail."""
        good = (CheckVerdict.OK, CheckVerdict.WARNING)
        return any(step.name == name and step.verdict in good for step in self.all)

    def _skip_reason(self, name: str) -> str:
        """Return why a step that needs `name` is skipped; the reason names the first failure."""
        (step,) = (step for step in self.all if step.name == name)
        return f"because {name} failed" if step.verdict is CheckVerdict.FAILED else step.text

    def with_verdict(self, verdict: CheckVerdict) -> list[CheckStep]:
        return [step for step in self.all if step.verdict is verdict]

    @property
    def exit_code(self) -> ExitCode:
        """The code of the first failure, or that of the interruption."""
        codes = [step.exit_code for step in self.with_verdict(CheckVerdict.FAILED)]
        return codes[-1] if self.is_interrupted else codes[0] if codes else ExitCode.DONE

    @property
    def is_interrupted(self) -> bool:
        """True if the check was interrupted in its last step."""
        return bool(self.all) and self.all[-1].exit_code in INTERRUPTED


def _failure(error: BaseException, began_s: float) -> StepFailed:
    """Return the failure that an exception stands for; print an unexpected one."""
    if isinstance(error, StepFailed):
        return error
    if isinstance(error, KeyboardInterrupt | Terminated):
        code = ExitCode.TERMINATED if isinstance(error, Terminated) else ExitCode.INTERRUPTED
        remedy = Remedy(Owner.YOU, "give this step more time, or find out what it is doing")
        return StepFailed(f"interrupted after {time.monotonic() - began_s:.0f} s", remedy, code)
    print(printable_lines(traceback.format_exc().rstrip()), file=sys.stderr)
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, Exception):  # SystemExit in a task: it would end a client silently
        action = "see the traceback: a task must not end the program it is part of"
        return StepFailed(text, Remedy(Owner.AUTHOR, action), ExitCode.BAD_DATA)
    remedy = Remedy(Owner.YOU, "report this as a bug, with its traceback")
    return StepFailed(f"unexpected: {text}", remedy, ExitCode.BUG)


@contextmanager
def _reporting_slowness(name: str) -> Iterator[None]:
    """Report a slow step on stderr while it runs."""
    over, began_s = threading.Event(), time.monotonic()

    def watch() -> None:
        wait_s = SLOW_AFTER_S
        while not over.wait(wait_s):
            took_s, wait_s = time.monotonic() - began_s, REPEAT_S
            text = f"still running: {name}, {took_s:.0f} s; Ctrl-C ends the check"
            print(text, file=sys.stderr, flush=True)

    watcher = threading.Thread(target=watch, name="watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextmanager
def _captured_warnings() -> Iterator[list[str]]:
    """Collect the warnings that ssfl logs, instead of printing them."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, collector = logging.getLogger("ssfl"), Collector(logging.WARNING)
    propagate = logger.propagate
    logger.addHandler(collector)
    logger.propagate = False
    try:
        yield messages
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagate
