"""The newest log records, kept for those who watch: bounded, and without secrets."""

import logging
from collections.abc import Iterator

import pytest

from ssfl.program.recent import (
    EVENT_CHARACTERS,
    FIELD_CHARACTERS,
    MOST,
    MOST_FIELDS,
    MOST_GRAVE,
    Recent,
)

log = logging.getLogger("ssfl.test")


@pytest.fixture
def recent() -> Iterator[Recent]:
    ours = logging.getLogger("ssfl")
    level = ours.level
    ours.setLevel(logging.INFO)
    kept = Recent()
    kept.begin()
    yield kept
    kept.end()
    ours.setLevel(level)


def test_records_are_numbered_and_told_from_a_number_on(recent: Recent) -> None:
    log.info("round committed", extra={"round": 3, "client": "c7"})
    log.warning("client lost")
    log.debug("not worth a line")
    first, second = recent.after(0)
    assert (first["number"], first["level"], first["event"]) == (1, "info", "round committed")
    assert first["fields"] == {"round": 3, "client": "c7"}
    assert (second["number"], second["level"]) == (2, "warning")
    assert recent.after(1) == [second] and recent.after(2) == []
    assert recent.last_number == 2


def test_only_our_own_loggers_are_heard_and_only_until_the_end(recent: Recent) -> None:
    logging.getLogger("grpc").error("somebody else's")
    recent.end()
    log.error("too late")
    assert recent.after(0) == []


def test_routine_pushes_out_routine_but_not_errors(recent: Recent) -> None:
    for number in range(MOST_GRAVE + 5):
        log.error("failure %d", number)
    for number in range(2 * MOST):
        log.info("round %d", number)
    told = recent.after(0)
    assert len(told) == MOST + MOST_GRAVE
    assert told[0]["event"] == "failure 5" and told[-1]["event"] == f"round {2 * MOST - 1}"
    assert [one["number"] for one in told] == sorted({one["number"] for one in told})


def test_a_record_has_a_bounded_size(recent: Recent) -> None:
    many = {f"field_{number}": "x" * 10_000 for number in range(100)}
    log.info("y" * 100_000, extra=many)
    (one,) = recent.after(0)
    assert len(one["event"]) == EVENT_CHARACTERS
    assert len(one["fields"]) == MOST_FIELDS
    assert {len(value) for value in one["fields"].values()} == {FIELD_CHARACTERS}


def test_secrets_and_where_they_lie_are_left_out(recent: Recent) -> None:
    secrets = {"join_token_file": "/secret", "tls_key": "/secret", "session_token": "secret"}
    log.info("configuration", extra={"port": 1, **secrets})
    (one,) = recent.after(0)
    assert one["fields"] == {"port": 1}


def test_of_an_exception_its_sentence_is_told_and_no_code(recent: Recent) -> None:
    try:
        raise ValueError("the disk is on fire")
    except ValueError:
        log.exception("cannot go on")
    (one,) = recent.after(0)
    assert one["fields"] == {"error": "ValueError: the disk is on fire"}
    assert "Traceback" not in str(one)
