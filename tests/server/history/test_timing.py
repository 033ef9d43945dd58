"""Phases of a step, along the client whose result arrived last; they add up to the step."""

import pytest

from ssfl.server.history.timing import PHASES, StepTimes
from ssfl.server.run.facts import UploadAccepted
from ssfl.server.run.state import Step
from ssfl.strategies.contract import ClientId, Work

QUICK, SLOW = ClientId("quick"), ClientId("slow")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def step(**slow: float) -> Step:
    """A closed step of two clients; `slow` changes the report of the last one."""
    reports = {
        QUICK: {"sent_s": 0.5, "work_s": 1.0, "received_s": 2.0},
        SLOW: {"sent_s": 1.0, "work_s": 5.0, "received_s": 8.0} | slow,
    }
    uploads = {
        client: UploadAccepted(7, client, "", 0.0, report) for client, report in reports.items()
    }
    cohort = {QUICK: 10, SLOW: 10}
    return Step(7, Work.TRAIN, "", 0, 0, cohort, uploads, closed=(QUICK, SLOW))


def timed(done: Step) -> dict[str, float]:
    clock = Clock()
    times = StepTimes(clock, lambda: 1_000_000.0)
    times.begin(7)
    clock.now_s = 110.0
    times.close()
    clock.now_s = 112.0
    times.sum()
    clock.now_s = 112.5
    report = times.report(done)
    assert (report["seconds"], report["last"], report["began"]) == (12.5, SLOW, 1_000_000.0)
    phases: dict[str, float] = report["phases"]
    assert tuple(phases) == PHASES
    assert sum(phases.values()) == pytest.approx(12.5)
    return phases


def test_every_phase_follows_the_last_report() -> None:
    assert timed(step()) == {
        "broadcast": 1.0, "training": 5.0, "collection": 4.0, "aggregation": 2.0, "commit": 0.5,
    }  # fmt: skip


def test_waiting_for_an_absent_client_is_not_broadcast() -> None:
    phases = timed(step(asked_s=3.0, sent_s=3.5, work_s=4.0))
    assert (phases["broadcast"], phases["training"]) == (0.5, 4.0)
    assert phases["collection"] == 10.0 - 4.5


def test_claimed_work_time_is_limited_to_the_step() -> None:
    phases = timed(step(work_s=1e6))
    assert (phases["training"], phases["collection"]) == (9.0, 0.0)


def test_negative_claimed_work_time_counts_as_zero() -> None:
    phases = timed(step(work_s=-1e6))
    assert (phases["training"], phases["collection"]) == (0.0, 9.0)


def test_a_step_that_an_earlier_process_began_is_not_timed() -> None:
    times = StepTimes(Clock())
    assert times.report(step()) == {"seconds": None, "phases": None, "last": None, "began": None}
