"""Top-k weights: which weights a client sends, and what the union becomes."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.method.errors import DensityError, SettingsError
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import (
    Answer,
    ClientId,
    Position,
    Received,
    Reduced,
    Reducer,
    StepDone,
    Work,
)
from ssfl.strategies.methods.topk_weights import kept_old, largest_weights, union
from ssfl.strategies.registry import check_settings, strategy_for
from strategies.fakes import (
    SMALL,
    FakeMemory,
    FakeSite,
    floats,
    ignore,
    mask_of,
    model,
    rule_of,
    strategy_of,
    vector,
)
from strategies.steps import NoUploads

HALF = RunSettings(sparsity="0.5")  # two of four weights are sent


def kept(mask: Mask | None) -> list[int]:
    assert mask is not None
    return np.flatnonzero(mask.bools()).tolist()


def votes(*counts: int) -> npt.NDArray[np.int64]:
    return np.array(counts, dtype=np.int64)


# -- arithmetic


def test_the_largest_magnitudes_are_sent_over_all_layers() -> None:
    assert kept(largest_weights(vector(1, -9, 2, -3, 99, 99), 2, 4)) == [1, 3]
    assert kept(largest_weights(vector(-1, -9, -2, -3, 0, 0), 3, 4)) == [1, 2, 3], "all negative"


def test_of_equal_weights_the_first_are_sent() -> None:
    assert kept(largest_weights(vector(2, -2, 2, 1), 2, 4)) == [0, 1]
    assert kept(largest_weights(vector(0, -0.0, 0, 5), 2, 4)) == [0, 3]
    assert kept(largest_weights(vector(0, 0, 0, 0), 1, 4)) == [0]


def test_the_union_has_what_any_client_sent() -> None:
    assert kept(union(votes(0, 5, 1, 0))) == [1, 2]


def test_old_values_stay_where_nobody_sent_one() -> None:
    """The old mask has weights 0 and 1, the new one 1 and 3."""
    both, whole = kept_old(
        mask_of(0, 1), vector(10, 11, 12, 13), mask_of(1, 3), vector(0, 21, 0, 23, 24, 25)
    )
    assert (kept(both), floats(whole)) == ([0, 1, 3], [10, 21, 0, 23, 24, 25])


# -- the client


def answered(site: FakeSite, received: Received) -> Answer:
    memory = FakeMemory()
    reply = rule_of("topk-weights", HALF).client().train(received, site, memory, ignore)
    assert memory.puts == {}
    return reply


def test_a_client_trains_every_weight_from_zeros_off_the_union() -> None:
    site = FakeSite([vector(0, 5, -7, 0, 1, 1)])
    reply = answered(site, Received(mask_of(0, 3), vector(2, -3, 10, 20), 4))
    (call,) = site.calls
    assert (call.mask, call.round_number) == (Mask.full(4), 4)
    assert floats(call.values) == [2, 0, 0, -3, 10, 20]
    # trained to 2, 5, -7, -3, 11, 21
    assert (kept(reply.bits), floats(reply.trained.values)) == ([1, 2], [5, -7, 11, 21])


def test_the_tests_are_those_of_the_received_and_of_the_dense_model() -> None:
    site = FakeSite([vector(0, 0, 0, 0, 0, 0)])
    trained = answered(site, Received(Mask.full(4), vector(1, 2, 3, 4, 5, 6), 0)).trained
    assert (trained.base.correct, trained.personal.correct, trained.training_loss) == (1, 10, 1)


# -- the coordinator

OLD = model(mask_of(0, 1), 10, 11, 12, 13)


def finished(
    reduced: Reduced, state: ModelState = OLD, averaging: str = "zeros", **settings: Any
) -> ModelState:
    strategy = strategy_of("topk-weights", replace(HALF, **settings), averaging=averaging)
    return strategy.finish(StepDone(Work.TRAIN, 0), state, reduced, NoUploads())


# Clients of weight 1 and 3: the first sends weights 1 and 3, the second 1 and 2.
VOTES = votes(0, 4, 3, 1)
WITH_ZEROS: Vector = vector(0, 2, 6, 1, 7, 8)  # 8 * 3 / 4 and 4 * 1 / 4
BY_HOLDER: Vector = vector(0, 2, 8, 4, 7, 8)
HOLDERS = votes(0, 4, 3, 1, 4, 4)


def test_with_zeros_a_weight_that_some_did_not_send_shrinks() -> None:
    state = finished(Reduced(WITH_ZEROS, votes=VOTES, total_weight=4))
    assert (kept(state.mask), floats(state.values)) == ([1, 2, 3], [2, 6, 1, 7, 8])
    assert state.mask_epoch == OLD.mask_epoch + 1


def test_over_holders_it_does_not() -> None:
    state = finished(Reduced(BY_HOLDER, HOLDERS, VOTES, total_weight=4), averaging="holders")
    assert (kept(state.mask), floats(state.values)) == ([1, 2, 3], [2, 8, 4, 7, 8])


def test_keep_old_also_keeps_what_nobody_sent() -> None:
    state = finished(Reduced(BY_HOLDER, HOLDERS, VOTES, total_weight=4), averaging="keep-old")
    assert (kept(state.mask), floats(state.values)) == ([0, 1, 2, 3], [10, 2, 8, 4, 7, 8])


def test_a_union_that_does_not_change_is_the_same_mask() -> None:
    """In a lossy run the coded change is then sent."""
    reduced = Reduced(vector(10.4, 11, 0, 0, 12, 13), votes=votes(4, 1, 0, 0), total_weight=4)
    coded: dict[str, Any] = {"value_type": "grid", "grid_bits": 1, "rounding": "nearest"}
    state = finished(reduced, **coded)
    assert (state.mask, state.mask_epoch, floats(state.values)) == (
        OLD.mask, OLD.mask_epoch, [10.5, 11, 12, 13],
    )  # fmt: skip
    assert state.change is not None
    moved = finished(Reduced(WITH_ZEROS, votes=VOTES, total_weight=4), **coded)
    assert (moved.change, moved.mask_epoch) == (None, OLD.mask_epoch + 1)


def test_the_first_round_is_dense() -> None:
    state = strategy_for(replace(HALF, strategy="topk-weights")).begin(SMALL, vector(*range(6)))
    assert (state.mask, state.mask_epoch) == (Mask.full(4), 1)
    assert floats(state.values) == [0, 1, 2, 3, 4, 5]


def test_an_update_has_bits_of_at_most_k_weights() -> None:
    parts = rule_of("topk-weights", HALF).parts("", SMALL)
    assert (parts.values, parts.bits, parts.bits_required, parts.max_kept) == (True, True, True, 2)


@pytest.mark.parametrize(
    ("averaging", "reducer"),
    [
        ("zeros", Reducer.WEIGHTED_SUM),
        ("holders", Reducer.WEIGHTED_SUM_BY_HOLDER),
        ("keep-old", Reducer.WEIGHTED_SUM_BY_HOLDER),
    ],
)
def test_the_rounds_are_fedavgs_with_the_mean_that_was_asked_for(
    averaging: str, reducer: Reducer
) -> None:
    strategy = strategy_of("topk-weights", replace(HALF, rounds=1), averaging=averaging)
    clients = [ClientId("a"), ClientId("b")]
    plan = strategy.plan(Position(0, 1, 0), clients)
    assert plan is not None
    assert (plan.work, plan.cohort, plan.reducer) == (Work.TRAIN, tuple(clients), reducer)
    assert strategy.plan(Position(1, 1, 0), clients) is None


def test_the_rule_moves_the_mask_so_nothing_else_does() -> None:
    settings = replace(HALF, strategy="topk-weights")
    strategy = strategy_for(settings)
    assert strategy.why_fixed == "the strategy moves the mask itself"
    assert not strategy.is_dense and strategy.num_kept(SMALL) == 2
    check_settings(settings)
    with pytest.raises(SettingsError, match="topk-weights chooses the mask itself"):
        check_settings(replace(settings, criterion="random"))


def test_a_sparsity_that_keeps_nothing_is_refused_at_the_start() -> None:
    with pytest.raises(DensityError):
        strategy_of("topk-weights", RunSettings(sparsity="0.9")).begin(SMALL, vector(*range(6)))
