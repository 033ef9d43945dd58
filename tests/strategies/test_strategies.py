import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.codec import blocks
from ssfl.codec.grid import Grid
from ssfl.method.errors import DensityError, SettingsError
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, values_digest
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import (
    ClientId,
    NoOptions,
    Plan,
    Position,
    Reduced,
    Reducer,
    Rule,
    UploadParts,
    Work,
)
from ssfl.strategies.registry import check_settings, options_of, strategy_for, strategy_names
from ssfl.strategies.strategy import RESIDUAL, Strategy
from strategies.steps import fedavg, finish

CLIENTS = [ClientId("c1"), ClientId("c2"), ClientId("c3")]
# Five masked values, then a bias of one.
FIVE = Manifest(
    (
        TensorSpec("w", (5,), Role.MASKED, Init("zeros")),
        TensorSpec("b", (1,), Role.DENSE, Init("zeros")),
    )
)


def vector(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


INITIAL = vector(1, 2, 3, 4, 5, 60)
KEEPS_TWO = Mask.from_bools(np.array([True, False, False, False, True]))


def at(rounds_done: int, mask_epoch: int, attempt: int = 0) -> Position:
    return Position(rounds_done, mask_epoch, attempt)


def values_of(state: ModelState) -> list[float]:
    assert state.values is not None
    return [float(value) for value in state.values]


def test_every_strategy_that_can_be_set_exists() -> None:
    assert {"ssfl", "fedavg"} <= set(strategy_names())
    for name in strategy_names():
        assert strategy_for(RunSettings(strategy=name)).settings.strategy == name


def test_no_strategy_loads_torch_at_the_coordinator() -> None:
    script = (
        "import sys; from ssfl.strategies.registry import rule_for, strategy_names; "
        "[rule_for(name) for name in strategy_names()]; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "ssfl.strategies.methods.fedavg" in loaded
    assert loaded & {"torch", "ssfl.learning", "grpc"} == set()


def test_a_rule_moves_its_own_state_to_a_new_mask() -> None:
    class Counting(Rule):
        def remasked(self, before: ModelState, after: ModelState) -> ModelState:
            assert (before.mask_epoch, after.mask_epoch) == (0, 1)
            return replace(after, stage="masked")

    settings = RunSettings(sparsity="0.6")
    plain = strategy_for(settings)
    strategy = Strategy(settings, plain.source, Counting(settings, NoOptions()))
    begun = strategy.begin(FIVE, INITIAL)
    scored = finish(strategy, Work.SCORE, begun, vector(0.1, 0.5, 0.0, 0.2, 0.5), 0)
    assert (scored.stage, values_of(scored)) == ("masked", [2, 5, 60])


def test_ssfl_begins_without_a_mask() -> None:
    state = strategy_for(RunSettings(sparsity="0.6")).begin(FIVE, INITIAL)
    assert (state.mask, state.mask_epoch, state.values, state.base_digest) == (None, 0, None, b"")
    assert state.initial_digest == values_digest(INITIAL)


def test_ssfl_first_asks_all_clients_for_scores_even_if_rounds_are_sampled() -> None:
    plan = strategy_for(RunSettings(clients_per_round=2)).plan(at(0, 0), CLIENTS)
    assert plan == Plan(
        Work.SCORE, tuple(CLIENTS), Reducer.WEIGHTED_SUM, criterion="saliency", num_batches=34
    )


def test_ssfl_then_trains_as_fedavg_does() -> None:
    settings = RunSettings(rounds=2, clients_per_round=2)
    for position in (at(0, 1), at(1, 1), at(1, 1, attempt=3), at(2, 1)):
        ssfl = strategy_for(settings).plan(position, CLIENTS)
        assert ssfl == fedavg(settings).plan(position, CLIENTS)


def test_ssfl_keeps_the_best_scored_and_starts_from_the_initial_weights() -> None:
    ssfl = strategy_for(RunSettings(sparsity="0.6"))  # floor(0.4 * 5) = 2 are kept
    state = finish(ssfl, Work.SCORE, ssfl.begin(FIVE, INITIAL), vector(0.1, 0.5, 0.0, 0.2, 0.5), 0)
    assert state.mask == Mask.from_bools(np.array([False, True, False, False, True]))
    assert state.mask_epoch == 1
    assert values_of(state) == [2, 5, 60]
    assert state.base_digest == values_digest(vector(2, 5, 60))


def test_ssfl_training_changes_values_and_nothing_else() -> None:
    ssfl = strategy_for(RunSettings(sparsity="0.6"))
    scored = finish(ssfl, Work.SCORE, ssfl.begin(FIVE, INITIAL), vector(0.1, 0.5, 0.0, 0.2, 0.5), 0)
    trained = finish(ssfl, Work.TRAIN, scored, vector(-2, -5, -60), 0)
    assert values_of(trained) == [-2, -5, -60]
    assert (trained.mask, trained.mask_epoch) == (scored.mask, 1)
    assert trained.initial is scored.initial
    assert values_of(scored) == [2, 5, 60], "the old state changed"


def test_ssfl_scoring_again_adds_an_epoch() -> None:
    ssfl = strategy_for(RunSettings(sparsity="0.6"))
    once = finish(ssfl, Work.SCORE, ssfl.begin(FIVE, INITIAL), vector(1, 0, 0, 0, 1), 0)
    twice = finish(ssfl, Work.SCORE, once, vector(0, 1, 1, 0, 0), 0)
    assert twice.mask_epoch == 2
    assert values_of(twice) == [2, 3, 60]


def test_a_byte_budget_decides_instead_of_the_sparsity() -> None:
    ssfl = strategy_for(RunSettings(sparsity="0.6", bytes_per_round="17B"))
    assert ssfl.num_kept(FIVE) == 3  # 17 // 4 = 4 values, one of them the bias


def test_an_impossible_density_is_refused_before_the_first_step() -> None:
    for settings in (RunSettings(sparsity="0.9"), RunSettings(bytes_per_round="7B")):
        with pytest.raises(DensityError):
            strategy_for(settings).begin(FIVE, INITIAL)


TWO_LAYERS = Manifest(
    (
        TensorSpec("v", (5,), Role.MASKED, Init("zeros")),
        TensorSpec("w", (5,), Role.MASKED, Init("zeros")),
    )
)


@pytest.mark.parametrize(
    "density",
    [{"sparsity": "0.8"}, {"bytes_per_round": "8B"}, {"sparsity_schedule": "0:0.5,3:0.8"}],
)
@pytest.mark.parametrize("warmup_rounds", [0, 1])
def test_a_guard_that_needs_more_than_may_be_kept_is_refused_before_the_first_step(
    density: dict[str, str], warmup_rounds: int
) -> None:
    """The guard keeps two of five in both layers, four in total; only two may be kept."""
    zeros = np.zeros(10, dtype=np.float32)
    settings = RunSettings(layer_guard=0.4, warmup_rounds=warmup_rounds, **density)  # type: ignore[arg-type]
    with pytest.raises(DensityError, match=r"--layer-guard 0\.4 alone keeps 4 of 10 .* only 2 may"):
        strategy_for(settings).begin(TWO_LAYERS, zeros)
    strategy_for(replace(settings, layer_guard=0.2)).begin(TWO_LAYERS, zeros)


def test_with_a_guard_every_score_decides() -> None:
    """The best of a layer may be far below the largest of all."""
    settings = RunSettings(sparsity="0.8")
    assert strategy_for(settings).num_decisive(TWO_LAYERS) == 6
    assert strategy_for(replace(settings, layer_guard=0.2)).num_decisive(TWO_LAYERS) == 0


def test_fedavg_keeps_everything_from_the_start() -> None:
    state = fedavg(RunSettings()).begin(FIVE, INITIAL)
    assert state.mask == Mask.full(5)
    assert state.mask_epoch == 1
    assert values_of(state) == INITIAL.tolist()


def test_fedavg_never_scores_and_ends_after_the_last_round() -> None:
    strategy = fedavg(RunSettings(rounds=2))
    for done in (0, 1):
        plan = strategy.plan(at(done, 1), CLIENTS)
        assert plan == Plan(Work.TRAIN, tuple(CLIENTS), Reducer.WEIGHTED_SUM)
    assert strategy.plan(at(2, 1), CLIENTS) is None


def test_fedavg_makes_the_mean_the_next_model() -> None:
    strategy = fedavg(RunSettings())
    begun = strategy.begin(FIVE, INITIAL)
    trained = finish(strategy, Work.TRAIN, begun, vector(0, 1, 2, 3, 4, 5), 0)
    assert values_of(trained) == [0, 1, 2, 3, 4, 5]
    assert (trained.mask, trained.mask_epoch) == (begun.mask, 1)


def test_a_lossy_round_returns_the_coded_change_to_send() -> None:
    settings = RunSettings(sparsity="0.6", value_type="grid", grid_bits=2, rounding="nearest")
    before = ModelState(FIVE, INITIAL, Mask.full(5), 1, INITIAL)
    for strategy in (strategy_for(settings), fedavg(settings)):
        mean = INITIAL + vector(0.3, 0, -1, 0.1, 0, 0.24)
        after = finish(strategy, Work.TRAIN, before, mean, 0)
        assert values_of(after) == [1.25, 2, 2, 4, 5, 60.25]
        assert after.change is not None
        assert blocks.decode(Grid(), after.change, 6, INITIAL).tolist() == values_of(after)


def test_a_new_mask_has_no_coded_change() -> None:
    settings = RunSettings(sparsity="0.6", value_type="int8")
    before = ModelState(FIVE, INITIAL, Mask.full(5), 1, INITIAL, change=memoryview(b"old"))
    after = finish(strategy_for(settings), Work.SCORE, before, vector(5, 1, 4, 2, 3), 0)
    assert (values_of(after), after.change, after.mask_epoch) == ([1, 3, 60], None, 2)


def test_a_change_below_half_a_step_is_not_lost_if_values_are_coded() -> None:
    settings = RunSettings(value_type="grid", grid_bits=2, downloads="values")  # steps of 0.25
    for strategy in (strategy_for(settings), fedavg(settings)):
        state = ModelState(FIVE, INITIAL, Mask.full(5), 1, INITIAL)
        sent = []
        for number in range(4):
            assert state.values is not None
            state = finish(strategy, Work.TRAIN, state, state.values + np.float32(0.0625), number)
            assert state.change is not None
            assert blocks.decode(Grid(), state.change, 6, None).tolist() == values_of(state)
            sent.append(values_of(state)[0])
            assert state.extra_vector(RESIDUAL)[0] + sent[-1] == 1 + 0.0625 * (number + 1)
        assert sent == [1, 1, 1.25, 1.25], "ties to even"


def test_the_residual_moves_to_a_new_mask_whose_first_values_are_not_coded() -> None:
    settings = RunSettings(sparsity="0.6", value_type="int8", downloads="values")
    residual = vector(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    before = ModelState(
        FIVE, INITIAL, Mask.full(5), 1, INITIAL, memoryview(b"old"), extra={RESIDUAL: residual}
    )
    after = finish(strategy_for(settings), Work.SCORE, before, vector(5, 1, 4, 2, 3), 0)
    assert (values_of(after), after.change) == ([1, 3, 60], None)
    assert after.extra_vector(RESIDUAL).tolist() == vector(0.1, 0.3, 0.6).tolist()


def test_values_are_coded_on_a_mask_that_the_rule_has_moved() -> None:
    class Moving(Rule):
        def finish(self, _step: Any, state: ModelState, reduced: Reduced, _uploads: Any) -> Any:
            assert list(state.extra) == ["own"], "the residual is not the rule's"
            return replace(state, mask=KEEPS_TWO, values=KEEPS_TWO.gather(reduced.values))

    settings = RunSettings(value_type="grid", grid_bits=2, downloads="values")
    strategy = Strategy(settings, strategy_for(settings).source, Moving(settings, NoOptions()))
    extra = {"own": vector(1), RESIDUAL: vector(0.25, 9, 9, 9, 0.5, 0)}
    before = ModelState(FIVE, INITIAL, Mask.full(5), 1, INITIAL, extra=extra)
    after = finish(strategy, Work.TRAIN, before, INITIAL + np.float32(0.125), 0)
    assert (values_of(after), after.mask_epoch) == ([1.5, 5.5, 60], 2)
    assert after.change is not None
    assert blocks.decode(Grid(), after.change, 3, None).tolist() == values_of(after)
    assert after.extra_vector("own").tolist() == [1]
    assert after.extra_vector(RESIDUAL).tolist() == [-0.125, 0.125, 0.125]


def test_values_are_coded_only_in_a_lossy_run() -> None:
    with pytest.raises(SettingsError, match=r"--downloads values .* --value-type, such as int8"):
        check_settings(RunSettings(downloads="values"))
    check_settings(RunSettings(value_type="int8", downloads="values"))


@pytest.mark.parametrize(
    "name",
    [
        *("scaffold", "sub-fedavg", "fedpm", "flash-jmwst", "flash-spdst", "topk-weights"),
        *("topk-updates", "sparsyfed", "feddst"),
    ],
)
def test_updates_that_are_never_clipped_refuse_the_limit_of_their_norm(name: str) -> None:
    check_settings(RunSettings(strategy=name))
    with pytest.raises(SettingsError, match=f"--max-update-norm .*{name}"):
        check_settings(RunSettings(strategy=name, max_update_norm=5.0))


@pytest.mark.parametrize("name", strategy_names())
def test_a_strategy_accepts_the_limit_of_the_norm_only_if_it_clips(name: str) -> None:
    """Only uploads of values alone are clipped (score_and_update.py)."""
    strategy = strategy_for(RunSettings(strategy=name))
    try:
        check_settings(RunSettings(strategy=name, max_update_norm=5.0), simulated=True)
    except SettingsError:
        return
    names = vars(import_module(type(strategy.rule).__module__)).values()
    for task in ["", *(name for name in names if isinstance(name, str))]:
        assert strategy.parts(task, FIVE) == UploadParts()


def test_scores_below_three_times_the_kept_ones_are_not_decisive() -> None:
    assert strategy_for(RunSettings(sparsity="0.8")).num_decisive(FIVE) == 3
    assert strategy_for(RunSettings(sparsity="0.6")).num_decisive(FIVE) == 5, (
        "not more than there are"
    )
    assert fedavg(RunSettings()).num_decisive(FIVE) == 0, "nothing is scored"


def test_runs_of_two_models_with_equal_settings_have_masks_of_their_own() -> None:
    strategy = strategy_for(RunSettings(criterion="client-random", sparsity="0.5"))
    larger = Manifest((TensorSpec("w", (9,), Role.MASKED, Init("zeros")),))
    masks = [strategy.source.client_mask(CLIENTS[0], each) for each in (FIVE, larger, FIVE)]
    assert [mask.size for mask in masks if mask] == [5, 9, 5]


def test_the_own_settings_of_a_stored_run_have_their_defaults() -> None:
    stored = {"strategy": "ditto", "strategy_options": "ditto.strength=2"}
    assert options_of(stored) == {
        "strength": 2.0, "pull": "gradient", "personal_epochs": 0, "global_epochs": 0,
    }  # fmt: skip
    assert options_of({"strategy": "fedavg", "strategy_options": ""}) == {}
    assert options_of({"strategy": "of a later version", "strategy_options": "x.y=1"}) == {}
    assert options_of({"strategy": "ssfl"}) == {}, "a run before strategies had settings"
