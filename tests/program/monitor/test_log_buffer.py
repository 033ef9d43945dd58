"""The buffer of newest log records: bounded and without secrets."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssfl.program.monitor.log_buffer import (
    EVENT_CHARACTERS,
    FIELD_CHARACTERS,
    MAX_FIELDS,
    MAX_RECORDS,
    MAX_WARNINGS,
    SHOWN,
    LogBuffer,
)

log = logging.getLogger("ssfl.test")


@pytest.fixture
def recent() -> Iterator[LogBuffer]:
    ours = logging.getLogger("ssfl")
    level = ours.level
    ours.setLevel(logging.INFO)
    kept = LogBuffer()
    kept.begin()
    yield kept
    kept.end()
    ours.setLevel(level)


def test_records_are_numbered_and_returned_after_a_number(recent: LogBuffer) -> None:
    log.info("round committed", extra={"round": 3, "client": "c7"})
    log.warning("client lost")
    log.debug("not worth a line")
    first, second = recent.after(0)
    assert (first["number"], first["level"], first["event"]) == (1, "info", "round committed")
    assert first["fields"] == {"round": 3, "client": "c7"}
    assert (second["number"], second["level"]) == (2, "warning")
    assert recent.after(1) == [second] and recent.after(2) == []
    assert recent.last_number == 2


def test_only_our_loggers_are_recorded_and_only_until_end(recent: LogBuffer) -> None:
    logging.getLogger("grpc").error("of another package")
    recent.end()
    log.error("too late")
    assert recent.after(0) == []


def test_routine_records_displace_routine_records_but_not_errors(recent: LogBuffer) -> None:
    for number in range(MAX_WARNINGS + 5):
        log.error("failure %d", number)
    for number in range(2 * MAX_RECORDS):
        log.info("round %d", number)
    shown = recent.after(0)
    assert len(shown) == MAX_RECORDS + MAX_WARNINGS
    assert shown[0]["event"] == "failure 5" and shown[-1]["event"] == f"round {2 * MAX_RECORDS - 1}"
    assert [entry["number"] for entry in shown] == sorted({entry["number"] for entry in shown})


def test_a_record_has_a_bounded_size(recent: LogBuffer) -> None:
    log.info("y" * 100_000, extra=dict.fromkeys(SHOWN, "x" * 10_000))
    (one,) = recent.after(0)
    assert len(one["event"]) == EVENT_CHARACTERS
    assert len(one["fields"]) == MAX_FIELDS
    assert {len(value) for value in one["fields"].values()} == {FIELD_CHARACTERS}


def test_only_fields_that_are_known_to_be_harmless_are_kept(recent: LogBuffer) -> None:
    secrets = {"join_token_file": "/secret", "state_dir": "/secret", "pass": "secret", "port": 1}
    log.info("configuration", extra={"rounds": 3, "error": "no /etc/secret/file", **secrets})
    (one,) = recent.after(0)
    assert one["fields"] == {"rounds": 3, "error": "no file"}


@pytest.mark.parametrize(
    ("event", "words", "shown"),
    [
        ("%s is too short", (Path("/srv/a secret/ledger.csv"),), "ledger.csv is too short"),
        ("no: %s", (OSError(28, "No space", "/srv/a secret/x"),), "no: No space: x"),
        ("will not do: %s", ("'/a secret/k.pem': bad",), "will not do: k.pem: bad"),
        ("the key /srv/secret/k.pem: bad", (), "the key k.pem: bad"),
        ("in (~/secret/a, ../secret/b)", (), "in (a, b)"),
        ("open http://localhost:8080/ at 3/4, 2 MB/s", (), None),
    ],
)
def test_only_the_last_part_of_a_path_is_shown(
    recent: LogBuffer, event: str, words: tuple[object, ...], shown: str | None
) -> None:
    log.warning(event, *words)
    (one,) = recent.after(0)
    assert one["event"] == (shown or event)


def test_only_name_and_message_of_an_exception_are_shown(recent: LogBuffer) -> None:
    try:
        raise ValueError("the disk is on fire")
    except ValueError:
        log.exception("cannot continue")
    (one,) = recent.after(0)
    assert one["fields"] == {"error": "ValueError: the disk is on fire"}
    assert "Traceback" not in str(one)


def test_the_folder_in_an_oserror_is_not_shown(recent: LogBuffer) -> None:
    try:
        Path("/nowhere/a secret/file").read_bytes()
    except OSError:
        log.exception("cannot continue")
    (one,) = recent.after(0)
    assert one["fields"] == {"error": "FileNotFoundError: No such file or directory: file"}


def test_text_from_a_peer_is_escaped(recent: LogBuffer) -> None:
    log.warning("client leaves: %s", "a\nb\x1b[2J\u202e", extra={"reason": "c\r\x9bd"})
    (one,) = recent.after(0)
    assert one["event"] == "client leaves: a\\nb\\x1b[2J\\u202e"
    assert one["fields"] == {"reason": "c\\r\\x9bd"}
