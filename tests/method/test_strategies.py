from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.codec import blocks
from ssfl.codec.grid import Grid
from ssfl.method.errors import DensityError
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, values_digest
from ssfl.method.settings import STRATEGIES, RunSettings
from ssfl.method.strategies import FedAvg, Ssfl, strategy_for
from ssfl.method.strategies.contract import ClientId, Plan, Position, Reducer, Work

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


def at(rounds_done: int, mask_epoch: int, attempt: int = 0) -> Position:
    return Position(rounds_done, mask_epoch, attempt)


def values_of(state: ModelState) -> list[float]:
    assert state.values is not None
    return [float(value) for value in state.values]


def test_every_strategy_that_can_be_set_exists() -> None:
    kinds = {name: type(strategy_for(RunSettings(strategy=name))) for name in STRATEGIES}
    assert kinds == {"ssfl": Ssfl, "fedavg": FedAvg}


def test_ssfl_begins_without_a_mask() -> None:
    state = Ssfl(RunSettings(sparsity="0.6")).begin(FIVE, INITIAL)
    assert (state.mask, state.mask_epoch, state.values, state.base_digest) == (None, 0, None, b"")
    assert state.initial_digest == values_digest(INITIAL)


def test_ssfl_first_asks_all_clients_for_scores_even_if_rounds_are_sampled() -> None:
    plan = Ssfl(RunSettings(clients_per_round=2)).plan(at(0, 0), CLIENTS)
    assert plan == Plan(
        Work.SCORE, tuple(CLIENTS), Reducer.WEIGHTED_SUM, criterion="saliency", num_batches=34
    )


def test_ssfl_then_trains_as_fedavg_does() -> None:
    settings = RunSettings(rounds=2, clients_per_round=2)
    for position in (at(0, 1), at(1, 1), at(1, 1, attempt=3), at(2, 1)):
        ssfl = Ssfl(settings).plan(position, CLIENTS)
        assert ssfl == FedAvg(settings).plan(position, CLIENTS)


def test_ssfl_keeps_the_best_scored_and_starts_from_the_initial_weights() -> None:
    ssfl = Ssfl(RunSettings(sparsity="0.6"))  # floor(0.4 * 5) = 2 are kept
    state = ssfl.finish(Work.SCORE, ssfl.begin(FIVE, INITIAL), vector(0.1, 0.5, 0.0, 0.2, 0.5), 0)
    assert state.mask == Mask.from_bools(np.array([False, True, False, False, True]))
    assert state.mask_epoch == 1
    assert values_of(state) == [2, 5, 60]
    assert state.base_digest == values_digest(vector(2, 5, 60))


def test_ssfl_training_changes_values_and_nothing_else() -> None:
    ssfl = Ssfl(RunSettings(sparsity="0.6"))
    scored = ssfl.finish(Work.SCORE, ssfl.begin(FIVE, INITIAL), vector(0.1, 0.5, 0.0, 0.2, 0.5), 0)
    trained = ssfl.finish(Work.TRAIN, scored, vector(-2, -5, -60), 0)
    assert values_of(trained) == [-2, -5, -60]
    assert (trained.mask, trained.mask_epoch) == (scored.mask, 1)
    assert trained.initial is scored.initial
    assert values_of(scored) == [2, 5, 60], "the old state changed"


def test_ssfl_scoring_again_adds_an_epoch() -> None:
    ssfl = Ssfl(RunSettings(sparsity="0.6"))
    once = ssfl.finish(Work.SCORE, ssfl.begin(FIVE, INITIAL), vector(1, 0, 0, 0, 1), 0)
    twice = ssfl.finish(Work.SCORE, once, vector(0, 1, 1, 0, 0), 0)
    assert twice.mask_epoch == 2
    assert values_of(twice) == [2, 3, 60]


def test_a_byte_budget_decides_instead_of_the_sparsity() -> None:
    ssfl = Ssfl(RunSettings(sparsity="0.6", bytes_per_round="17B"))
    assert ssfl.num_kept(FIVE) == 3  # 17 // 4 = 4 values, one of them the bias


def test_an_impossible_density_is_refused_before_the_first_step() -> None:
    for settings in (RunSettings(sparsity="0.9"), RunSettings(bytes_per_round="7B")):
        with pytest.raises(DensityError):
            Ssfl(settings).begin(FIVE, INITIAL)


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
        Ssfl(settings).begin(TWO_LAYERS, zeros)
    Ssfl(replace(settings, layer_guard=0.2)).begin(TWO_LAYERS, zeros)


def test_with_a_guard_every_score_decides() -> None:
    """The best of a layer may be far below the largest of all."""
    settings = RunSettings(sparsity="0.8")
    assert Ssfl(settings).num_decisive(TWO_LAYERS) == 6
    assert Ssfl(replace(settings, layer_guard=0.2)).num_decisive(TWO_LAYERS) == 0


def test_fedavg_keeps_everything_from_the_start() -> None:
    state = FedAvg(RunSettings()).begin(FIVE, INITIAL)
    assert state.mask == Mask.full(5)
    assert state.mask_epoch == 1
    assert values_of(state) == INITIAL.tolist()


def test_fedavg_never_scores_and_ends_after_the_last_round() -> None:
    fedavg = FedAvg(RunSettings(rounds=2))
    for done in (0, 1):
        plan = fedavg.plan(at(done, 1), CLIENTS)
        assert plan == Plan(Work.TRAIN, tuple(CLIENTS), Reducer.WEIGHTED_SUM)
    assert fedavg.plan(at(2, 1), CLIENTS) is None


def test_fedavg_makes_the_mean_the_next_model() -> None:
    fedavg = FedAvg(RunSettings())
    begun = fedavg.begin(FIVE, INITIAL)
    trained = fedavg.finish(Work.TRAIN, begun, vector(0, 1, 2, 3, 4, 5), 0)
    assert values_of(trained) == [0, 1, 2, 3, 4, 5]
    assert (trained.mask, trained.mask_epoch) == (begun.mask, 1)


def test_a_lossy_round_returns_the_coded_change_to_send() -> None:
    settings = RunSettings(sparsity="0.6", value_type="grid", grid_bits=2, rounding="nearest")
    before = ModelState(FIVE, INITIAL, Mask.full(5), 1, INITIAL)
    for strategy in (Ssfl(settings), FedAvg(settings)):
        mean = INITIAL + vector(0.3, 0, -1, 0.1, 0, 0.24)
        after = strategy.finish(Work.TRAIN, before, mean, 0)
        assert values_of(after) == [1.25, 2, 2, 4, 5, 60.25]
        assert after.change is not None
        assert blocks.decode(Grid(), after.change, 6, INITIAL).tolist() == values_of(after)


def test_a_new_mask_has_no_coded_change() -> None:
    settings = RunSettings(sparsity="0.6", value_type="int8")
    before = ModelState(FIVE, INITIAL, Mask.full(5), 1, INITIAL, change=memoryview(b"old"))
    after = Ssfl(settings).finish(Work.SCORE, before, vector(5, 1, 4, 2, 3), 0)
    assert (values_of(after), after.change, after.mask_epoch) == ([1, 3, 60], None, 2)


def test_scores_below_three_times_the_kept_ones_are_not_decisive() -> None:
    assert Ssfl(RunSettings(sparsity="0.8")).num_decisive(FIVE) == 3
    assert Ssfl(RunSettings(sparsity="0.6")).num_decisive(FIVE) == 5, "not more than there are"
    assert FedAvg(RunSettings()).num_decisive(FIVE) == 0, "nothing is scored"
