"""What is worth a warning in the log."""

import logging
from typing import Any

import pytest

from ssfl.server.story import _warn_of_coding


def entry(coding_error: float, *encodings: str) -> dict[str, Any]:
    clients = [{"client": f"c{n}", "encoding": one} for n, one in enumerate(encodings)]
    return {"coding_error": coding_error, "clients": clients}


def test_a_value_type_that_loses_most_of_the_updates_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ssfl.run")
    _warn_of_coding(entry(0.01, "grid", "grid"), "grid")
    assert caplog.records == []
    _warn_of_coding(entry(3.2, "grid"), "grid")
    assert "too coarse" in caplog.text and vars(caplog.records[0])["lost"] == "320%"


def test_updates_that_came_otherwise_than_the_run_asks_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ssfl.run")
    _warn_of_coding(entry(0.0, "reference", "values_only"), "float32")
    assert caplog.records == []
    _warn_of_coding(entry(0.01, "int8", "reference"), "int8")
    assert vars(caplog.records[0])["clients"] == "c1"
