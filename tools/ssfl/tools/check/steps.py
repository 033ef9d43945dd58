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

LONG_S, AGAIN_S = 15.0, 60.0  # after so long a step is named, and again and again
ENDED = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
Value = TypeVar("Value")


class Verdict(StrEnum):
    """How a step ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"
    SKIPPED = "skipped"


class Who(StrEnum):
    """Who can mend what is wrong."""

    NETWORK = "this site's network people"
    DATA = "this site's data people"
    MACHINE = "whoever set up this machine"
    OPERATOR = "whoever runs the coordinator"
    AUTHOR = "whoever wrote the task"
    YOU = "you"


@dataclass(frozen=True, slots=True)
class Advice:
    """Who is to do what; `others` could do something else instead."""

    who: Who
    what: str
    others: tuple["Advice", ...] = ()

    def each(self) -> tuple["Advice", ...]:
        """Return everybody's own."""
        return (self, *self.others)


@dataclass(frozen=True, slots=True)
class Found(Generic[Value]):
    """What a step found out; with advice it is a warning."""

    value: Value
    text: str
    advice: Advice | None = None


class Wrong(Exception):
    """What a step found wrong, and who is to do what about it."""

    def __init__(self, text: str, advice: Advice, exit_code: ExitCode) -> None:
        super().__init__(text)
        self.advice, self.exit_code = advice, exit_code


class Ended(BaseException):
    """Somebody ended the check, in a step that says so; like Ctrl-C, nothing swallows it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a check."""

    part: str  # "network", "coordinator" or "site"
    name: str
    verdict: Verdict
    text: str
    advice: Advice | None = None
    seconds: float = 0.0
    exit_code: ExitCode = ExitCode.DONE


class Steps:
    """Runs steps one after the other; `begin` is called with the name of each."""

    def __init__(self, begin: Callable[[str], None] = lambda _name: None) -> None:
        self._begin = begin
        self.all: list[Step] = []
        self.part = ""  # of the steps to come

    def run(
        self, name: str, body: Callable[[], Found[Value]], needs: Sequence[str] = ()
    ) -> Value | None:
        """Return what a step found; None if it failed, or one that it needs did not pass."""
        if missing := [one for one in needs if not self.passed(one)]:
            self.skip(name, self._because(missing[0]))
            return None
        self._begin(name)
        began_s = time.monotonic()
        with _heard() as warnings, _named(name):
            try:
                found = body()
            except Wrong as wrong:
                self._fail(name, wrong, began_s)
                return None
            except (KeyboardInterrupt, Terminated) as error:
                self._fail(name, _ended(error, began_s), began_s)
                raise Ended from error
            except BaseException as error:  # noqa: BLE001  the other steps are to be tried
                self._fail(name, _unexpected(error), began_s)
                print(printable_lines(traceback.format_exc().rstrip()), file=sys.stderr)
                return None
        advice, heard = found.advice, "; ".join(warnings)
        if heard:
            advice = (
                replace(advice, what=f"{advice.what}; {heard}")
                if advice
                else Advice(Who.MACHINE, heard)
            )
        self._add(name, Verdict.WARNING if advice else Verdict.OK, found.text, advice, began_s)
        return found.value

    def skip(self, name: str, why: str) -> None:
        """Say that a step is not tried."""
        self._add(name, Verdict.SKIPPED, why)

    def passed(self, name: str) -> bool:
        """Tell whether a step was tried and is not wrong."""
        good = (Verdict.OK, Verdict.WARNING)
        return any(step.name == name and step.verdict in good for step in self.all)

    def _fail(self, name: str, wrong: Wrong, began_s: float) -> None:
        self._add(name, Verdict.FAILED, str(wrong), wrong.advice, began_s, wrong.exit_code)

    def _because(self, name: str) -> str:
        """Say which failure hides a step: not the one before it, but the first of all."""
        (step,) = (one for one in self.all if one.name == name)
        return f"because {name} failed" if step.verdict is Verdict.FAILED else step.text

    def of(self, verdict: Verdict) -> list[Step]:
        return [step for step in self.all if step.verdict is verdict]

    @property
    def exit_code(self) -> ExitCode:
        """The code of the first failure, unless somebody ended the check."""
        codes = [step.exit_code for step in self.of(Verdict.FAILED)]
        return codes[-1] if self.is_ended else codes[0] if codes else ExitCode.DONE

    @property
    def is_ended(self) -> bool:
        """Whether somebody ended the check, in its last step."""
        return bool(self.all) and self.all[-1].exit_code in ENDED

    def _add(
        self,
        name: str,
        verdict: Verdict,
        text: str,
        advice: Advice | None = None,
        began_s: float | None = None,
        exit_code: ExitCode = ExitCode.DONE,
    ) -> None:
        seconds = 0.0 if began_s is None else time.monotonic() - began_s
        self.all.append(Step(self.part, name, verdict, text, advice, seconds, exit_code))


def _unexpected(error: BaseException) -> Wrong:
    if not isinstance(error, Exception):  # none of ours: a client would end by it, without a word
        return Wrong(
            f"{type(error).__name__}: {error}",
            Advice(Who.AUTHOR, "see the traceback: a task must not end the program it is part of"),
            ExitCode.BAD_DATA,
        )
    return Wrong(
        f"unexpected: {type(error).__name__}: {error}",
        Advice(Who.YOU, "report this with its traceback: a check should not end so"),
        ExitCode.BUG,
    )


def _ended(error: BaseException, began_s: float) -> Wrong:
    seconds = time.monotonic() - began_s
    code = ExitCode.TERMINATED if isinstance(error, Terminated) else ExitCode.INTERRUPTED
    advice = Advice(Who.YOU, "give it more time, or find out what it does there")
    return Wrong(f"ended by you after {seconds:.0f} s", advice, code)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say on stderr that a step is not over, if it takes long: nobody can tell by itself."""
    over, began_s = threading.Event(), time.monotonic()

    def watch() -> None:
        wait_s = LONG_S
        while not over.wait(wait_s):
            took_s, wait_s = time.monotonic() - began_s, AGAIN_S
            print(f"still at: {name}, {took_s:.0f} s; Ctrl-C ends it", file=sys.stderr, flush=True)

    watcher = threading.Thread(target=watch, name="watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextmanager
def _heard() -> Iterator[list[str]]:
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
