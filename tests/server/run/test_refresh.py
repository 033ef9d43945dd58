"""Unit tests of the mask refresh rules and of model quality."""

from dataclasses import replace
from typing import Any

import pytest

from server.core_harness import World
from ssfl.method.settings import RunSettings
from ssfl.server.run import facts
from ssfl.server.run.quality import chosen_on, mean_client_loss, quality
from ssfl.server.run.refresh import has_mask, no_round_left, refresh_due
from ssfl.server.run.state import Member, RunState, Step
from ssfl.strategies.contract import ClientId, Work

C1, C2 = ClientId("c1"), ClientId("c2")
STATE = RunState(RunSettings(rounds=20), mask_epoch=1, rounds_done=6, masked_round=2)


def due(state: RunState = STATE, **settings: Any) -> str:
    return refresh_due(replace(state, settings=replace(state.settings, **settings)))


def test_no_refresh_is_due_unless_configured_or_requested() -> None:
    assert due() == ""
    assert due(replace(STATE, refresh_asked=True)) == "asked for by the operator"


def test_refresh_rounds_refer_to_the_next_round() -> None:
    assert due(refresh_rounds="6") == "before round 6, as set"
    assert due(refresh_rounds="5,7") == ""
    assert due(refresh_every=3) == "every 3 rounds, as set"
    assert due(refresh_every=4) == ""


@pytest.mark.parametrize("settings", [{"refresh_rounds": "6"}, {"refresh_every": 2}])
def test_a_new_mask_is_not_refreshed_automatically(settings: dict[str, Any]) -> None:
    assert due(**settings)
    assert due(replace(STATE, masked_round=6), **settings) == ""
    asked = replace(STATE, masked_round=6, refresh_asked=True)
    assert due(asked, **settings) == "asked for by the operator"


def test_a_schedule_is_compared_with_the_sparsity_of_the_current_mask() -> None:
    assert due(sparsity_schedule="0:0.9,5:0.8") == "sparsity 0.8 from round 6 on, as set"
    assert due(sparsity_schedule="0:0.9,2:0.8") == ""
    assert due(sparsity_schedule="0:0.9,7:0.8") == ""


def test_no_refresh_is_due_without_a_mask_or_a_further_round() -> None:
    asked, settings = replace(STATE, refresh_asked=True), {"refresh_every": 1}
    for state in (
        replace(asked, mask_epoch=0),
        replace(asked, rounds_done=20),
        replace(asked, end_reason="good enough"),
    ):
        assert due(state, **settings) == ""
    assert due(asked, warmup_rounds=3, **settings) == "", "the mask of a warm-up is none"
    warm = replace(asked, mask_epoch=2)
    assert due(warm, warmup_rounds=3, **settings) == "asked for by the operator"


def test_dense_runs_and_runs_with_client_masks_have_no_mask_to_refresh() -> None:
    assert has_mask(STATE)
    for changes in ({"strategy": "fedavg"}, {"criterion": "client-random"}):
        settings = replace(STATE.settings, **changes)  # type: ignore[arg-type]
        assert not has_mask(replace(STATE, settings=settings))


def test_the_open_round_counts_as_started() -> None:
    last = replace(STATE, rounds_done=19)
    train = Step(9, Work.TRAIN, "", 19, 0, {C1: 1}, uploads={})
    assert not no_round_left(last)
    assert no_round_left(replace(last, step=train))
    assert not no_round_left(replace(last, step=replace(train, work=Work.EVALUATE)))
    assert no_round_left(replace(STATE, end_reason="good enough"))


def jump(*losses: float, factor: float = 2.0) -> str:
    return due(replace(STATE, losses=losses), refresh_on_loss_jump=factor)


def test_a_loss_jump_needs_three_earlier_rounds() -> None:
    assert jump(1, 1, 9) == ""
    assert jump(1, 1, 1, 9) == "the mean client loss rose to 9, usual was 1"
    assert due(replace(STATE, losses=(1, 1, 1, 9))) == "", "unless it is not set"


def test_a_loss_jump_is_relative_to_the_median_of_five_earlier_rounds() -> None:
    assert jump(1, 1, 1, 2)
    assert jump(1, 1, 1, 1.99) == ""
    assert jump(1, 9, 9, 9, 1, 1, 2) == "", "of 9, 9, 9, 1, 1"
    assert jump(9, 1, 1, 9, 1, 1, 2), "of 1, 1, 9, 1, 1"
    assert jump(1, 1, 1, 1.5, factor=1.5)


def test_a_loss_that_does_not_rise_is_not_a_jump_even_if_the_usual_loss_is_zero_or_negative() -> (
    None
):
    """A multiple of zero is zero; a multiple of a negative loss is lower."""
    assert jump(0, 0, 0, 0) == ""
    assert jump(-1, -1, -1, -1) == "" and jump(-1, -1, -1, -1.5) == ""
    assert jump(0, 0, 0, 0.1) == "the mean client loss rose to 0.1, usual was 0"


def labelled(lost: frozenset[ClientId] = frozenset(), left: bool = False) -> RunState:
    members = {
        C1: Member(C1, 1, "t", 10, "m", "cpu", labels=(0, 1)),
        C2: Member(C2, 2, "t", 10, "m", "cpu", labels=(1, 8, 9), left=left),
    }
    return replace(
        STATE, members=members, manifest_digest="m", known_labels=frozenset({0, 1}), lost=lost
    )


def test_labels_are_new_if_no_voter_had_them_and_their_client_is_available() -> None:
    new = {"refresh_on_new_labels": True}
    assert due(labelled(), **new) == "new labels: 8, 9"
    assert due(labelled()) == "", "unless it is not set"
    assert due(labelled(lost=frozenset({C2})), **new) == ""
    assert due(labelled(left=True), **new) == ""
    known = replace(labelled(), known_labels=frozenset({0, 1, 8, 9}))
    assert due(known, **new) == ""
    silent = replace(labelled(), known_labels=frozenset())
    assert due(silent, **new) == "", "no client reported its labels before"


# -- whole runs


RUNS: dict[str, tuple[dict[str, Any], list[tuple[int, str]]]] = {
    "once": ({}, [(0, "")]),
    "set": ({"refresh_rounds": "1,5"}, [(0, ""), (1, "before"), (5, "before")]),
    "every": ({"refresh_every": 2}, [(0, ""), (2, "every"), (4, "every")]),  # not after the last
    "both": ({"refresh_every": 2, "refresh_rounds": "4"}, [(0, ""), (2, "every"), (4, "before")]),
    "warm": ({"warmup_rounds": 3}, [(3, "")]),
    "warm, then every": ({"warmup_rounds": 2, "refresh_every": 2}, [(2, ""), (4, "every")]),
    "scheduled": (
        {"sparsity_schedule": "0:0.9,2:0.8,5:0.8"}, [(0, ""), (2, "sparsity")],
    ),
    "alone": ({"criterion": "random", "refresh_every": 3}, [(0, ""), (3, "every")]),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_run_agrees_on_masks_at_exactly_these_rounds(name: str) -> None:
    changes, expected = RUNS[name]
    settings = replace(RunSettings(rounds=6, clients=2, evaluate_every=0), **changes)
    settings.validate()
    world = World(settings, [C1, C2])
    world.finish_calmly()
    journal = [facts.from_json(record) for record in world.journal]
    agreed = [
        (fact.round_number, fact.reason.split(" ")[0])
        for fact in journal
        if isinstance(fact, facts.StepStarted) and fact.work is Work.SCORE
    ]
    assert agreed == expected
    assert world.state.mask_epoch == len(expected) + (settings.warmup_rounds > 0)


# -- quality


def evaluation_of(correct: int | None, total: int, loss_sum: float = 0.0) -> dict[str, Any]:
    return {"correct": correct, "total": total, "loss_sum": loss_sum}


def test_accuracy_and_loss_are_over_all_samples() -> None:
    def found(*tested: dict[str, Any]) -> tuple[float | None, float | None]:
        return quality([{"evaluation": one} for one in tested])

    assert found(evaluation_of(1, 2, 3.0), evaluation_of(9, 10, 6.0), evaluation_of(0, 0)) == (
        10 / 12,
        9 / 12,
    )
    assert found(evaluation_of(None, 4, 2.0)) == (None, 0.5)
    assert found() == found(evaluation_of(0, 0)) == (None, None)


def test_validation_decides_only_if_every_client_has_it() -> None:
    both = [{"evaluation": evaluation_of(9, 10), "validation": evaluation_of(1, 10)}] * 2
    assert chosen_on(both) == "validation" and quality(both)[0] == 0.1
    others: list[dict[str, Any]] = [{}, {"validation": None}, {"validation": evaluation_of(0, 0)}]
    for other in others:
        some: list[dict[str, Any]] = [*both, {"evaluation": evaluation_of(9, 10), **other}]
        assert chosen_on(some) == "test" and quality(some)[0] == 0.9
    assert chosen_on([]) == "test"


def test_the_loss_of_a_round_is_the_unweighted_mean_training_loss() -> None:
    """Test samples decide nothing: evaluations of the base are ignored."""
    reports = [
        {"evaluation": evaluation_of(0, 100, 900.0), "training_loss": 1.0},
        {"evaluation": evaluation_of(0, 1, 9.0), "training_loss": 1.0},
        {"evaluation": evaluation_of(0, 0), "training_loss": 4.0},
    ]
    assert mean_client_loss(reports) == 2.0
    assert mean_client_loss([]) is None
