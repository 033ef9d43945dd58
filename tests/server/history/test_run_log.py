"""Warnings in the log of a run."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from ssfl.method.settings import RunSettings
from ssfl.server.history.run_history import Newest
from ssfl.server.history.run_log import (
    _committed,
    _log_clipped,
    _log_fingerprints,
    _warn_of_coding,
)
from ssfl.server.run.state import Member, RunState
from ssfl.strategies.contract import ClientId, Work


def entry(coding_error: float, *encodings: str) -> dict[str, Any]:
    clients = [{"client": f"c{n}", "encoding": one} for n, one in enumerate(encodings)]
    return {"coding_error": coding_error, "clients": clients}


def test_a_value_type_that_loses_most_of_an_update_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ssfl.run")
    _warn_of_coding(entry(0.01, "grid", "grid"), "grid")
    assert caplog.records == []
    _warn_of_coding(entry(3.2, "grid"), "grid")
    assert "too coarse" in caplog.text and vars(caplog.records[0])["lost"] == "320%"


def test_updates_in_another_encoding_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ssfl.run")
    _warn_of_coding(entry(0.0, "reference", "values_only"), "float32")
    assert caplog.records == []
    _warn_of_coding(entry(0.01, "int8", "reference"), "int8")
    assert vars(caplog.records[0])["clients"] == "c1"


def member(name: str, fingerprint: str) -> Member:
    return Member(ClientId(name), 1, "t", 10, "m", fingerprint)


def test_clients_with_different_fingerprints_are_logged_in_groups(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ssfl.run")
    same = [member(f"c{n}", "torch, 1 thread") for n in range(7)]
    other = member("d", "torch, 2 threads")
    state = RunState(RunSettings(), members={one.client: one for one in same})
    _log_fingerprints(replace(state, founders=tuple(state.members)))
    assert caplog.records == []
    state = replace(state, members={**state.members, other.client: other})
    _log_fingerprints(replace(state, founders=tuple(state.members)))
    groups = {"torch, 1 thread": "c0, c1, c2, c3, c4 …", "torch, 2 threads": "d"}
    assert vars(caplog.records[0])["fingerprints"] == groups


def test_clipped_updates_are_logged_with_their_norms(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows: list[dict[str, Any]] = [{"client": "c0"}, {"client": "c1", "clipped": 12.5}]
    _log_clipped({"round": 3, "clients": rows[:1]}, 1.0)
    assert caplog.records == []
    _log_clipped({"round": 3, "clients": rows}, 1.0)
    record = vars(caplog.records[0])
    assert (record["round"], record["limit"], record["norms"]) == (3, 1.0, "c1 12.5")


def test_the_coding_error_is_logged_with_three_digits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ssfl.run")
    tested: dict[str, Any] = {"pooled": None, "loss": None, "metrics": {}}
    newest = {**entry(0.012345678901234, "int8"), "round": 3, "training_loss": 1.0, **tested}
    _committed(
        RunState(RunSettings(value_type="int8")), Newest(last_work=Work.TRAIN, newest_round=newest)
    )
    assert vars(caplog.records[0])["coding_error"] == "0.0123"
