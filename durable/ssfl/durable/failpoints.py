"""Named points around every write, rename, fsync and acknowledgement, where trouble can be made.

A test says what is to happen at which passage of a point, in the variable FAILPOINTS of a
real process ("journal.synced=kill@3,spool.chunk=full") or with `install` inside one. Without
either, a point costs the look-up of an empty variable.

kill   the process ends as with kill -9
full   the disk is full (OSError, ENOSPC)
broken the disk does not answer (OSError, EIO)

`name=trouble` strikes at the first passage, `@3` at the third alone, `@3+` from the third on.
"""

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

VARIABLE = "FAILPOINTS"
_ATOMIC = ("written", "synced", "renamed", "named")  # the stages of files.atomic_file

# Every point by name. Files are named by what their names begin with.
COORDINATOR_POINTS = (
    "journal.taken", "journal.created", "journal.append", "journal.torn", "journal.written",
    "journal.synced",
    "ledger.append", "ledger.written",
    "spool.chunk", "spool.chunk-written", "spool.verified", "spool.synced", "spool.renamed",
    "spool.kept", "spool.drop", "spool.dropped",
    "sum.open", "sum.fold", "sum.reduce", "sum.stored",
    "ack.join", "ack.initial", "ack.upload", "ack.evaluation", "ack.leave",
    *(f"{kind}.{stage}" for kind in ("manifest", "mask", "values") for stage in _ATOMIC),
)  # fmt: skip
REFRESH_POINTS = tuple(f"scored.{stage}" for stage in _ATOMIC)  # of a run that renews its mask
KEEP_POINTS = ("accepted.move", "accepted.moved")  # of a run with --keep-uploads
CLIENT_POINTS = (
    "client.scored", "client.trained", "client.saved", "client.chunk", "client.receipt",
    "client.dropped",
    *(f"answer.{stage}" for stage in _ATOMIC),
)  # fmt: skip
ENDED_POINTS = ("client.goodbye",)  # of a client whose run is over

_ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO}


@dataclass(slots=True)
class _Fault:
    kind: str
    passage: int
    lasting: bool


def _kill(_name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _parse(text: str) -> dict[str, _Fault]:
    armed = {}
    for entry in filter(None, text.split(",")):
        name, equals, rest = entry.strip().partition("=")
        kind, _, passage = rest.partition("@")
        if not equals or kind not in ("kill", *_ERRORS):
            raise ValueError(f"{VARIABLE}: {entry!r} is not NAME=kill|full|broken[@N[+]]")
        armed[name] = _Fault(kind, int(passage.rstrip("+") or 1), passage.endswith("+"))
    return armed


_armed = _parse(os.environ.get(VARIABLE, ""))
_passages: dict[str, int] = {}
_hook: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    """Pass a point: mostly nothing happens."""
    if _hook is not None:
        _hook(name)
    if not _armed or name not in _armed:
        return
    fault = _armed[name]
    _passages[name] = _passages.get(name, 0) + 1
    passed = _passages[name]
    if passed == fault.passage or (fault.lasting and passed > fault.passage):
        trigger(fault.kind, name)


def trigger(kind: str, name: str) -> None:
    """Make trouble of a kind."""
    if kind == "kill":
        _kill(name)
    raise OSError(_ERRORS[kind], os.strerror(_ERRORS[kind]), f"failpoint {name}")


def is_armed(name: str) -> bool:
    """Tell whether a point is of interest: for those that need something prepared."""
    return _hook is not None or name in _armed


def install_hook(hook: Callable[[str], None] | None) -> None:
    """Let `hook` be called at every passage of every point; None: no longer."""
    global _hook  # noqa: PLW0603 -- one process, one hook
    _hook = hook
