"""Watching a run, and giving it up when it makes no progress."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from ssfl.program.exits import ProgramError
from ssfl.tools.local.local_run import _watch
from ssfl.tools.terminal import console
from ssfl.v1 import admin_pb2


class Watched:
    """A federation whose status comes from a list; the last one repeats."""

    folder = Path("runs/demo")

    gone: ClassVar[list[str]] = []

    def __init__(self, *statuses: admin_pb2.GetStatusResponse) -> None:
        self.statuses = list(statuses)
        self.admin = self

    def ended(self) -> list[str]:
        return self.gone

    def status(self) -> admin_pb2.GetStatusResponse:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]


def status(steps: int, **fields: Any) -> admin_pb2.GetStatusResponse:
    clients = [admin_pb2.ClientStatus(client_id="a", steps_done=steps)]
    return admin_pb2.GetStatusResponse(phase="train", clients=clients, **fields)


def watch(monkeypatch: pytest.MonkeyPatch, *statuses: admin_pb2.GetStatusResponse) -> None:
    """Watch with a clock that advances 100 s at every poll; the limit without progress is 300 s."""
    clock = iter(range(0, 100_000, 100))
    monkeypatch.setattr("ssfl.tools.local.local_run.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("ssfl.tools.local.local_run.time.sleep", lambda _seconds: None)
    _watch(Watched(*statuses), console(), "ssfl")  # type: ignore[arg-type]


def test_a_run_without_progress_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProgramError, match=r"no progress for 300 s, waiting for b; .*runs/demo"):
        watch(monkeypatch, status(7, waiting_for="b"))


def test_training_steps_of_a_client_count_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = [status(steps) for steps in range(50)]
    watch(monkeypatch, *moving, status(50, delivered=True))


def test_a_client_that_ends_before_the_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watched, "gone", ["shard_03"])
    with pytest.raises(ProgramError, match="shard_03 ended before the run was over; does its task"):
        watch(monkeypatch, status(7))
    over = admin_pb2.GetStatusResponse(phase="finished")
    watch(monkeypatch, over, status(7, delivered=True))
