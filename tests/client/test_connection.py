"""Reconnect backoff and watchdog."""

import logging
import threading
import time

import pytest

from client.fakes import FakeCall
from ssfl.client.connection import FIRST_PAUSE_S, LONGEST_PAUSE_S, ReconnectBackoff, Watchdog
from ssfl.client.errors import Unavailable
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.tls.probe import Finding

GONE = Unavailable("connection refused")


class Clock:
    """A clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


def backoff(clock: Clock, give_up_after_s: float = 600.0) -> ReconnectBackoff:
    return ReconnectBackoff("there:1", give_up_after_s, clock, clock.sleep)


def test_the_client_gives_up_after_the_deadline_and_names_it() -> None:
    clock = Clock()
    waiting = backoff(clock)
    with pytest.raises(ProgramError) as caught:
        while True:
            waiting.wait(GONE)
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert "there:1 for 600 s (--give-up-after): connection refused" in str(caught.value)
    assert sum(clock.pauses) == pytest.approx(600.0), "exactly until the deadline"


def test_pauses_grow_and_are_random() -> None:
    clock = Clock()
    waiting = backoff(clock, 1e6)
    for _ in range(200):
        waiting.wait(GONE)
    longest = FIRST_PAUSE_S
    for pause_s in clock.pauses:
        assert 0.1 <= pause_s <= longest
        longest = min(2 * longest, LONGEST_PAUSE_S)
    late = clock.pauses[20:]
    assert max(late) > 0.8 * LONGEST_PAUSE_S
    assert min(late) < 0.2 * LONGEST_PAUSE_S, "full jitter: clients must not return together"


def test_reaching_the_coordinator_resets_the_deadline_and_the_pauses() -> None:
    clock = Clock()
    waiting = backoff(clock)
    for _ in range(15):
        waiting.wait(GONE)
    waiting.reached()
    clock.now_s += 10_000.0
    waiting.wait(GONE)
    assert clock.pauses[-1] <= FIRST_PAUSE_S


def test_each_retry_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    waiting = backoff(Clock())
    waiting.reached()
    assert caplog.records == [], "without a failure nothing is logged"
    waiting.wait(GONE)
    waiting.reached()
    warning, back = caplog.records
    assert warning.levelno == logging.WARNING
    assert vars(warning)["giving_up_in_s"] == 600
    assert vars(warning)["error"] == "connection refused"
    assert back.getMessage() == "reached the coordinator"


CLOSED = Finding("the coordinator speaks TLS", final=True)


def test_a_final_problem_ends_a_client_that_was_never_connected() -> None:
    clock = Clock()
    waiting = ReconnectBackoff("there:1", 600.0, clock, clock.sleep, lambda: CLOSED)
    with pytest.raises(ProgramError, match="speaks TLS") as caught:
        waiting.wait(GONE)
    assert caught.value.exit_code is ExitCode.REFUSED
    assert clock.pauses == []


def test_a_client_that_was_connected_retries_and_logs_the_problem(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    waiting = ReconnectBackoff("there:1", 600.0, clock, clock.sleep, lambda: CLOSED)
    waiting.reached()
    waiting.wait(GONE)
    assert clock.pauses != []
    assert [vars(record)["error"] for record in caplog.records] == ["the coordinator speaks TLS"]


def test_a_temporary_problem_is_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    busy = Finding("connection refused", final=False)
    ReconnectBackoff("there:1", 600.0, clock, clock.sleep, lambda: busy).wait(GONE)
    assert [vars(record)["error"] for record in caplog.records] == ["connection refused"]


class Cancellable(FakeCall):
    """A call that blocks until it is cancelled."""

    def __init__(self) -> None:
        super().__init__([])
        self.over = threading.Event()

    def cancel(self) -> None:
        super().cancel()
        self.over.set()


def test_a_call_without_progress_is_cancelled() -> None:
    call = Cancellable()
    with Watchdog(0.05).watch(call):
        assert call.over.wait(30)
    assert call.cancelled


def test_a_call_with_progress_is_not_cancelled() -> None:
    call = Cancellable()
    watchdog = Watchdog(1.0)
    end_s = time.monotonic() + 1.5
    with watchdog.watch(call):
        while time.monotonic() < end_s:
            watchdog.feed()
            call.over.wait(0.01)
    assert not call.cancelled


def test_the_watchdog_starts_and_ends_with_its_block() -> None:
    watchdog = Watchdog(0.2)
    threading.Event().wait(0.3)  # longer than the watchdog allows, but outside `watch`
    call = Cancellable()
    with watchdog.watch(call):
        pass
    assert not call.over.wait(0.3)
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}
