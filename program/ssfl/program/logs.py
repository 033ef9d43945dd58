"""Log lines. A line reports one event; the values that belong to it are fields.

    log.info("update accepted", extra={"round": 3, "client": "c7"})

The format `text` is for people and `json` (one object per line) for machines; both go to stderr.
`json` shows all fields. `text` does too, unless the record has `text_fields`: then it shows only
the fields named there. Arguments and fields may come from a peer or a task. They are escaped here,
so that they cannot start a new line or move the cursor. In `text`, the further lines of a message
or a traceback are indented.
"""

import json
import logging
import math
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from numbers import Number
from typing import Any, TextIO

from ssfl.program.printable import printable, printable_json, printable_lines
from ssfl.program.settings.help_groups import GROUPS

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "text_fields"}
_PLAIN_WORD = re.compile(r"[^\s\"=]+")
_INDENT = "  "
_DIGEST_CHARACTERS = 12
_DIM, _YELLOW, _RED, _OFF = "\x1b[2m", "\x1b[33m", "\x1b[31m", "\x1b[0m"


class _OurHandler(logging.StreamHandler[TextIO]):
    """The handler that `setup` adds, and that a later `setup` replaces."""


def setup(format: str = "text", level: str = "info") -> None:
    """Log to stderr in one of FORMATS.

    `level`, one of LEVELS, applies to the logger `ssfl` and those below it. Loggers of other
    packages log from WARNING up.
    """
    handler = _OurHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter(_wants_colour()))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _OurHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("ssfl").setLevel(level.upper())


def log_settings(
    log: logging.Logger, settings: Mapping[str, object], changed: Mapping[str, object]
) -> None:
    """Log the settings of a program: `json` shows all, `text` those that are `changed`.

    At level debug all settings are logged, in one line for each group of --help.
    """
    log.info("configuration", extra={**settings, "text_fields": tuple(changed)})
    for group in GROUPS:
        if members := {name: settings[name] for name in group.settings if name in settings}:
            log.debug("settings: %s", group.name, extra=members)


class TextFormatter(logging.Formatter):
    """Formats a record as `02:31:07 round committed  round=3 accuracy=91.2`.

    The level is shown from WARNING up.
    """

    def __init__(self, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        parts = [self._paint(time, _DIM)]
        if record.levelno >= logging.WARNING:
            colour = _RED if record.levelno >= logging.ERROR else _YELLOW
            parts.append(self._paint(record.levelname, colour))
        parts.append(_indented(message_of(record)))
        fields = fields_of(record)
        if names := [name for name in getattr(record, "text_fields", fields) if name in fields]:
            shown = " ".join(f"{name}={_text(fields[name])}" for name in names)
            parts.append(" " + self._paint(shown, _DIM))
        line = " ".join(parts)
        if not record.exc_info:
            return line
        trace = printable_lines(self.formatException(record.exc_info))
        return f"{line}\n{_INDENT}{_indented(trace)}"

    def _paint(self, text: str, code: str) -> str:
        return f"{code}{text}{_OFF}" if self._colour else text


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object.

    The keys are time (ISO 8601, UTC), level, logger, event, exception (the traceback, if there is
    one) and the fields. A field with the name of another key gets a trailing underscore.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": message_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        for name, value in fields_of(record).items():
            line[f"{name}_" if name in line else name] = plain(value)
        return printable_json(json.dumps(line, ensure_ascii=False, allow_nan=False))


def _wants_colour() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def message_of(record: logging.LogRecord) -> str:
    """Return a record's message, with each argument escaped to one line."""
    message, args = str(record.msg), record.args
    if isinstance(args, Mapping):
        message %= {name: quotable(value) for name, value in args.items()}
    elif args:
        message %= tuple(quotable(value) for value in args)
    return printable_lines(message)


def quotable(value: object) -> object:
    """Return a message argument that is safe to print: a number, or else printable text."""
    return value if isinstance(value, Number) else printable(str(value))


def _indented(text: str) -> str:
    return text.replace("\n", f"\n{_INDENT}")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _text(value: object) -> str:
    value = plain(value[: _DIGEST_CHARACTERS // 2] if isinstance(value, bytes) else value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and _PLAIN_WORD.fullmatch(value) and value.isprintable():
        return value
    return printable_json(json.dumps(value, ensure_ascii=False))


def plain(value: object) -> Any:
    """Return `value` as a type that JSON has; NaN and infinities become text."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        value = value.item()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)
