"""Who owns a name: the token that joined with it first."""

import pytest

from ssfl.method.settings import RunSettings
from ssfl.server.run.events import Event, Joined, Left, Lost, RemoveAsked, Reply
from ssfl.server.run.machine import advance
from ssfl.server.run.state import RunState
from ssfl.strategies.contract import ClientId

C1 = ClientId("c1")


def joined(token: str, *, name_proven: bool = False) -> Joined:
    return Joined(C1, token, 10, "", "f", name_proven=name_proven)


def test_the_second_of_two_tokens_is_refused() -> None:
    state, _, first = advance(RunState(RunSettings()), joined("aa"), 1.0)
    state, actions, second = advance(state, joined("bb"), 1.0)
    assert (first, second) == (Reply.DONE, Reply.CONFLICT)
    assert actions == []
    assert state.members[C1].token == "aa"


def test_the_same_token_may_join_again() -> None:
    state, _, _ = advance(RunState(RunSettings()), joined("aa"), 1.0)
    state, _, again = advance(state, joined("aa"), 1.0)
    assert again is Reply.DONE
    assert state.members[C1].session == 2


@pytest.mark.parametrize("event", [Left(C1, finished=False), Lost(C1), RemoveAsked(C1)])
def test_a_client_that_is_away_keeps_its_name(event: Event) -> None:
    state, _, _ = advance(RunState(RunSettings()), joined("aa"), 1.0)
    state, _, _ = advance(state, event, 2.0)
    state, _, other = advance(state, joined("bb"), 100.0)
    assert other is Reply.CONFLICT
    assert state.members[C1].token == "aa"


def test_another_token_takes_a_name_that_a_certificate_proves() -> None:
    state, _, _ = advance(RunState(RunSettings()), joined("aa"), 1.0)
    state, _, taken = advance(state, joined("bb", name_proven=True), 1.0)
    assert taken is Reply.DONE
    assert state.members[C1].token == "bb"


@pytest.mark.parametrize("before", [(False, True), (True,), (True, True)])
def test_the_next_token_owns_a_name_that_an_operator_readmitted(before: tuple[bool, ...]) -> None:
    state, _, _ = advance(RunState(RunSettings()), joined("aa"), 1.0)
    for readmit in before:
        state, _, _ = advance(state, RemoveAsked(C1, readmit=readmit), 2.0)
    state, _, taken = advance(state, joined("bb"), 3.0)
    assert taken is Reply.DONE
    state, _, late = advance(state, joined("aa"), 4.0)
    assert late is Reply.CONFLICT
    assert state.members[C1].token == "bb"


def test_a_name_that_was_removed_before_its_client_joined_can_be_readmitted() -> None:
    state = RunState(RunSettings())
    for readmit in (False, True):
        state, _, _ = advance(state, RemoveAsked(C1, readmit=readmit), 1.0)
    state, _, entered = advance(state, joined("aa"), 2.0)
    assert entered is Reply.DONE and not state.removed
