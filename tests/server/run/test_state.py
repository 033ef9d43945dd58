from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest

from ssfl.method.settings import RunSettings
from ssfl.server.run import facts
from ssfl.server.run.apply import apply
from ssfl.server.run.events import Reply
from ssfl.server.run.facts import Fact
from ssfl.server.run.machine import late_reply
from ssfl.server.run.quorum import final_model_delivered
from ssfl.server.run.state import Phase, RunState
from ssfl.server.run.waiting import waiting_for
from ssfl.strategies.contract import ClientId, Work

C1, C2 = ClientId("c1"), ClientId("c2")
NEW = RunState(RunSettings())
OPENED = facts.RunOpened("r1", {}, "0.1.0")
INITIALIZED = facts.ModelInitialized(C1, "m", "i", 0, "", 0, "")
SCORE = facts.StepStarted(1, Work.SCORE, "saliency", 0, 0, {C1: 10, C2: 20})
TRAIN = facts.StepStarted(2, Work.TRAIN, "", 0, 0, {C1: 10, C2: 20})
EVALUATE = facts.StepStarted(3, Work.EVALUATE, "", 1, 0, {C1: 10, C2: 20})


def joined(client: ClientId, session: int, model: str = "m") -> facts.ClientJoined:
    return facts.ClientJoined(client, session, "t", 10, model, "f")


def committed(step: int, base: str) -> facts.StepCommitted:
    return facts.StepCommitted(step, 1, "k", 5, base)


def accepted(step: int, client: ClientId) -> facts.UploadAccepted:
    report = {"training_loss": 1.0, "evaluation": {"correct": 5, "total": 10, "loss_sum": 20.0}}
    return facts.UploadAccepted(step, client, f"d{client}", 1.0, report)


def after(*new_facts: Fact, state: RunState = NEW) -> RunState:
    return reduce(apply, new_facts, state)


def test_a_run_gathers_scores_trains_evaluates_and_ends() -> None:
    story: list[tuple[Fact, Phase]] = [
        (OPENED, Phase.GATHERING),
        (joined(C1, 1), Phase.GATHERING),
        (joined(C2, 2), Phase.GATHERING),
        (INITIALIZED, Phase.GATHERING),
        (facts.RunStarted((C1,)), Phase.WAITING),
        (SCORE, Phase.SCORE),
        (committed(1, "b1"), Phase.WAITING),
        (TRAIN, Phase.TRAIN),
        (accepted(2, C1), Phase.TRAIN),
        (facts.StepClosed(2, (C1,), (C2,)), Phase.TRAIN),
        (committed(2, "b2"), Phase.WAITING),
        (EVALUATE, Phase.EVALUATE),
        (committed(3, "b2"), Phase.WAITING),
        (facts.RunFinished(stopped=False), Phase.FINISHED),
    ]
    state = NEW
    for fact, phase in story:
        state = apply(state, fact)
        assert state.phase is phase, fact
    assert (state.run_id, state.founders, state.last_step) == ("r1", (C1,), 3)
    assert (state.rounds_done, state.rounds_evaluated, state.model_step) == (1, 1, 2)
    assert (state.mask_epoch, state.num_kept, state.base_digest) == (1, 5, "b2")


def test_replaced_sessions_are_remembered_until_the_name_changes_hands() -> None:
    again = after(*(joined(C1, number) for number in range(1, 20)), joined(C2, 20))
    assert again.members[C1].replaced == tuple(range(3, 19))
    assert again.members[C2].replaced == ()
    other = replace(joined(C1, 21), token="u")
    assert after(other, state=again).members[C1].replaced == ()
    readmitted = after(facts.ClientReadmitted(C1), joined(C1, 21), state=again)
    assert readmitted.members[C1].replaced == ()


def test_applying_a_fact_does_not_change_the_old_state() -> None:
    before = after(joined(C1, 1), TRAIN)
    copy = replace(before)
    after(accepted(2, C1), joined(C2, 2), state=before)
    assert before == copy
    assert before.step is not None and not before.step.uploads


def test_members_are_ready_when_they_built_the_runs_model_and_have_not_left() -> None:
    state = after(joined(C2, 1), joined(C1, 2), joined(ClientId("c3"), 3, model=""))
    assert state.ready == [], "the run's model is not known"
    state = apply(state, INITIALIZED)
    assert state.ready == [C1, C2]
    assert apply(state, facts.ClientLeft(C1, finished=False)).ready == [C2]
    assert after(joined(C2, 4, model="other"), state=state).ready == [C1]


def test_joining_again_is_a_new_session_of_the_same_member() -> None:
    state = after(joined(C1, 1), joined(C2, 2), facts.ClientLeft(C1, finished=True))
    assert state.members[C1].left and state.members[C1].has_final_model
    state = apply(replace(state, lost=frozenset({C1, C2})), joined(C1, 3))
    assert not state.members[C1].left
    assert state.members[C1].has_final_model, "it still has the model it stored"
    assert (state.members[C1].session, state.last_session) == (3, 3)
    assert state.lost == {C2}
    assert list(state.members) == [C1, C2]


def test_a_step_waits_for_clients_of_its_cohort_that_have_not_reported() -> None:
    state = after(TRAIN)
    assert state.step is not None and state.step.pending == {C1, C2}
    state = apply(state, accepted(2, C2))
    assert state.step is not None and state.step.pending == {C1}
    assert state.step.uploads[C2].digest == "dc2"


def test_attempts_count_voids_until_a_step_commits() -> None:
    void = facts.StepVoided(2, "no client")
    state = after(TRAIN, void, TRAIN, void)
    assert (state.attempt, state.step, state.rounds_done) == (2, None, 0)
    state = after(TRAIN, committed(2, "b"), state=state)
    assert (state.attempt, state.rounds_done) == (0, 1)


def test_only_training_makes_rounds_and_only_evaluation_marks_them_evaluated() -> None:
    scored = after(joined(C1, 1), joined(C2, 2), SCORE, committed(1, "b1"))
    assert (scored.rounds_done, scored.rounds_evaluated, scored.model_step) == (0, 0, 1)
    trained = after(TRAIN, committed(2, "b2"), state=scored)
    assert (trained.rounds_done, trained.rounds_evaluated, trained.model_step) == (1, 0, 2)
    evaluated = after(EVALUATE, committed(3, "b2"), state=trained)
    assert (evaluated.rounds_done, evaluated.rounds_evaluated, evaluated.model_step) == (1, 1, 2)


def test_labels_of_all_clients_that_were_asked_to_vote_are_known() -> None:
    """A client that brings a label back brings nothing new, even if its first owner left."""
    with_labels = [replace(joined(C1, 1), labels=(0, 1)), replace(joined(C2, 2), labels=(1, 2))]
    state = after(*with_labels, SCORE, committed(1, "b1"))
    assert state.known_labels == {0, 1, 2}
    gone = after(
        facts.ClientLeft(C2, finished=False),
        replace(SCORE, step=4, cohort={C1: 10}),
        replace(committed(4, "b4"), mask_epoch=2),
        state=state,
    )
    assert gone.known_labels == {0, 1, 2}
    assert gone.mask_epoch == 2


def test_a_requested_stop_is_remembered_until_the_sum_is_done() -> None:
    state = after(TRAIN, facts.StopRequested())
    assert state.stop_asked and not state.finished
    state = apply(state, facts.RunFinished(stopped=True))
    assert (state.finished, state.stopped, state.step) == (True, True, None)


@pytest.mark.parametrize(
    "fact", [accepted(1, C1), facts.StepClosed(1, (), ()), committed(1, "b")], ids=str
)
def test_a_fact_about_a_step_that_is_not_open_is_an_error(fact: Fact) -> None:
    with pytest.raises(ValueError, match="a step that is not open"):
        apply(NEW, fact)


def test_an_upload_of_the_last_step_that_counted_is_remembered() -> None:
    """A client whose receipt was lost asks after the commit, and is answered that it counted."""
    closed = facts.StepClosed(2, (C1,), (C2,))
    state = after(TRAIN, accepted(2, C1), closed, committed(2, "b"))
    assert late_reply(state, 2, C1, "dc1") is Reply.ALREADY_ACCEPTED
    assert late_reply(state, 2, C1, "other") is Reply.STEP_CLOSED
    assert late_reply(state, 2, C2, "dc2") is Reply.STEP_CLOSED
    assert late_reply(state, 1, C1, "dc1") is Reply.STEP_CLOSED
    evaluated = after(EVALUATE, committed(3, "b"), state=state)
    assert late_reply(evaluated, 2, C1, "dc1") is Reply.ALREADY_ACCEPTED
    others = (replace(TRAIN, step=4), accepted(4, C2), facts.StepClosed(4, (C2,), (C1,)))
    later = after(*others, committed(4, "b4"), state=state)
    assert late_reply(later, 2, C1, "dc1") is Reply.ALREADY_ACCEPTED, "two steps later, too"
    assert late_reply(later, 4, C2, "dc2") is Reply.ALREADY_ACCEPTED
    voided = after(TRAIN, accepted(2, C1), facts.StepVoided(2, "too few"))
    assert late_reply(voided, 2, C1, "dc1") is Reply.STEP_CLOSED


def test_the_final_model_is_delivered_when_each_member_has_it_or_is_away() -> None:
    present = after(OPENED, joined(C1, 1), joined(C2, 2))
    with_model = replace(present.members[C1], has_final_model=True)
    one_has_it = replace(present, finished=True, members={**present.members, C1: with_model})
    assert not final_model_delivered(replace(one_has_it, finished=False))
    assert not final_model_delivered(one_has_it), "c2 has not got it"
    assert final_model_delivered(replace(one_has_it, lost=frozenset({C2})))
    assert final_model_delivered(replace(one_has_it, removed=frozenset({C2})))
    left = replace(present.members[C2], left=True)
    assert final_model_delivered(replace(one_has_it, members={C1: with_model, C2: left}))


class _Unwalked(dict[ClientId, Any]):
    """A mapping that may be searched, not walked over."""

    def __iter__(self) -> Iterator[ClientId]:
        raise AssertionError("a walk over all clients")


def test_each_waiting_client_gets_the_number_of_clients_without_a_walk_over_them() -> None:
    state = after(OPENED, joined(C1, 1), joined(C2, 2), INITIALIZED)
    paused = after(facts.RunPaused(0.0), state=state)
    expected = replace(state, settings=replace(state.settings, clients=3))
    unwalked = [replace(one, members=_Unwalked(one.members)) for one in (state, paused, expected)]
    quiet, stopped, few = (waiting_for(one, now_s=0.0) for one in unwalked)
    assert quiet.startswith("more clients: 2 have joined")
    assert stopped.endswith("clients that have joined: 2")
    assert few == "clients: 2 of 3 have joined"


def test_each_waiting_client_gets_the_first_pending_names_without_a_walk_over_all_uploads() -> None:
    names = [ClientId(f"c{number}") for number in range(1, 9)]
    members = [joined(name, number) for number, name in enumerate(names, 1)]
    started = replace(SCORE, cohort=dict.fromkeys(names, 1))
    state = after(OPENED, *members, INITIALIZED, started, accepted(1, C2), accepted(1, names[7]))
    assert state.step is not None
    state = replace(state, step=replace(state.step, uploads=_Unwalked(state.step.uploads)))
    assert waiting_for(state, now_s=0.0) == "score of c1, c3, c4, c5, c6 and 1 more"
