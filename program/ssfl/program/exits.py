"""How a program ends: one documented exit code per thing its caller can do about it."""

import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ssfl.durable.lock import DirectoryUnusable
from ssfl.program.printable import printable_lines


class ExitCode(IntEnum):
    """Every exit code of every program, with the line that --help shows for it."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "ExitCode":
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    DONE = 0, "done"
    BUG = 1, "unexpected: a bug, and its traceback; or the output cannot be written"
    USAGE = 2, "a flag, variable or settings file is wrong"
    BAD_DATA = 3, "the shard, task or model does not fit"
    UNREACHABLE = 4, "the coordinator was not reached before the deadline"
    REFUSED = 5, "the coordinator refused this client"
    STATE = 6, "the state directory is in use, of another configuration, or damaged"
    PORT_IN_USE = 7, "the port is in use"
    STOPPED = 8, "ended by an operator before it was done"
    STALLED = 9, "the run lost its quorum and was given up; started again, it goes on"
    NOT_YET = 10, "the coordinator was asked, and has not done it yet; it may still do it"
    INTERRUPTED = 130, "interrupted (Ctrl-C)"
    TERMINATED = 143, "terminated (SIGTERM)"


class ProgramError(Exception):
    """An expected end: `message` is for a person, `exit_code` for the caller's script."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def usage_error(message: str) -> ProgramError:
    """Return the error for a setting that is wrong; `message` names it and its origin."""
    return ProgramError(message, ExitCode.USAGE)


class Terminated(BaseException):
    """SIGTERM arrived. Like KeyboardInterrupt, no `except Exception` swallows it."""


def raise_on_sigterm() -> None:
    """From now on SIGTERM raises Terminated in the main thread, so `finally` blocks run."""

    def handler(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, handler)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the block is left: what must not be cut in two."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_program(main_body: Callable[[], int | None], prog: str = "") -> int:
    """Run `main_body` and return the exit code; what went wrong is told on stderr.

    `prog` begins the message; the default is the name the program was started by.
    """
    prog = prog or Path(sys.argv[0]).name
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # an arrow that Latin-1 lacks is no reason to end
    try:
        code = int(main_body() or ExitCode.DONE)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `| head` has seen enough
        _discard_stdout()
        return int(ExitCode.DONE)
    except ProgramError as error:
        _print_error(f"{prog}: error: {error}")
        return int(error.exit_code)
    except DirectoryUnusable as error:
        _print_error(f"{prog}: error: {error}")
        return int(ExitCode.STATE)
    except KeyboardInterrupt:
        _print_error(f"{prog}: interrupted")
        return int(ExitCode.INTERRUPTED)
    except Terminated:
        _print_error(f"{prog}: terminated")
        return int(ExitCode.TERMINATED)
    except Exception as error:  # noqa: BLE001  the last resort of the whole program
        if isinstance(error, OSError) and not error.filename and not _can_print():
            _discard_stdout()
            _print_error(f"{prog}: error: the output cannot be written: {error.strerror}")
        else:
            _print_error(traceback.format_exc().rstrip())
        return int(ExitCode.BUG)


def _can_print() -> bool:
    """Tell whether stdout takes anything: an error of writing does not say of which file."""
    try:
        print(flush=True)
    except OSError:
        return False
    return True


def _discard_stdout() -> None:
    """Throw away what cannot be printed: Python would try it again at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(message: str) -> None:
    """Print a message, which may quote what came from a file, without its control characters."""
    print(printable_lines(message), file=sys.stderr, flush=True)
