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
from typing import Generic, TypeVar

from ssfl.program.exits import ExitCode, Terminated
from ssfl.program.printable import printable_lines

SLOW_AFTER_S, REPEAT_S = 15.0, 60.0  # first and further reports of a slow step
INTERRUPTED = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
Value = TypeVar("Value")


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
class CheckResult(Generic[Value]):
    """The result of a step that passed; with a remedy it is a warning."""

    value: Value
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

    def run(
        self, name: str, body: Callable[[], CheckResult[Value]], needs: Sequence[str] = ()
    ) -> Value | None:
        """Return the value of a step; None if it failed, or if a step it needs did not pass."""
        if missing := [needed for needed in needs if not self.passed(needed)]:
            self.skip(name, self._skip_reason(missing[0]))
            return None
        self._begin(name)
        began_s = time.monotonic()
        with _captured_warnings() as warnings, _reporting_slowness(name):
            try:
                result = body()
            except StepFailed as failure:
                self._fail(name, failure, began_s)
                return None
            except (KeyboardInterrupt, Terminated) as error:
                self._fail(name, _interrupted(error, began_s), began_s)
                raise CheckInterrupted from error
            except BaseException as error:  # noqa: BLE001  the other steps still run
                self._fail(name, _unexpected(error), began_s)
                print(printable_lines(traceback.format_exc().rstrip()), file=sys.stderr)
                return None
        remedy, warning = result.remedy, "; ".join(warnings)
        if warning:
            remedy = (
                replace(remedy, action=f"{remedy.action}; {warning}")
                if remedy
                else Remedy(Owner.MACHINE, warning)
            )
        self._add(
            name, CheckVerdict.WARNING if remedy else CheckVerdict.OK, result.text, remedy, began_s
        )
        return result.value

    def skip(self, name: str, why: str) -> None:
        """Record that a step is not run."""
        self._add(name, CheckVerdict.SKIPPED, why)

    def passed(self, name: str) -> bool:
        """Return True if a step ran and did not fail."""
        good = (CheckVerdict.OK, CheckVerdict.WARNING)
        return any(step.name == name and step.verdict in good for step in self.all)

    def _fail(self, name: str, failure: StepFailed, began_s: float) -> None:
        self._add(
            name, CheckVerdict.FAILED, str(failure), failure.remedy, began_s, failure.exit_code
        )

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

    def _add(
        self,
        name: str,
        verdict: CheckVerdict,
        text: str,
        remedy: Remedy | None = None,
        began_s: float | None = None,
        exit_code: ExitCode = ExitCode.DONE,
    ) -> None:
        seconds = 0.0 if began_s is None else time.monotonic() - began_s
        self.all.append(CheckStep(self.part, name, verdict, text, remedy, seconds, exit_code))


def _unexpected(error: BaseException) -> StepFailed:
    if not isinstance(error, Exception):  # SystemExit in a task: it would end a client silently
        return StepFailed(
            f"{type(error).__name__}: {error}",
            Remedy(
                Owner.AUTHOR, "see the traceback: a task must not end the program it is part of"
            ),
            ExitCode.BAD_DATA,
        )
    return StepFailed(
        f"unexpected: {type(error).__name__}: {error}",
        Remedy(Owner.YOU, "report this as a bug, with its traceback"),
        ExitCode.BUG,
    )


def _interrupted(error: BaseException, began_s: float) -> StepFailed:
    seconds = time.monotonic() - began_s
    code = ExitCode.TERMINATED if isinstance(error, Terminated) else ExitCode.INTERRUPTED
    remedy = Remedy(Owner.YOU, "give this step more time, or find out what it is doing")
    return StepFailed(f"interrupted after {seconds:.0f} s", remedy, code)


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
