"""Client halves that run together, and whose calls are served at once."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ssfl.simulator.joint_work import Ask, Call, OtherCall, work_together


def calls_of(number: int, count: int, ask: Ask) -> list[int]:
    return [ask(OtherCall(lambda i=i: 10 * number + i)) for i in range(count)]  # type: ignore[misc]


def waiting_job() -> tuple[threading.Event, Callable[[Ask], None]]:
    """Return a job that waits for the result of a call, and an event for its end."""
    ended = threading.Event()

    def waits(ask: Ask) -> None:
        try:
            ask(OtherCall(lambda: None))
        finally:
            ended.set()

    return ended, waits


def test_calls_are_served_together_until_every_job_has_ended() -> None:
    served: list[list[int]] = []

    def serve(calls: Mapping[int, Call]) -> dict[int, Any]:
        served.append(list(calls))
        return {number: call.serve() for number, call in calls.items()}  # type: ignore[union-attr]

    jobs = [
        lambda ask: calls_of(0, 1, ask),
        lambda ask: calls_of(1, 3, ask),
        lambda ask: calls_of(2, 0, ask),
        lambda ask: calls_of(3, 2, ask),
    ]
    assert work_together(jobs, serve) == [[0], [10, 11, 12], [], [30, 31]]
    assert served[:3] == [[0, 1, 3], [1, 3], [1]]


def test_the_error_of_a_job_ends_the_others() -> None:
    ended, waits = waiting_job()

    def fails(_ask: Ask) -> None:
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        work_together([waits, fails], dict.fromkeys)
    assert ended.wait(10)


def test_an_error_of_the_server_ends_the_jobs() -> None:
    ended, waits = waiting_job()

    def serve(_calls: Mapping[int, Call]) -> dict[int, Any]:
        raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        work_together([waits], serve)
    assert ended.wait(10)
