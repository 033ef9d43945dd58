"""Exit codes, signals and the last-resort error handler of every program."""

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
    """Every exit code of every program, with its line in --help."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "ExitCode":
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    DONE = 0, "done"
    BUG = 1, "a bug, with its traceback; or the output cannot be written"
    USAGE = 2, "a flag, variable or settings file is wrong"
    BAD_DATA = 3, "the shard, task or model cannot be used"
    UNREACHABLE = 4, "the coordinator was not reached before the deadline"
    REFUSED = 5, "the coordinator refused this client"
    STATE = 6, "the state directory is in use, damaged or from another configuration"
    PORT_IN_USE = 7, "the port is in use"
    STOPPED = 8, "ended by an operator before it was done"
    STALLED = 9, "the run lost its quorum for too long; it resumes when started again"
    NOT_YET = 10, "the coordinator has not done what was asked; it may still do it"
    INTERRUPTED = 130, "interrupted (Ctrl-C)"
    TERMINATED = 143, "terminated (SIGTERM)"


class ProgramError(Exception):
    """An expected failure: `message` is for people, `exit_code` for scripts."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def usage_error(message: str) -> ProgramError:
    """Return the error for a wrong setting; `message` names the setting and its origin."""
    return ProgramError(message, ExitCode.USAGE)


class Terminated(BaseException):
    """SIGTERM arrived. Like KeyboardInterrupt, it passes through `except Exception`."""


def raise_on_sigterm() -> None:
    """Make SIGTERM raise Terminated in the main thread, so that `finally` blocks run."""

    def handler(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, handler)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_program(main_body: Callable[[], int | None], prog: str = "") -> int:
    """Run `main_body` and return the exit code; print errors to stderr.

    `prog` starts each message; the default is the name of the started file.
    """
    prog = prog or Path(sys.argv[0]).name
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a Latin-1 terminal cannot show "→"
    try:
        code = int(main_body() or ExitCode.DONE)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, closed the pipe
        _discard_stdout()
        return int(ExitCode.DONE)
    except (ProgramError, DirectoryUnusable) as error:
        _print_error(f"{prog}: error: {error}")
        return int(error.exit_code if isinstance(error, ProgramError) else ExitCode.STATE)
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
    """Return True if stdout can be written to, which an OSError without a file leaves open."""
    try:
        print(flush=True)
    except OSError:
        return False
    return True


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, because Python would flush it again at exit and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(message: str) -> None:
    """Print a message to stderr. Control characters, which quoted text may have, are escaped."""
    print(printable_lines(message), file=sys.stderr, flush=True)
