"""Two processes that join under one id at the same moment: one gets in."""

from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId
from ssfl.server.run.events import Joined, Reply
from ssfl.server.run.machine import advance
from ssfl.server.run.state import RunState

C1 = ClientId("c1")


def joined(token: str, seen_session: int) -> Joined:
    return Joined(C1, token, 10, "", "f", seen_session=seen_session)


def test_the_second_of_two_tokens_that_saw_nobody_is_refused() -> None:
    state, _, first = advance(RunState(RunSettings()), joined("aa", 0), 1.0)
    state, actions, second = advance(state, joined("bb", 0), 1.0)
    assert (first, second) == (Reply.DONE, Reply.CONFLICT)
    assert actions == []
    assert state.members[C1].token == "aa"


def test_the_same_token_may_come_again_whatever_it_saw() -> None:
    state, _, _ = advance(RunState(RunSettings()), joined("aa", 0), 1.0)
    state, _, again = advance(state, joined("aa", 0), 1.0)
    assert again is Reply.DONE
    assert state.members[C1].session == 2


def test_another_token_takes_over_from_the_session_that_was_seen_dead() -> None:
    state, _, _ = advance(RunState(RunSettings()), joined("aa", 0), 1.0)
    state, _, taken = advance(state, joined("bb", 1), 1.0)
    assert taken is Reply.DONE
    assert state.members[C1].token == "bb"
