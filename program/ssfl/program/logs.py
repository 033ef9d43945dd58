"""Log lines: one event each, in the past tense, with fields for the facts.

    log.info("update accepted", extra={"round": 3, "client": "c7"})

The format `text` is for people and `json` (one object per line) for machines; both go to stderr.
`text` shows only the fields named in `text_fields`, if a record has that; `json` shows all fields.
Arguments and fields may come from a peer or a task. They are escaped here, so that they cannot
start a new line or move the cursor. Further lines of a message or a traceback are indented.
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
    """Marks the handler that a later `setup` replaces."""


def setup(format: str = "text", level: str = "info") -> None:
    """Log to stderr in one of FORMATS; `level`, one of LEVELS, applies to our own loggers.

    Loggers of other packages log from WARNING up.
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
    log: logging.Logger, every: Mapping[str, object], changed: Mapping[str, object]
) -> None:
    """Log the settings of a program: `text` shows those that are not the default, `json` all.

    At level debug every setting is logged, one line for each group of --help.
    """
    log.info("configuration", extra={**every, "text_fields": tuple(changed)})
    for group in GROUPS:
        if members := {name: every[name] for name in group.settings if name in every}:
            log.debug("settings: %s", group.name, extra=members)


class TextFormatter(logging.Formatter):
    """`02:31:07 round committed  round=3 accuracy=91.2`; the level is shown from WARNING up."""

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
    """Keys: time (ISO, UTC), level, logger, event, the fields; a traceback is `exception`."""

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
    """Return an argument of a message: numbers unchanged, anything else as printable text."""
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
    """Return `value` in JSON's types; NaN and infinities become their names."""
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
