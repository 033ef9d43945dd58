"""The newest log records, kept in memory for those who watch.

At most MOST of them, and MOST_GRAVE older warnings and errors, each cut to a bounded size, as plain
dictionaries: `number` (counts from 1), `time` (unix seconds), `level`, `event`, `fields`. Only our
own loggers, from INFO on. Settings that name secrets or where they lie are left out, and of an
exception only its name and sentence are kept: who may look at the page is not always who may read
the log.
"""

import logging
from collections import deque
from typing import Any

from ssfl.program.logs import fields_of, plain

MOST = 300
MOST_GRAVE = 100  # routine must not push them out
EVENT_CHARACTERS = 4000  # a table of layers has some
FIELD_CHARACTERS = 400
MOST_FIELDS = 16
SECRETS = ("token", "tls_", "key", "password", "secret")  # in the name of a field


class Recent(logging.Handler):
    """Keeps the newest records, from `begin` to `end`."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._kept: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._grave: deque[dict[str, Any]] = deque(maxlen=MOST_GRAVE)
        self.last_number = 0

    def begin(self) -> None:
        """Keep what our loggers say from now on."""
        logging.getLogger("ssfl").addHandler(self)

    def end(self) -> None:
        """Keep no more."""
        logging.getLogger("ssfl").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; called with the handler's lock held."""
        fields = {
            name: _short(plain(value))
            for name, value in fields_of(record).items()
            if not any(word in name for word in SECRETS)
        }
        if record.exc_info and record.exc_info[1]:
            error = record.exc_info[1]
            fields = {"error": _short(f"{type(error).__name__}: {error}"), **fields}
        self.last_number += 1
        told = {
            "number": self.last_number,
            "time": record.created,
            "level": record.levelname.lower(),
            "event": _cut(record.getMessage(), EVENT_CHARACTERS),
            "fields": dict(list(fields.items())[:MOST_FIELDS]),
        }
        self._kept.append(told)
        if record.levelno >= logging.WARNING:
            self._grave.append(told)

    def after(self, number: int) -> list[dict[str, Any]]:
        """Return the kept records behind `number`, oldest first."""
        self.acquire()
        try:
            oldest = self._kept[0]["number"] if self._kept else 0
            older = [one for one in self._grave if one["number"] < oldest]
            return [one for one in (*older, *self._kept) if one["number"] > number]
        finally:
            self.release()


def _short(value: Any) -> Any:
    """Return a value that is short as text, too."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return _cut(value if isinstance(value, str) else str(value), FIELD_CHARACTERS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
