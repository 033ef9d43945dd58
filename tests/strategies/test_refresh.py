"""Refreshing the mask: when it happens, what is scored, and where weights start."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.method.controls import random_mask
from ssfl.method.errors import DensityError
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, values_digest, vector_of
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientId, Plan, Position, Reducer, Work
from ssfl.strategies.registry import criterion_names, strategy_for
from ssfl.strategies.strategy import Strategy
from strategies.steps import finish

Vector = npt.NDArray[np.float32]
CLIENTS = [ClientId(f"c{number}") for number in range(1, 5)]
# Two tensors of five masked values, then a bias of one.
TEN = Manifest(
    (
        TensorSpec("v", (5,), Role.MASKED, Init("zeros")),
        TensorSpec("w", (5,), Role.MASKED, Init("zeros")),
        TensorSpec("b", (1,), Role.DENSE, Init("zeros")),
    )
)
INITIAL = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 60], dtype=np.float32)
SETTINGS = RunSettings(sparsity="0.7", rounds=20)  # three of ten are kept


def scores(*kept: int) -> Vector:
    """Return scores whose largest are at these places, the first the largest."""
    out = np.zeros(10, dtype=np.float32)
    for rank, place in enumerate(kept):
        out[place] = 100 - rank
    return out


def kept(state: ModelState) -> list[int]:
    assert state.mask is not None
    return np.flatnonzero(state.mask.bools()).tolist()


def values(state: ModelState) -> list[float]:
    assert state.values is not None
    return [float(value) for value in state.values]


def after(settings: RunSettings, *steps: Vector | tuple[float, ...]) -> ModelState:
    """Return the state after steps: an array is a step of scores, a tuple a round's mean."""
    ssfl, rounds_done = strategy_for(settings), 0
    state = ssfl.begin(TEN, INITIAL)
    for step in steps:
        if isinstance(step, tuple):
            mean = np.array(step, dtype=np.float32)
            state = finish(ssfl, Work.TRAIN, state, mean, rounds_done)
            rounds_done += 1
        else:
            state = finish(ssfl, Work.SCORE, state, step, rounds_done)
    return state


ONCE = (scores(0, 1, 2), (-1.0, -2.0, -3.0, -60.0))  # the first mask, and a round under it


def test_a_refresh_keeps_trained_values_and_adds_weights_at_their_initial_values() -> None:
    state = after(SETTINGS, *ONCE, scores(1, 2, 7))
    assert (kept(state), state.mask_epoch) == ([1, 2, 7], 2)
    assert values(state) == [-2, -3, 8, -60]


def test_a_refresh_scores_trained_values_on_the_mask_and_initial_ones_off_it() -> None:
    state = after(SETTINGS, *ONCE)
    assert state.whole.tolist() == [-1, -2, -3, 4, 5, 6, 7, 8, 9, 10, -60]
    refreshed = after(SETTINGS, *ONCE, scores(1, 2, 7))
    assert refreshed.scored is not None
    assert vector_of(refreshed.scored).tolist() == state.whole.tolist()
    assert refreshed.scored_digest == values_digest(state.whole) == state.whole_digest
    assert refreshed.first_base().tolist() == values(refreshed)


def test_initial_weights_keep_their_bits_after_any_number_of_masks() -> None:
    """A weight that no mask kept is unchanged; the initial vector is the same object."""
    odd = np.float32(0.1)
    initial = (INITIAL * odd).astype(np.float32)
    ssfl = strategy_for(replace(SETTINGS, deactivated="keep"))
    state = ssfl.begin(TEN, initial)
    for number, places in enumerate([(0, 1, 2), (2, 3, 4), (4, 5, 0), (1, 3, 5)]):
        state = finish(ssfl, Work.SCORE, state, scores(*places), number)
        mean = np.full(4, 100 + number, dtype=np.float32)
        state = finish(ssfl, Work.TRAIN, state, mean, number)
        assert state.initial is initial
    never = [6, 7, 8, 9]
    assert state.whole[never].tobytes() == initial[never].tobytes()
    assert values_digest(state.initial) == state.initial_digest


TWICE = (*ONCE, scores(1, 2, 7), (-20.0, -30.0, -80.0, -61.0))  # 0 was dropped, 7 added


def test_a_dropped_weight_returns_with_its_trained_value_if_kept() -> None:
    state = after(replace(SETTINGS, deactivated="keep"), *TWICE, scores(0, 1, 3))
    assert (kept(state), values(state)) == ([0, 1, 3], [-1, -20, 4, -61])
    again = after(replace(SETTINGS, deactivated="keep"), *TWICE, scores(0, 1, 3), scores(7, 2, 0))
    assert values(again) == [-1, -30, -80, -61], "the previous mask dropped 2 and 7"


def test_a_dropped_weight_returns_with_its_initial_value_if_reset() -> None:
    state = after(replace(SETTINGS, deactivated="reset"), *TWICE, scores(0, 1, 3))
    assert (kept(state), values(state)) == ([0, 1, 3], [1, -20, 4, -61])
    again = after(replace(SETTINGS, deactivated="reset"), *TWICE, scores(0, 1, 3), scores(7, 2, 0))
    assert values(again) == [1, 3, 8, -61]
    assert again.resting is None and again.resting_digest == b""


def test_a_mask_agreed_on_the_initial_weights_needs_only_them() -> None:
    state = after(SETTINGS, scores(0, 1, 2))
    assert (state.scored, state.resting, state.resting_digest) == (None, None, b"")
    assert state.scored_digest == state.initial_digest


def test_a_growing_mask_keeps_all_of_the_old_one() -> None:
    settings = replace(SETTINGS, sparsity_schedule="0:0.8,1:0.6,2:0.5", refresh_mode="grow")
    state = after(settings, scores(0, 1, 9), (-1.0, -2.0, -60.0), scores(9, 8, 7, 6))
    assert (kept(state), values(state)) == ([0, 1, 8, 9], [-1, -2, 9, 10, -60])
    grown = after(
        settings, scores(0, 1, 9), (-1.0, -2.0, -60.0), scores(9, 8, 7, 6),
        (0.0, 0.0, 0.0, 0.0, 0.0), scores(7, 6, 5),
    )  # fmt: skip
    assert kept(grown) == [0, 1, 7, 8, 9]


def test_after_a_warm_up_a_growing_mask_begins_small() -> None:
    """The dense mask of the warm-up is not kept."""
    settings = replace(
        SETTINGS, sparsity_schedule="0:0.8,2:0.6", refresh_mode="grow", warmup_rounds=1
    )
    state = after(settings, tuple(-INITIAL.tolist()[i] for i in range(11)), scores(3, 4))
    assert kept(state) == [3, 4]


def test_a_schedule_decides_how_many_are_kept_from_a_round_on() -> None:
    ssfl = strategy_for(replace(SETTINGS, sparsity_schedule="0:0.8,3:0.5"))
    assert [ssfl.num_kept(TEN, number) for number in (0, 2, 3, 9)] == [2, 2, 5, 5]
    assert [ssfl.num_decisive(TEN, number) for number in (0, 3)] == [6, 10]


def test_a_schedule_that_would_keep_nothing_is_refused_at_the_start() -> None:
    with pytest.raises(DensityError):
        strategy_for(replace(SETTINGS, sparsity_schedule="0:0.5,9:0.95")).begin(TEN, INITIAL)


def test_a_warm_up_trains_everything_and_the_first_mask_starts_from_it() -> None:
    settings = replace(SETTINGS, warmup_rounds=1)
    begun = after(settings)
    assert (begun.mask, begun.mask_epoch) == (Mask.full(10), 1)
    warm = tuple(-value for value in INITIAL.tolist())
    state = after(settings, warm, scores(0, 1, 9))
    assert (kept(state), values(state), state.mask_epoch) == ([0, 1, 9], [-1, -2, -10, -60], 2)
    assert state.scored is not None and vector_of(state.scored).tolist() == list(warm)
    back = after(replace(settings, deactivated="reset"), warm, scores(0, 1, 9), scores(5, 6, 7))
    assert values(back) == [6, 7, 8, -60], "reset: to before the warm-up"


# -- timing


def position(rounds_done: int, epoch: int, *, refresh: bool = False, attempt: int = 0) -> Position:
    return Position(rounds_done, epoch, attempt, refresh)


def work(settings: RunSettings, at: Position) -> Work | None:
    plan = strategy_for(settings).plan(at, CLIENTS)
    return plan.work if plan else None


def test_scoring_starts_exactly_after_the_warm_up_rounds() -> None:
    settings = replace(SETTINGS, warmup_rounds=3)
    asked = [work(settings, position(number, 1)) for number in range(4)]
    assert asked == [Work.TRAIN, Work.TRAIN, Work.TRAIN, Work.SCORE]
    assert work(settings, position(3, 2)) is Work.TRAIN


def test_a_refresh_scores_except_after_the_last_round() -> None:
    assert work(SETTINGS, position(5, 1, refresh=True)) is Work.SCORE
    assert work(SETTINGS, position(5, 1)) is Work.TRAIN
    assert work(SETTINGS, position(20, 1, refresh=True)) is None


# -- clients


def scoring(**changes: object) -> Plan:
    plan = strategy_for(replace(SETTINGS, **changes)).plan(position(0, 0), CLIENTS)  # type: ignore[arg-type]
    assert plan is not None and plan.work is Work.SCORE
    return plan


@pytest.mark.parametrize(
    ("criterion", "asked", "num_clients", "num_batches"),
    [
        ("saliency", "saliency", 4, 25),
        ("shuffled", "saliency", 4, 25),
        ("grasp", "grasp", 4, 25),
        ("one-client", "saliency", 1, 1),
        ("synflow", "synflow", 1, 100),
        ("random", "random", 0, 100),
        ("magnitude", "magnitude", 0, 100),
    ],
)
def test_every_criterion_asks_the_clients_it_needs(
    criterion: str, asked: str, num_clients: int, num_batches: int
) -> None:
    plan = scoring(criterion=criterion)
    assert (plan.criterion, len(plan.cohort)) == (asked, num_clients)
    assert plan.num_batches == num_batches
    assert plan.cohort == tuple(sorted(plan.cohort)) and set(plan.cohort) <= set(CLIENTS)


def test_a_given_number_of_minibatches_holds_for_all_clients() -> None:
    for criterion in ("saliency", "one-client", "grasp"):
        assert scoring(criterion=criterion, scoring_batches=7).num_batches == 7


def test_a_hundred_minibatches_are_shared_by_the_clients() -> None:
    for num_clients, each in ((1, 100), (3, 34), (99, 2), (100, 1), (800, 1)):
        names = [ClientId(f"c{number:03}") for number in range(num_clients)]
        plan = strategy_for(SETTINGS).plan(position(0, 0), names)
        assert plan is not None and plan.num_batches == each


def test_another_client_is_drawn_for_every_mask_and_attempt() -> None:
    ssfl = strategy_for(replace(SETTINGS, criterion="one-client"))

    def chosen(epoch: int, attempt: int) -> ClientId:
        plan = ssfl.plan(position(0, epoch, refresh=True, attempt=attempt), CLIENTS)
        assert plan is not None
        (client,) = plan.cohort
        return client

    assert len({chosen(epoch, 0) for epoch in range(20)}) == 4
    assert len({chosen(0, attempt) for attempt in range(20)}) == 4
    assert chosen(3, 1) == chosen(3, 1)


def test_weights_of_scores_and_of_updates_are_separate_settings() -> None:
    for of_scores, of_updates in (("equal", "samples"), ("samples", "equal")):
        settings = replace(SETTINGS, score_weights=of_scores, update_weights=of_updates)
        score, train = (
            strategy_for(settings).plan(position(0, epoch), CLIENTS) for epoch in (0, 1)
        )
        assert score is not None and train is not None
        assert (score.equal_weights, train.equal_weights) == (
            of_scores == "equal", of_updates == "equal",
        )  # fmt: skip


# -- controls


def test_a_random_mask_ignores_scores_and_changes_with_its_epoch() -> None:
    settings = replace(SETTINGS, criterion="random", seed=4)
    once = after(settings, scores(0, 1, 2))
    assert once.mask == random_mask(10, 3, 4, 0) == after(settings, scores(9, 8, 7)).mask
    twice = after(settings, scores(0, 1, 2), scores(0, 1, 2))
    assert twice.mask == random_mask(10, 3, 4, 1) != once.mask


def test_magnitude_keeps_the_largest_weights_of_the_whole_model() -> None:
    settings = replace(SETTINGS, criterion="magnitude")
    assert kept(after(settings, scores(0, 1, 2))) == [7, 8, 9]
    trained = after(settings, scores(), (-0.5, 90.0, -70.0, 1.0), scores())
    assert kept(trained) == [6, 8, 9], "7 shrank to -0.5, so the resting value of 6 is larger"


def test_a_shuffled_mask_keeps_as_many_in_every_tensor() -> None:
    settings = replace(SETTINGS, criterion="shuffled")
    masks = [after(replace(settings, seed=seed), scores(0, 1, 9)).mask for seed in range(20)]
    counts = {tuple(k for k, _ in mask.kept_by_tensor(TEN).values()) for mask in masks if mask}
    assert counts == {(2, 1)}
    assert len({mask.digest for mask in masks if mask}) > 5


def test_every_tensor_keeps_what_the_guard_asks_for() -> None:
    settings = replace(SETTINGS, layer_guard=0.2)
    assert kept(after(settings, scores(0, 1, 2))) == [0, 1, 5]


@pytest.mark.parametrize(
    "criterion", [name for name in criterion_names() if name not in ("client-random", "none")]
)
def test_every_criterion_keeps_exactly_k_and_begins_at_the_initial_weights(criterion: str) -> None:
    state = after(replace(SETTINGS, criterion=criterion), scores(4, 6, 2))
    assert len(kept(state)) == 3
    assert values(state) == [*INITIAL[kept(state)].tolist(), 60]


# -- a mask for every client


def test_own_masks_are_trained_from_the_start() -> None:
    settings = replace(SETTINGS, criterion="client-random")
    own = strategy_for(settings)
    assert isinstance(own, Strategy)
    state = own.begin(TEN, INITIAL)
    assert (state.mask, state.mask_epoch) == (Mask.full(10), 1)
    plan = own.plan(position(0, 1), CLIENTS)
    assert plan == Plan(Work.TRAIN, tuple(CLIENTS), Reducer.WEIGHTED_SUM_BY_HOLDER)
    zeros = strategy_for(replace(settings, averaging="zeros")).plan(position(0, 1), CLIENTS)
    assert zeros == Plan(Work.TRAIN, tuple(CLIENTS), Reducer.WEIGHTED_SUM)


def test_a_client_trains_on_its_own_mask_and_tests_the_whole_model() -> None:
    own = strategy_for(replace(SETTINGS, criterion="client-random"))
    state = own.begin(TEN, INITIAL)
    seen = {client: own.client_state(client, Work.TRAIN, state) for client in CLIENTS}
    assert len({tuple(kept(view)) for view in seen.values()}) > 1
    for view in seen.values():
        assert values(view) == [*INITIAL[kept(view)].tolist(), 60]
    for tested in (Work.EVALUATE, Work.PERSONALIZE):
        assert own.client_state(CLIENTS[0], tested, state) is state
