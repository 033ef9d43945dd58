import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from ssfl.program import logs

log = logging.getLogger("ssfl.test")


@pytest.fixture(autouse=True)
def _restored_loggers() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("ssfl")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def record(message: str, severity: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = log.makeRecord("ssfl.test", severity, "f.py", 1, message, (), None, extra=extra)
    made.created = datetime(2026, 1, 2, 2, 31, 7).timestamp()
    return made


def text(message: str, severity: int = logging.INFO, **extra: object) -> str:
    return logs.TextFormatter().format(record(message, severity, **extra))


def test_text_is_time_event_fields() -> None:
    line = text("round committed", round=3, accuracy=91.2)
    assert line == "02:31:07 round committed  round=3 accuracy=91.2"


def test_text_shows_the_level_only_from_warning_up() -> None:
    assert text("client lost", logging.WARNING) == "02:31:07 WARNING client lost"
    assert text("chunk read", logging.DEBUG) == "02:31:07 chunk read"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (bytes(range(32)), "000102030405"),
        ("c7", "c7"),
        ("two words", '"two words"'),
        ("", '""'),
        ("a\nb", '"a\\nb"'),
        ("a=b", '"a=b"'),
        (0.1 + 0.2, "0.3"),
        (float("nan"), "nan"),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        (True, "yes"),
        (None, "null"),
        (Path("/x"), "/x"),
        (["c1", "c2"], '["c1", "c2"]'),
        ("\x9b2J\u202e", '"\\u009b2J\\u202e"'),
        ({"语": "\x7f"}, '{"语": "\\u007f"}'),
    ],
)
def test_text_shows_values_for_a_person(value: object, shown: str) -> None:
    assert text("e", v=value) == f"02:31:07 e  v={shown}"


def test_json_is_one_object_with_fixed_names_and_fields() -> None:
    made = logs.JsonFormatter().format(
        record("update accepted", round=3, digest=b"\x01\xff", accuracy=float("nan"), level="x")
    )
    line = json.loads(made)
    assert "\n" not in made
    assert datetime.fromisoformat(line.pop("time")).utcoffset() is not None
    assert line == {
        "level": "info",
        "logger": "ssfl.test",
        "event": "update accepted",
        "round": 3,
        "digest": "01ff",
        "accuracy": "nan",
        "level_": "x",
    }


FORGED = "gone\n02:31:07 run finished\r\x1b[2J\u202e"


@pytest.mark.parametrize("form", logs.FORMATS)
def test_text_from_a_peer_stays_in_its_line(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(form)
    log.info("client leaves: %s", FORGED, extra={"client": FORGED})
    log.info("client leaves: %(why)s", {"why": ValueError(FORGED)})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    assert "gone\\n02:31:07 run finished" in lines[0]


def test_further_lines_of_text_cannot_look_like_records(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.setup("text")
    log.info("table\n02:31:07 a row")
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("task failed")
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "  02:31:07 a row"
    assert all(line.isprintable() for line in lines)
    assert "  02:31:07 run finished\\r\\x1b[2J\\u202e" in lines
    assert [line for line in lines if not line.startswith("  ")] == [lines[0], lines[2]]


def test_numbers_in_a_message_keep_their_format(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("text")
    log.info("%d of %.1f %s", np.int64(3), 2.25, Path("x"))
    assert capsys.readouterr().err.endswith(" 3 of 2.2 x\n")


def test_an_exception_has_its_traceback_in_both_formats(capsys: pytest.CaptureFixture[str]) -> None:
    for form in logs.FORMATS:
        logs.setup(form)
        try:
            raise ValueError("oh")
        except ValueError:
            log.exception("fold failed", extra={"round": 1})
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith(" ERROR fold failed  round=1")
    assert "  ValueError: oh" in rest
    assert "ValueError: oh" in json.loads(rest[-1])["exception"]


def test_setup_twice_writes_once(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("text")
    logs.setup("text")
    log.info("hello %s", "you")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" hello you")


def test_the_level_is_for_our_loggers_only(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("text", "debug")
    log.debug("ours")
    logging.getLogger("matplotlib").info("theirs")
    logging.getLogger("matplotlib").warning("their warning")
    events = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert events == ["ours", "WARNING their warning"]


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "coloured"),
    [(True, None, True), (True, "1", False), (False, None, False)],
)
def test_colour_is_used_only_on_terminals_that_support_it(
    is_terminal: bool,
    no_color: str | None,
    coloured: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.setenv("TERM", "xterm")
    if no_color is None:
        monkeypatch.delenv("NO_COLOR", raising=False)
    else:
        monkeypatch.setenv("NO_COLOR", no_color)
    logs.setup("text")
    log.warning("client lost", extra={"client": "c7"})
    assert ("\x1b[" in capsys.readouterr().err) == coloured


EVERY = {"rounds": 30, "clients": 4, "sparsity": "0.9", "port": 0}


def test_settings_are_logged_as_text_in_a_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("text", "info")
    logs.log_settings(log, EVERY, {"clients": 4, "port": 0})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" configuration  clients=4 port=0")


def test_all_settings_are_logged_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("json", "info")
    logs.log_settings(log, EVERY, {"clients": 4})
    line = json.loads(capsys.readouterr().err)
    assert {name: line[name] for name in EVERY} == EVERY
    assert line["event"] == "configuration"
    assert "text_fields" not in line


def test_at_level_debug_every_setting_is_logged_by_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.setup("text", "debug")
    logs.log_settings(log, EVERY, {})
    lines = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "configuration",
        "settings: run  rounds=30",
        "settings: masks  sparsity=0.9",
        "settings: clients  clients=4",
        "settings: network  port=0",
    ]
