"""Log lines: one event each, past tense, facts as fields.

    log.info("update accepted", extra={"round": 3, "client": "c7"})

`text` is for people, `json` (one object per line) for machines; both go to stderr.
"""

import json
import logging
import math
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_PLAIN_WORD = re.compile(r"[^\s\"=\x00-\x1f\x7f]+")
_DIGEST_CHARACTERS = 12
_DIM, _YELLOW, _RED, _OFF = "\x1b[2m", "\x1b[33m", "\x1b[31m", "\x1b[0m"


class _OurHandler(logging.StreamHandler[TextIO]):
    """Marks the handler that a later `setup` replaces."""


def setup(format: str = "text", level: str = "info") -> None:
    """Send the log to stderr in one of FORMATS; `level`, one of LEVELS, is for our own loggers.

    Other people's loggers show from WARNING on.
    """
    handler = _OurHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter(_wants_colour()))
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one, _OurHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("ssfl").setLevel(level.upper())


class TextFormatter(logging.Formatter):
    """`02:31:07 round committed  round=3 accuracy=91.2`; the level only if it is a warning."""

    def __init__(self, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        parts = [self._paint(time, _DIM)]
        if record.levelno >= logging.WARNING:
            colour = _RED if record.levelno >= logging.ERROR else _YELLOW
            parts.append(self._paint(record.levelname, colour))
        parts.append(record.getMessage())
        if fields := fields_of(record):
            shown = " ".join(f"{name}={_text(value)}" for name, value in fields.items())
            parts.append(" " + self._paint(shown, _DIM))
        return "\n".join([" ".join(parts), *self._traceback(record)])

    def _paint(self, text: str, code: str) -> str:
        return f"{code}{text}{_OFF}" if self._colour else text

    def _traceback(self, record: logging.LogRecord) -> list[str]:
        return [self.formatException(record.exc_info)] if record.exc_info else []


class JsonFormatter(logging.Formatter):
    """time (ISO, UTC), level, logger, event, then the fields; a traceback as `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        for name, value in fields_of(record).items():
            line[f"{name}_" if name in line else name] = plain(value)
        return json.dumps(line, ensure_ascii=False, allow_nan=False)


def _wants_colour() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _text(value: object) -> str:
    value = plain(value[: _DIGEST_CHARACTERS // 2] if isinstance(value, bytes) else value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value if _PLAIN_WORD.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


def plain(value: object) -> Any:
    """Return `value` in types that JSON has; NaN and infinities become their names."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        value = value.item()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return str(value)
