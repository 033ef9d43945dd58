"""Every invariant written in state.py is checked, and every check can fail."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from server.core_harness import World
from server.invariants import INVARIANTS, check_invariants
from ssfl.method.settings import RunSettings
from ssfl.server.run import state as module
from ssfl.server.run.state import RunState, Step, StepCounts
from ssfl.strategies.contract import ClientId

C1, C2, C3 = (ClientId(name) for name in ("c1", "c2", "c3"))


def in_round_two() -> World:
    """Return a run in its second round, with one of three uploads."""
    world = World(RunSettings(rounds=3, clients=3, evaluate_every=0, evaluate_last=0), [C1, C2, C3])
    for client in world.clients:
        world.join(client)
    for _ in range(2):  # scores, then round one
        for client in world.clients:
            world.answer(client, open_step(world.state))
        world.deliver()
    world.answer(C1, open_step(world.state))
    return world


def open_step(state: RunState) -> Step:
    assert state.step is not None
    return state.step


def test_every_invariant_in_the_code_is_quoted_and_checked() -> None:
    source = re.sub(r"\n\s*#? ?", " ", inspect.getsource(module))
    written = re.findall(
        r"INVARIANT: (.*?\.)(?= |\Z)(?=\s*(?:\"\"\"|INVARIANT|[A-Za-z_]+:|\S+))", source
    )
    assert sorted(written) == sorted(INVARIANTS)


def _step(**changes: object) -> Callable[[RunState], RunState]:
    return lambda state: replace(state, step=replace(open_step(state), **changes))  # type: ignore[arg-type]


def _with_upload_removed(state: RunState) -> RunState:
    step = open_step(state)
    return replace(state, step=replace(step, uploads={}))


def _with_session(session: int) -> Callable[[RunState], RunState]:
    def changed(state: RunState) -> RunState:
        member = replace(state.members[C1], session=session)
        return replace(state, members={**state.members, C1: member})

    return changed


BREAKS: dict[str, Callable[[RunState], RunState]] = {
    "no two members have the same session.": _with_session(2),
    "the counts of a step equal": _step(counts=StepCounts(2, 2, 1)),
    "step numbers only grow": lambda state: replace(state, last_step=state.last_step - 1),
    "every client of a cohort is a member.": lambda state: replace(
        state,
        step=replace(open_step(state), cohort={**open_step(state).cohort, ClientId("x"): 1}),
    ),
    "no client leaves the cohort": _step(cohort={C1: 10}),
    "accepted uploads come from": _with_upload_removed,
    "a closed step counts exactly": _step(closed=(C2,)),
    "a member never disappears": lambda state: replace(
        state, members={client: state.members[client] for client in (C1, C2)}
    ),
    "the model is described once": lambda state: replace(state, manifest_digest="other"),
    "the mask epoch never falls": lambda state: replace(state, mask_digest="other"),
    "founders are set once.": lambda state: replace(state, founders=(C1,)),
    "rounds_done grows by one": lambda state: replace(state, rounds_done=state.rounds_done + 1),
    "no counted upload belongs": lambda state: replace(state, counted={C1: (99, "digest")}),
    "a finished run has no step": lambda state: replace(state, finished=True),
    "no member has a session after": _with_session(99),
    "num_ready is": lambda state: replace(state, num_ready=state.num_ready + 1),
}


@pytest.mark.parametrize("sentence", INVARIANTS)
def test_a_check_fails_when_its_invariant_is_broken(sentence: str) -> None:
    (change,) = [change for begins, change in BREAKS.items() if sentence.startswith(begins)]
    state = in_round_two().state
    check_invariants(state, state)
    with pytest.raises(AssertionError) as caught:
        check_invariants(state, change(state))
    assert sentence in str(caught.value)
