"""FedOpt: the server's step by hand for each optimizer, and its moments under changing masks.

The numbers are chosen so that every root is exact: x = 1 and a mean of 3 give delta = 2.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.method.errors import SettingsError
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientHalf, Reduced, Rule, StepDone, Work
from ssfl.strategies.methods.fedopt import FedOptOptions, next_momentum, next_squares
from ssfl.strategies.strategy import Strategy
from strategies.fakes import SMALL, floats, mask_of, model, rule_of, strategy_of, vector
from strategies.steps import NoUploads, finish

INITIAL = vector(1, 1, 1, 1, 1, 1)
HALF = {"beta1": 0.5, "beta2": 0.75}


def dense(**options: Any) -> Strategy:
    return strategy_of("fedopt", RunSettings(criterion="none"), **options)


def after(strategy: Strategy, *means: float) -> ModelState:
    """Return the state after rounds whose updates all have the same mean."""
    state = strategy.begin(SMALL, INITIAL)
    for number, mean in enumerate(means):
        state = finish(strategy, Work.TRAIN, state, np.full(6, mean, dtype=np.float32), number)
    return state


def first(state: ModelState) -> float:
    return floats(state.values)[0]


def moment(state: ModelState, name: str) -> float:
    return floats(state.extra_vector(name))[0]


def test_adam() -> None:
    """v starts at 4. m = 0.5 * 2, v = 0.75 * 4 + 0.25 * 4, x = 1 + 2 * 1 / (2 + 2)."""
    adam = dense(optimizer="adam", server_rate=2.0, tau=2.0, **HALF)
    once = after(adam, 3)
    assert (first(once), moment(once, "momentum"), moment(once, "squares")) == (1.5, 1, 4)
    twice = after(adam, 3, 3.5)  # m = 0.5 * 1 + 0.5 * 2, x = 1.5 + 2 * 1.5 / 4
    assert (first(twice), moment(twice, "momentum"), moment(twice, "squares")) == (2.25, 1.5, 4)
    assert first(after(adam, -1)) == 0.5, "the same step down"


def test_adagrad_sums_squares() -> None:
    """v = 9 + 4^2, m = 0.5 * 4, x = 1 + 2 * 2 / (5 + 3)."""
    state = after(dense(optimizer="adagrad", server_rate=2.0, tau=3.0, **HALF), 5)
    assert (first(state), moment(state, "squares")) == (1.5, 25)


@pytest.mark.parametrize(
    ("delta", "squares"), [(4.0, 8.0), (2.0, 4.0), (-2.0, 4.0), (1.0, 3.75), (0.0, 4.0)]
)
def test_yogi_moves_v_by_a_share_of_the_square_whatever_v_is(delta: float, squares: float) -> None:
    """Upwards if delta^2 > v, downwards if below, and not at all if equal."""
    options = FedOptOptions(optimizer="yogi", beta2=0.75)
    assert floats(next_squares(options, vector(4), vector(delta))) == [squares]


def test_yogi_steps_as_adam_does() -> None:
    assert first(after(dense(optimizer="yogi", server_rate=2.0, tau=2.0, **HALF), 3)) == 1.5


def test_momentum_is_not_damped_and_has_no_squares() -> None:
    """m = 2, x = 1 + 0.25 * 2; then m = 0.5 * 2 + 2, x = 1.5 + 0.25 * 3."""
    momentum = dense(optimizer="momentum", server_rate=0.25, beta1=0.5)
    assert [first(after(momentum, 3)), first(after(momentum, 3, 3.5))] == [1.5, 2.25]
    assert list(after(momentum, 3).extra) == ["momentum"]


def test_momentum_of_zero_at_rate_one_is_fedavg() -> None:
    assert first(after(dense(optimizer="momentum", beta1=0.0), 3, 7)) == 7


def test_two_rounds_with_the_defaults_of_the_paper() -> None:
    """Updates of 0.5 and then -0.25, at rate 0.1; tau^2 = 1e-6 is the first v.

    adam: m = 0.05, v = 0.25e-2 + 0.99e-6, x = 1 + 0.1 * 0.05 / (sqrt(v) + 1e-3), and so on.
    """
    for optimizer, expected in (
        ("adam", (1.0980202, 1.133302)),
        ("yogi", (1.09802, 1.1331628)),
        ("adagrad", (1.0998002, 1.0551588)),
    ):
        strategy = dense(optimizer=optimizer, server_rate=0.1)
        state = strategy.begin(SMALL, INITIAL)
        found = []
        for number, delta in enumerate((0.5, -0.25)):
            assert state.values is not None
            state = finish(strategy, Work.TRAIN, state, state.values + np.float32(delta), number)
            found.append(first(state))
        assert found == pytest.approx(expected, abs=2e-6), optimizer


def test_bias_correction_divides_by_what_the_moments_lack() -> None:
    """m = 1 -> 1 / 0.5, v = 0.25 * 4 -> 1 / 0.25, x = 1 + 2 * 2 / (2 + 2)."""
    corrected = dense(server_rate=2.0, tau=2.0, bias_correction=True, **HALF)
    state = after(corrected, 3)
    assert (first(state), moment(state, "momentum"), moment(state, "squares")) == (2, 1, 1)
    # m = 0.5 * 1 + 0.5 * 2 -> 1.5 / 0.75; v = 0.75 * 1 + 0.25 * 4 -> 1.75 / 0.4375
    assert first(after(corrected, 3, 4)) == 3


def test_bias_correction_is_adams_alone() -> None:
    plain, corrected = (
        after(dense(optimizer="yogi", bias_correction=given), 3) for given in (False, True)
    )
    assert floats(plain.values) == floats(corrected.values)


def test_no_change_is_no_step() -> None:
    for optimizer in ("adam", "yogi", "adagrad", "momentum"):
        assert floats(after(dense(optimizer=optimizer), 1).values) == [1] * 6


def test_a_round_without_change_still_moves_by_the_momentum() -> None:
    momentum = dense(optimizer="momentum", beta1=0.5)
    assert first(after(momentum, 3, 3)) == 4  # m = 0.5 * 2 + 0


def test_the_defaults_are_those_of_the_paper() -> None:
    options = FedOptOptions()
    assert [FedOptOptions(optimizer=name).decay for name in ("yogi", "adagrad", "momentum")] == [
        0.9, 0.0, 0.9,
    ]  # fmt: skip
    assert FedOptOptions(optimizer="adagrad", beta1=0.5).decay == 0.5
    assert (options.optimizer, options.decay, options.beta2, options.tau) == (
        "adam", 0.9, 0.99, 1e-3,
    )  # fmt: skip
    assert (options.rate, FedOptOptions(optimizer="momentum").rate) == (0.01, 1.0)
    assert moment(after(dense()), "squares") == np.float32(1e-6)


def test_arithmetic_stays_in_float32() -> None:
    third = vector(1 / 3)
    for optimizer in ("adam", "momentum"):
        options = FedOptOptions(optimizer=optimizer)
        assert next_momentum(options, third, third).dtype == np.float32
    damped = next_momentum(FedOptOptions(), third, third)
    by_hand = np.float32(np.float32(0.9) * third[0]) + np.float32(np.float32(1 - 0.9) * third[0])
    assert damped[0] == by_hand


def test_running_statistics_take_the_mean() -> None:
    state = after(dense(server_rate=2.0, tau=2.0, **HALF), 3)
    assert floats(state.values) == [1.5, 1.5, 1.5, 1.5, 1.5, 3]


# -- masks


def scored(strategy: Strategy, state: ModelState, *scores: float) -> ModelState:
    return finish(strategy, Work.SCORE, state, vector(*scores), 0)


def test_the_moments_begin_with_the_first_mask() -> None:
    strategy = strategy_of("fedopt", RunSettings(sparsity="0.5"), tau=2.0)
    begun = strategy.begin(SMALL, INITIAL)
    assert dict(begun.extra) == {}
    state = scored(strategy, begun, 0, 5, 0, 4)
    assert state.mask == mask_of(1, 3)
    assert floats(state.extra_vector("momentum")) == [0, 0, 0, 0]
    assert floats(state.extra_vector("squares")) == [4, 4, 4, 4]


def test_a_new_mask_keeps_the_moments_of_weights_that_stay() -> None:
    strategy = strategy_of("fedopt", RunSettings(sparsity="0.5"), tau=2.0)
    extra = {"momentum": vector(10, 30, 40, 50), "squares": vector(11, 31, 41, 51)}
    before = model(mask_of(1, 3), 2, 4, 5, 6, extra=extra)
    state = scored(strategy, before, 5, 0, 0, 4)  # 1 is dropped, 0 is added
    assert (state.mask, state.mask_epoch) == (mask_of(0, 3), 2)
    assert floats(state.extra_vector("momentum")) == [0, 30, 40, 50]
    assert floats(state.extra_vector("squares")) == [4, 31, 41, 51]


def test_a_warm_up_gives_its_moments_to_the_first_sparse_mask() -> None:
    settings = RunSettings(sparsity="0.5", warmup_rounds=1)
    strategy = strategy_of("fedopt", settings, optimizer="momentum")
    warm = finish(strategy, Work.TRAIN, strategy.begin(SMALL, INITIAL), vector(*range(2, 8)), 0)
    assert floats(warm.extra_vector("momentum")) == [1, 2, 3, 4, 5, 6]
    state = scored(strategy, warm, 0, 5, 0, 4)
    assert floats(state.extra_vector("momentum")) == [2, 4, 5, 6]


def test_a_weight_that_no_client_holds_does_not_move() -> None:
    strategy = strategy_of("fedopt", RunSettings(criterion="client-random"), server_rate=1.0)
    state = strategy.begin(SMALL, INITIAL)
    weights: npt.NDArray[np.int64] = np.array([5, 0, 5, 5, 5, 5])
    reduced = Reduced(vector(3, 0, 3, 3, 3, 3), weights, total_weight=5)
    moved = strategy.finish(StepDone(Work.TRAIN, 0), state, reduced, NoUploads())
    assert moved.values is not None
    assert (moved.values > 1).tolist() == [True, False, True, True, True, True]
    assert floats(moved.values)[1] == 1


def test_a_lossy_run_commits_the_coded_step() -> None:
    settings = RunSettings(criterion="none", value_type="grid", grid_bits=1, rounding="nearest")
    strategy = strategy_of("fedopt", settings, optimizer="momentum", server_rate=0.4, beta1=0.0)
    state = after(strategy, 3)  # 1 + 0.4 * 2 is rounded to halves
    assert (first(state), state.change is not None) == (2.0, True)


def test_the_old_state_is_unchanged() -> None:
    strategy = dense()
    state = after(strategy, 3)
    kept = {name: state.extra_vector(name).copy() for name in state.extra}
    finish(strategy, Work.TRAIN, state, vector(9, 9, 9, 9, 9, 9), 1)
    assert floats(state.values) == floats(after(strategy, 3).values)
    for name, value in kept.items():
        assert floats(state.extra_vector(name)) == floats(value)


def test_the_clients_do_what_fedavgs_do() -> None:
    rule = rule_of("fedopt")
    for name in ("plan", "parts", "vectors", "client"):
        assert getattr(type(rule), name) is getattr(Rule, name)
    assert type(rule.client()) is ClientHalf


def test_moments_that_never_decay_are_refused() -> None:
    rule_of("fedopt").check()
    with pytest.raises(SettingsError, match="beta1 must be below 1"):
        rule_of("fedopt", beta1=1.0).check()
    with pytest.raises(SettingsError, match="beta2 must be below 1"):
        rule_of("fedopt", beta2=1.0).check()


def test_a_full_mask_keeps_all_moments() -> None:
    strategy = dense(optimizer="momentum")
    state = replace(after(strategy, 3), mask=Mask.full(4))
    again = strategy.rule.remasked(state, state)
    assert floats(again.extra_vector("momentum")) == [2] * 6
