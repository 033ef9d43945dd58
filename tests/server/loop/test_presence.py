from contextlib import ExitStack

import pytest

from ssfl.server.errors import TooManyCalls
from ssfl.server.loop.presence import LOST_AFTER_S, MAX_CALLS, PresenceTable
from ssfl.strategies.contract import ClientId

C1 = ClientId("c1")


def test_a_client_is_alive_for_three_missed_signs_of_life() -> None:
    sessions = PresenceTable()
    assert not sessions.alive(C1, 0.0), "never heard of"
    sessions.heard(C1, 100.0)
    assert sessions.alive(C1, 100.0 + LOST_AFTER_S - 0.1)
    assert not sessions.alive(C1, 100.0 + LOST_AFTER_S)
    sessions.heard(C1, 200.0)
    assert sessions.alive(C1, 200.0)


def test_an_open_call_keeps_a_client_alive_and_its_end_is_a_sign_of_life() -> None:
    sessions, now_s = PresenceTable(), 0.0
    with sessions.call(C1, lambda: now_s):
        with sessions.call(C1, lambda: now_s):
            now_s = 1000.0
            assert sessions.alive(C1, now_s)
        assert sessions.alive(C1, 5000.0), "one of two calls is still open"
        now_s = 6000.0
    assert sessions.alive(C1, 6000.0 + LOST_AFTER_S - 0.1)
    assert not sessions.alive(C1, 6000.0 + LOST_AFTER_S)


def test_a_client_of_an_earlier_process_counts_as_seen_just_now() -> None:
    sessions = PresenceTable()
    assert sessions.get(C1, 50.0).last_seen_s == 50.0
    assert sessions.get(C1, 70.0).last_seen_s == 50.0
    assert sessions.alive(C1, 79.9)
    assert not sessions.alive(C1, 80.0)


def test_a_call_that_fails_is_closed_too() -> None:
    sessions = PresenceTable()
    try:
        with sessions.call(C1, lambda: 0.0):
            raise RuntimeError
    except RuntimeError:
        pass
    assert sessions.get(C1, 0.0).open_calls == 0


def test_a_client_may_not_exceed_the_limit_of_open_calls() -> None:
    sessions = PresenceTable()
    with ExitStack() as calls:
        for _ in range(MAX_CALLS):
            calls.enter_context(sessions.call(C1, lambda: 0.0))
        with pytest.raises(TooManyCalls, match="c1 has 16 calls open"):
            calls.enter_context(sessions.call(C1, lambda: 0.0))
        calls.enter_context(sessions.call(ClientId("c2"), lambda: 0.0))
    with sessions.call(C1, lambda: 0.0) as presence:
        assert presence.open_calls == 1


def test_a_suspended_process_never_dates_a_sign_of_life_in_the_future() -> None:
    """A client heard from during a suspension counts as seen now, not in the future."""
    sessions = PresenceTable()
    sessions.heard(C1, 1000.0)
    sessions.excuse(900.0, 1001.0)
    assert sessions.silent_s(C1, 1001.0) == 0.0
    assert not sessions.alive(C1, 1001.0 + LOST_AFTER_S)
