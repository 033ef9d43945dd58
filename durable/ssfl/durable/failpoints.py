"""Failpoints: named places around every write, rename, fsync and acknowledgement.

A test injects a fault at a failpoint: in another process through the environment variable
FAILPOINTS ("journal.synced=kill@3,spool.chunk=full"), in its own process with `install_hook`.
Without either, a failpoint costs one dictionary look-up.

kill   end the process as kill -9 does
full   raise OSError ENOSPC: the disk is full
broken raise OSError EIO: the disk fails

`name=fault` fires on the first passage only, `@3` on the third only, `@3+` from the third on.
"""

import errno
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

VARIABLE = "FAILPOINTS"
_ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO}


@dataclass(slots=True)
class _Fault:
    kind: str
    passage: int
    lasting: bool


def _parse(text: str) -> dict[str, _Fault]:
    armed = {}
    for entry in filter(None, text.split(",")):
        name, equals, rest = entry.strip().partition("=")
        kind, _, passage = rest.partition("@")
        if not equals or kind not in ("kill", *_ERRORS):
            raise ValueError(f"{VARIABLE}: {entry!r} is not NAME=kill|full|broken[@N[+]]")
        armed[name] = _Fault(kind, int(passage.rstrip("+") or 1), passage.endswith("+"))
    return armed


_armed: dict[str, _Fault] = {}
_passages: Counter[str] = Counter()
_hook: Callable[[str], None] | None = None


def arm(text: str) -> None:
    """Arm exactly the failpoints in `text`, written as in the variable."""
    global _armed  # noqa: PLW0603 -- one process, one set of armed points
    _armed = _parse(text)


arm(os.environ.get(VARIABLE, ""))


def failpoint(name: str) -> None:
    """Mark a failpoint; do nothing unless a fault or a hook is set."""
    if _hook is not None:
        _hook(name)
    fault = _armed.get(name)
    if fault is None:
        return
    _passages[name] += 1
    if _passages[name] == fault.passage or (fault.lasting and _passages[name] > fault.passage):
        trigger(fault.kind, name)


def trigger(kind: str, name: str) -> None:
    """Inject a fault: end the process or raise OSError."""
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(_ERRORS[kind], os.strerror(_ERRORS[kind]), f"failpoint {name}")


def is_armed(name: str) -> bool:
    """Return True if a failpoint is in use, for callers that must prepare something for it."""
    return _hook is not None or name in _armed


def install_hook(hook: Callable[[str], None] | None) -> None:
    """Call `hook` with the name of every failpoint that is passed; None removes the hook."""
    global _hook  # noqa: PLW0603 -- one process, one hook
    _hook = hook
