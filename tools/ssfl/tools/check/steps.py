"""The steps of a check: each finds one thing out, and what is wrong has somebody who can mend it.

A step that fails never ends the check, not even by what nobody has thought of. Those that cannot
be tried without it are skipped; all others are tried all the same. Warnings that our modules log
meanwhile become part of a step that passes. One that takes long is named on stderr; Ctrl-C in it
ends the check, and is told as its failure.
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

SLOW_AFTER_S, REPEAT_S = 15.0, 60.0  # after so long a step is named, and again and again
INTERRUPTED = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
Value = TypeVar("Value")


class CheckVerdict(StrEnum):
    """How a step ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"
    SKIPPED = "skipped"


class Owner(StrEnum):
    """Who can mend what is wrong."""

    NETWORK = "this site's network people"
    DATA = "this site's data people"
    MACHINE = "whoever set up this machine"
    OPERATOR = "whoever runs the coordinator"
    AUTHOR = "whoever wrote the task"
    YOU = "you"


@dataclass(frozen=True, slots=True)
class Remedy:
    """Who is to do what; `others` could do something else instead."""

    owner: Owner
    action: str
    alternatives: tuple["Remedy", ...] = ()

    def options(self) -> tuple["Remedy", ...]:
        """Return everybody's own."""
        return (self, *self.alternatives)


@dataclass(frozen=True, slots=True)
class StepResult(Generic[Value]):
    """What a step found out; with advice it is a warning."""

    value: Value
    text: str
    remedy: Remedy | None = None


class StepFailed(Exception):
    """What a step found wrong, and who is to do what about it."""

    def __init__(self, text: str, remedy: Remedy, exit_code: ExitCode) -> None:
        super().__init__(text)
        self.remedy, self.exit_code = remedy, exit_code


class CheckInterrupted(BaseException):
    """Somebody ended the check, in a step that says so; like Ctrl-C, nothing swallows it."""


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
    """Runs steps one after the other; `begin` is called with the name of each."""

    def __init__(self, begin: Callable[[str], None] = lambda _name: None) -> None:
        self._begin = begin
        self.all: list[CheckStep] = []
        self.part = ""  # of the steps to come

    def run(
        self, name: str, body: Callable[[], StepResult[Value]], needs: Sequence[str] = ()
    ) -> Value | None:
        """Return what a step found; None if it failed, or one that it needs did not pass."""
        if missing := [one for one in needs if not self.passed(one)]:
            self.skip(name, self._skip_reason(missing[0]))
            return None
        self._begin(name)
        began_s = time.monotonic()
        with _captured_warnings() as warnings, _reporting_slowness(name):
            try:
                found = body()
            except StepFailed as failure:
                self._fail(name, failure, began_s)
                return None
            except (KeyboardInterrupt, Terminated) as error:
                self._fail(name, _interrupted(error, began_s), began_s)
                raise CheckInterrupted from error
            except BaseException as error:  # noqa: BLE001  the other steps are to be tried
                self._fail(name, _unexpected(error), began_s)
                print(printable_lines(traceback.format_exc().rstrip()), file=sys.stderr)
                return None
        remedy, heard = found.remedy, "; ".join(warnings)
        if heard:
            remedy = (
                replace(remedy, action=f"{remedy.action}; {heard}")
                if remedy
                else Remedy(Owner.MACHINE, heard)
            )
        self._add(
            name, CheckVerdict.WARNING if remedy else CheckVerdict.OK, found.text, remedy, began_s
        )
        return found.value

    def skip(self, name: str, why: str) -> None:
        """Say that a step is not tried."""
        self._add(name, CheckVerdict.SKIPPED, why)

    def passed(self, name: str) -> bool:
        """Tell whether a step was tried and is not wrong."""
        good = (CheckVerdict.OK, CheckVerdict.WARNING)
        return any(step.name == name and step.verdict in good for step in self.all)

    def _fail(self, name: str, failure: StepFailed, began_s: float) -> None:
        self._add(
            name, CheckVerdict.FAILED, str(failure), failure.remedy, began_s, failure.exit_code
        )

    def _skip_reason(self, name: str) -> str:
        """Say which failure hides a step: not the one before it, but the first of all."""
        (step,) = (one for one in self.all if one.name == name)
        return f"because {name} failed" if step.verdict is CheckVerdict.FAILED else step.text

    def with_verdict(self, verdict: CheckVerdict) -> list[CheckStep]:
        return [step for step in self.all if step.verdict is verdict]

    @property
    def exit_code(self) -> ExitCode:
        """The code of the first failure, unless somebody ended the check."""
        codes = [step.exit_code for step in self.with_verdict(CheckVerdict.FAILED)]
        return codes[-1] if self.is_interrupted else codes[0] if codes else ExitCode.DONE

    @property
    def is_interrupted(self) -> bool:
        """Whether somebody ended the check, in its last step."""
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
    if not isinstance(error, Exception):  # none of ours: a client would end by it, without a word
        return StepFailed(
            f"{type(error).__name__}: {error}",
            Remedy(
                Owner.AUTHOR, "see the traceback: a task must not end the program it is part of"
            ),
            ExitCode.BAD_DATA,
        )
    return StepFailed(
        f"unexpected: {type(error).__name__}: {error}",
        Remedy(Owner.YOU, "report this with its traceback: a check should not end so"),
        ExitCode.BUG,
    )


def _interrupted(error: BaseException, began_s: float) -> StepFailed:
    seconds = time.monotonic() - began_s
    code = ExitCode.TERMINATED if isinstance(error, Terminated) else ExitCode.INTERRUPTED
    remedy = Remedy(Owner.YOU, "give it more time, or find out what it does there")
    return StepFailed(f"ended by you after {seconds:.0f} s", remedy, code)


@contextmanager
def _reporting_slowness(name: str) -> Iterator[None]:
    """Say on stderr that a step is not over, if it takes long: nobody can tell by itself."""
    over, began_s = threading.Event(), time.monotonic()

    def watch() -> None:
        wait_s = SLOW_AFTER_S
        while not over.wait(wait_s):
            took_s, wait_s = time.monotonic() - began_s, REPEAT_S
            print(f"still at: {name}, {took_s:.0f} s; Ctrl-C ends it", file=sys.stderr, flush=True)

    watcher = threading.Thread(target=watch, name="watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextmanager
def _captured_warnings() -> Iterator[list[str]]:
    """Collect what is logged as a warning inside, instead of letting it be printed."""
    told: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    ours, listener = logging.getLogger("ssfl"), Listener(logging.WARNING)
    before = ours.propagate
    ours.addHandler(listener)
    ours.propagate = False
    try:
        yield told
    finally:
        ours.removeHandler(listener)
        ours.propagate = before
