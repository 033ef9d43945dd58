"""The newest log records in memory, for the status page.

The buffer holds at most MAX_RECORDS records of our own loggers from INFO up, and at most
MAX_WARNINGS older warnings and errors. A record is a dictionary with `number` (counts from 1),
`time` (Unix seconds), `level`, `event` and `fields`; its size is bounded.

The page can be visible to people who have no access to the log. A record therefore has only the
fields in SHOWN, only the last part of each path, and only the name and message of an exception.
"""

import logging
import re
from collections import deque
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from ssfl.program.logs import fields_of, message_of, plain, quotable
from ssfl.program.printable import printable, printable_lines

MAX_RECORDS = 300
MAX_WARNINGS = 100  # routine records must not displace them
EVENT_CHARACTERS = 4000  # enough for a table of layers
FIELD_CHARACTERS = 400
MAX_FIELDS = 16
SHOWN = frozenset(
    (
        *("run", "phase", "step", "round", "rounds", "rounds_done", "attempt", "epoch", "early"),
        *("client", "clients", "reported", "missing", "num_samples", "was", "has_final_model"),
        *("reason", "method", "times", "times_since_last_told", "from", "error"),
        *("silent_s", "for_s"),
        *("seconds", "bytes", "size", "tensor", "kept", "of", "density", "density_of_all", "new"),
        *("accuracy", "base_accuracy", "pooled", "mean", "loss", "training_loss", "best", "model"),
        *("global", "personal", "coding_error", "lost", "limit", "norms", "largest", "value_type"),
        *("values", "digest", "manifest", "max_connections", "wanted"),
    )
)
_PATH = re.compile(
    r"""
    '(?P<single>[/~][^'\n]*)' | "(?P<double>[/~][^"\n]*)"  # as Python quotes a file name
    | (?<![\w/.~-])(?P<bare>(?:~|\.{1,2})?/(?!/)[^\s'",;()]+)  # not a URL or part of a word
    """,
    re.VERBOSE,
)


class LogBuffer(logging.Handler):
    """A logging handler that keeps the newest records between `begin` and `end`."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._kept: deque[dict[str, Any]] = deque(maxlen=MAX_RECORDS)
        self._warnings: deque[dict[str, Any]] = deque(maxlen=MAX_WARNINGS)
        self.last_number = 0

    def begin(self) -> None:
        """Start to keep the records of our loggers."""
        logging.getLogger("ssfl").addHandler(self)

    def end(self) -> None:
        """Stop keeping records."""
        logging.getLogger("ssfl").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; called with the handler's lock held."""
        fields = {
            name: _short(plain(value)) for name, value in fields_of(record).items() if name in SHOWN
        }
        if record.exc_info and (error := record.exc_info[1]):
            shown = _short(f"{type(error).__name__}: {_file_name_only(error)}")
            fields = {"error": shown, **fields}
        self.last_number += 1
        entry = {
            "number": self.last_number,
            "time": record.created,
            "level": record.levelname.lower(),
            "event": _cut(_without_paths(_message(record)), EVENT_CHARACTERS),
            "fields": dict(list(fields.items())[:MAX_FIELDS]),
        }
        self._kept.append(entry)
        if record.levelno >= logging.WARNING:
            self._warnings.append(entry)

    def after(self, number: int) -> list[dict[str, Any]]:
        """Return the kept records with a larger number, oldest first."""
        self.acquire()
        try:
            oldest = self._kept[0]["number"] if self._kept else 0
            older = [entry for entry in self._warnings if entry["number"] < oldest]
            return [entry for entry in (*older, *self._kept) if entry["number"] > number]
        finally:
            self.release()


def _short(value: Any) -> Any:
    """Return numbers unchanged, and anything else as short text without paths."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return _cut(_without_paths(printable(str(value))), FIELD_CHARACTERS)


def _message(record: logging.LogRecord) -> str:
    """Return a record's message, with only the last part of arguments that are paths."""
    args = record.args
    if not args or isinstance(args, Mapping):
        return message_of(record)
    shown = tuple(quotable(_file_name_only(argument)) for argument in args)
    return printable_lines(str(record.msg) % shown)


def _file_name_only(value: object) -> object:
    """Reduce a path, or the path in an OSError, to its last part."""
    if isinstance(value, PurePath):
        return value.name
    if isinstance(value, OSError) and value.filename is not None:
        return f"{value.strerror}: {PurePath(str(value.filename)).name}"
    return value


def _without_paths(text: str) -> str:
    """Return `text` with each path reduced to its last part.

    >>> _without_paths("cannot read '/state/a run/journal': see /srv/keys/coordinator.key.")
    'cannot read journal: see coordinator.key.'
    """
    return _PATH.sub(lambda match: PurePath(match[match.lastgroup or 0]).name, text)


def _cut(text: str, max_characters: int) -> str:
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"
