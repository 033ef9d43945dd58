"""FLASH-SPDST: sparse learning at a client, the densities of the layers, and the two stages."""

from dataclasses import replace

import numpy as np
import pytest

from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.strategies.contract import (
    ClientId,
    Plan,
    Position,
    Received,
    Reduced,
    StepDone,
    UploadParts,
    Work,
)
from ssfl.strategies.layerwise import fractional_growth, kept_by_layer
from ssfl.strategies.mask_source import RuleMask
from ssfl.strategies.methods.flash_spdst import (
    WARM_UP,
    FlashClient,
    FlashOptions,
    FlashSpdst,
    growth_counts,
    layer_importance,
    move,
    move_times,
    num_dropped,
)
from ssfl.strategies.registry import strategy_for
from ssfl.strategies.strategy import Strategy
from strategies.scripted_site import (
    DictMemory,
    ScriptedSite,
    bits_of,
    ignore,
    manifest_of,
    mask_of,
    received,
    vector,
    votes,
)
from strategies.small_site import SMALL, small_site
from strategies.steps import NoUploads

CLIENTS = [ClientId(f"c{number:02}") for number in range(20)]
LAYERS = manifest_of(4, 4)
INITIAL = vector(1, 2, 3, 4, 5, 6, 7, 8, 60)
SETTINGS = RunSettings(strategy="flash-spdst", sparsity="0.5", rounds=8, local_epochs=2)


def rule(settings: RunSettings = SETTINGS, **changes: object) -> FlashSpdst:
    return FlashSpdst(settings, FlashOptions(**changes))  # type: ignore[arg-type]


def begun() -> ModelState:
    return strategy_for(SETTINGS).begin(LAYERS, INITIAL)


def test_the_share_falls_linearly_and_the_last_epoch_moves_nothing() -> None:
    assert move_times(5, 0.25) == pytest.approx({1: 0.2, 2: 0.15, 3: 0.1, 4: 0.05})
    assert move_times(2, 0.25) == {1: 0.125}
    assert move_times(1, 0.25) == {0: 0.125}, "before the only epoch"


def test_importance_is_the_mean_weight_of_a_layer() -> None:
    """Means of 2 and 6; a weight off the mask does not count."""
    whole = vector(1, -3, 9, 9, -6, 9, 9, 9, 60)
    assert layer_importance(mask_of("1100 1000"), whole, LAYERS) == [0.25, 0.75]
    assert layer_importance(mask_of("1100 0000"), whole, LAYERS) == [1.0, 0.0], "an empty layer"
    zeros = np.zeros(9, dtype=np.float32)
    assert layer_importance(mask_of("1100 1000"), zeros, LAYERS) == [0.5, 0.5]


def test_a_layer_drops_its_share_rounded_up() -> None:
    assert num_dropped(9, 100, 0.25, is_important=True) == 3  # 2.25
    assert num_dropped(8, 100, 0.25, is_important=True) == 2
    assert num_dropped(0, 100, 0.25, is_important=True) == 0


def test_an_important_layer_that_is_nearly_dense_drops_less() -> None:
    assert num_dropped(90, 100, 0.25, is_important=True) == 9  # a tenth: its sparsity
    assert num_dropped(90, 100, 0.25, is_important=False) == 23
    assert num_dropped(90, 100, 0.05, is_important=True) == 5  # 4.5
    assert num_dropped(80, 100, 0.25, is_important=True) == 20, "a sparsity of 0.2 is enough"
    assert num_dropped(100, 100, 0.25, is_important=True) == 0


def test_layers_grow_by_importance() -> None:
    assert growth_counts([0.25, 0.75], [100, 100], 8) == [2, 6]
    assert growth_counts([0.25, 0.75], [100, 100], 0) == [0, 0]


def test_a_layer_grows_at_most_99_percent_of_its_free_places_and_others_take_the_rest() -> None:
    """20 of 4 free places: 3 grow there, and 17 more in the other layer."""
    assert growth_counts([0.5, 0.5], [100, 4], 40) == [37, 3]
    assert growth_counts([1.0, 0.0], [200, 9], 200) == [198, 2]


def test_the_rest_is_spread_evenly_not_by_importance() -> None:
    """21 do not fit into the first layer. The others get 10 each, and the first of them one more.

    In the second case 31 are left. The second layer has room for 6, and the third takes 25.
    """
    assert growth_counts([0.6, 0.2, 0.2], [10, 100, 100], 50) == [9, 21, 20]
    assert growth_counts([0.8, 0.1, 0.1], [10, 12, 100], 50) == [9, 11, 30]


def test_growth_of_the_released_code_rounds_up_then_down() -> None:
    """2.5 and 2.5 are 3 and 3, one more than the budget.

    36, 18 and 6 of 10, 10 and 500 places: 9.9 fit into each of the first two. The other 34.2 end in
    the third, 11.4 of them at once: 40.2. Exact growth has 42 there.
    """
    assert fractional_growth([0.5, 0.5], [100, 100], 5) == [3, 3]
    assert growth_counts([0.5, 0.5], [100, 100], 5) == [3, 2]
    assert fractional_growth([0.6, 0.3, 0.1], [10, 10, 500], 60) == [9, 9, 40]
    assert growth_counts([0.6, 0.3, 0.1], [10, 10, 500], 60) == [9, 9, 42]


def test_growth_of_the_released_code_ends_if_nothing_fits_and_never_shrinks() -> None:
    assert fractional_growth([0.5, 0.5], [10, 2], 40) == [9, 1]
    assert fractional_growth([0.5, 0.5], [10, 10], -7.5) == [0, 0]
    assert fractional_growth([1.0, 0.0], [0, 0], 3) == [0, 0]


def test_a_move_in_the_rounding_of_the_released_code_adds_its_correction() -> None:
    """Two of three drop in each layer. Shares of 1/4 and 3/4 of 4 are 1 and 3; of 5.5, 2 and 5."""
    layers = manifest_of(8, 8, biases=0)
    whole = vector(3, 2, 1, 0, 0, 0, 0, 0, 9, 6, 3, 0, 0, 0, 0, 0)
    before = mask_of("11100000 11100000")
    for correction, kept in ((0.0, [2, 4]), (1.5, [3, 6])):
        after = move(before, whole, 2 / 3, 6, Stream(0, "test"), layers, correction)
        assert kept_by_layer(after, layers) == kept


def test_later_moves_of_the_released_code_correct_what_earlier_ones_missed() -> None:
    """Two layers of 20; 16 of 40 are wanted. All weights stay equal, so both layers count half.

    At 3/8 of the 8 of a layer, 3 drop and 3 grow. At 1/4, 2 and 2. At 1/8, 1 and 1: nothing is
    missed. A first mask of 9 and 8 weights drops 4 and 3, and each layer grows ceil(3.5) = 4: 18,
    so 16 - 18 = -2 is missed, and the correction is 0.75 * -2 - 2 = -3.5.
    Then 9 and 9 drop 3 each, and grow ceil((6 - 3.5) / 2) = 2 each: 16. The correction is now
    -3.5 / 4 + 0 + (-2 + 0) / 2 = -1.875. Then 8 and 8 drop one each, and grow ceil(0.0625) = 1.
    """
    layers, settings = manifest_of(20, 20), replace(SETTINGS, sparsity="0.6")
    site = ScriptedSite(layers, settings, trained=lambda mask, _values, _epochs: ones(mask))
    flash = FlashSpdst(settings, FlashOptions(prune_rate=0.5, growth="released"))
    for first, sizes in (((8, 8), [16, 16, 16, 16]), ((9, 8), [17, 18, 16, 16])):
        bits = "".join("1" * kept + "0" * (20 - kept) for kept in first)
        site.calls.clear()
        task = received(bits, ones(mask_of(bits)), 0, WARM_UP)
        FlashClient(flash).learn(task, site, 4, ignore)
        assert [call.mask.count("1") for call in site.calls] == sizes


def ones(mask: Mask) -> Vector:
    return np.ones(mask.num_kept + 1, np.float32)


def test_full_layers_grow_less_than_the_budget() -> None:
    assert growth_counts([0.5, 0.5], [1, 10], 11) == [0, 9]
    assert growth_counts([0.5, 0.5], [0, 0], 3) == [0, 0]


def test_a_move_drops_the_smallest_and_shifts_weights_to_important_layers() -> None:
    """Means of 2 and 6. Two of three drop in each layer; of the four that grow, 1 and 3."""
    layers = manifest_of(8, 8, biases=0)
    whole = vector(3, 2, 1, 0, 0, 0, 0, 0, 9, 6, 3, 0, 0, 0, 0, 0)
    before = mask_of("11100000 11100000")
    after = move(before, whole, 2 / 3, 6, Stream(0, "test"), layers)
    assert kept_by_layer(after, layers) == [2, 4]
    assert after.bools()[0] and after.bools()[8], "the largest of each layer stay"
    assert after == move(before, whole, 2 / 3, 6, Stream(0, "test"), layers)
    assert after != move(before, whole, 2 / 3, 6, Stream(1, "test"), layers)


def test_a_small_important_layer_takes_what_fits_and_the_others_the_rest() -> None:
    """Means 7.5, 2 and 1: shares 0.714, 0.190 and 0.095 of the six that were dropped.

    The first layer has two free places, of which 99 % are 1.98, so it grows one. The rest is spread
    evenly: 3.51 and 2.51, rounded down.
    """
    layers = manifest_of(5, 20, 20, biases=0)
    whole = np.array([9, 8, 7, 6, 0] + [2] * 10 + [0] * 10 + [1] * 8 + [0] * 12, np.float32)
    before = Mask.from_bools(whole > 0)
    assert layer_importance(before, whole, layers) == pytest.approx([15 / 21, 4 / 21, 2 / 21])
    assert [num_dropped(n, 20, 0.25, is_important=False) for n in (4, 10, 8)] == [1, 3, 2]
    assert growth_counts([15 / 21, 4 / 21, 2 / 21], [2, 13, 14], 6) == [1, 3, 2]
    after = move(before, whole, 0.25, 22, Stream(0, "test"), layers)
    assert kept_by_layer(after, layers) == [3 + 1, 7 + 3, 6 + 2]


def test_a_dense_important_layer_drops_nothing() -> None:
    layers = manifest_of(4, 20, biases=0)
    whole = np.array([9] * 4 + [1] * 9 + [0.5] + [0] * 10, np.float32)
    after = move(Mask.from_bools(whole > 0), whole, 0.5, 14, Stream(0, "test"), layers)
    assert kept_by_layer(after, layers) == [4, 10]
    whole[3] = 0  # a sparsity of 0.25: two of three drop, two of the three free places grow
    after = move(Mask.from_bools(whole > 0), whole, 0.5, 13, Stream(0, "test"), layers)
    assert kept_by_layer(after, layers) == [1 + 2, 5 + 5]


def test_growth_fills_up_a_mask_that_has_become_too_small() -> None:
    layers = manifest_of(10, 10, biases=0)
    whole = np.ones(20, dtype=np.float32)
    after = move(mask_of("1100000000 1100000000"), whole, 0.5, 6, Stream(0, "test"), layers)
    assert kept_by_layer(after, layers) == [3, 3], "one stays in each layer, two grow"


def test_sparse_learning_moves_the_mask_between_epochs() -> None:
    """Four epochs in rounds of two: the second two have the batches of the next round."""
    site = ScriptedSite(manifest_of(20, 20), SETTINGS, step=1.0)
    start = received("1" * 8 + "0" * 12 + "1" * 8 + "0" * 12, np.ones(17, np.float32), 3, WARM_UP)
    reply = FlashClient(rule(prune_rate=0.5)).learn(start, site, 4, ignore)
    assert [(call.round_number, call.epochs) for call in site.calls] == [
        (3, range(1)), (3, range(1, 2)), (4, range(1)), (4, range(1, 2)),
    ]  # fmt: skip
    masks = [call.mask for call in site.calls]
    assert masks[0] == bits_of(start.mask) and masks[3] == bits_of(reply.bits)
    assert len(set(masks)) == 4 and {mask.count("1") for mask in masks} == {16}
    # Every epoch adds 1: a weight that grew before the second epoch has 0 there.
    old, new = mask_of(masks[0]).bools(), mask_of(masks[1]).bools()
    begun_values = np.array(site.calls[1].values)[:-1]
    assert (begun_values[~old[new]] == 0).all() and (begun_values[old[new]] == 2).all()
    assert (reply.trained.base.correct, reply.trained.personal.correct) == (1, 4)
    assert reply.trained.training_loss == 2.5


def test_the_run_begins_with_a_random_mask_of_equal_densities() -> None:
    state = begun()
    assert (state.stage, state.mask_epoch) == (WARM_UP, 1)
    assert state.mask is not None and kept_by_layer(state.mask, LAYERS) == [2, 2]
    assert state.values is not None and np.array_equal(state.values, state.mask.gather(INITIAL))
    assert begun().mask == state.mask
    other = strategy_for(replace(SETTINGS, seed=1)).begin(LAYERS, INITIAL)
    assert other.mask != state.mask


def test_stage_one_asks_a_share_of_the_clients_and_is_no_round() -> None:
    plan = rule().plan(Position(0, 1, 0, stage=WARM_UP), CLIENTS)
    assert plan is not None
    assert plan == Plan(
        Work.TRAIN, plan.cohort, equal_weights=True, task=WARM_UP, counts_as_round=False
    )
    assert len(plan.cohort) == 2 and set(plan.cohort) < set(CLIENTS)
    assert plan.cohort == tuple(sorted(plan.cohort))
    again = rule().plan(Position(0, 1, 1, stage=WARM_UP), CLIENTS)
    assert again is not None and again.cohort != plan.cohort, "after a void step, others"


@pytest.mark.parametrize(
    ("fraction", "spare", "num_clients", "asked"),
    [(0.1, 1, 20, 3), (1.0, 0, 20, 20), (1.0, 4, 20, 20), (0.1, 0, 3, 2), (0.1, 0, 1, 1)],
)
def test_stage_one_asks_at_least_the_clients_that_complete_a_step(
    fraction: float, spare: int, num_clients: int, asked: int
) -> None:
    position = Position(0, 1, 0, spare=spare, stage=WARM_UP)
    plan = rule(init_fraction=fraction).plan(position, CLIENTS[:num_clients])
    assert plan is not None and len(plan.cohort) == asked


def test_stage_two_is_fedavg_with_equal_clients() -> None:
    plan = rule().plan(Position(0, 2, 0), CLIENTS)
    assert plan == Plan(Work.TRAIN, tuple(CLIENTS), equal_weights=True)
    assert rule().plan(Position(8, 2, 0), CLIENTS) is None


def test_stage_one_sends_bits_alone() -> None:
    assert rule().parts(WARM_UP, LAYERS) == UploadParts(
        values=False, bits=True, bits_required=True, max_kept=4
    )
    assert rule().parts("", LAYERS) == UploadParts()
    assert rule(growth="released").parts(WARM_UP, LAYERS) == UploadParts(
        values=False, bits=True, bits_required=True
    ), "its masks have other sizes"


def test_the_new_mask_has_the_mean_densities_and_the_initial_weights() -> None:
    """Two clients kept 12 and 4 of 2 * 16 weights: 6 and 2 of the 8 that the run keeps."""
    layers, initial = manifest_of(8, 8), np.arange(17).astype(np.float32)
    strategy = strategy_for(SETTINGS)
    state = strategy.begin(layers, initial)
    reduced = Reduced(
        np.zeros(0, np.float32),
        votes=votes(2, 2, 2, 2, 2, 1, 1, 0, 0, 0, 2, 2, 0, 0, 0, 0),
        total_weight=2,
    )
    after = strategy.finish(StepDone(Work.TRAIN, 0, WARM_UP), state, reduced, NoUploads())
    assert (after.stage, after.mask_epoch) == ("", 2)
    assert after.mask is not None and kept_by_layer(after.mask, layers) == [6, 2]
    assert after.values is not None and np.array_equal(after.values, after.mask.gather(initial))


def test_stage_two_may_start_from_new_weights_that_follow_from_the_seed() -> None:
    """A tensor that was sent stays."""
    drawn = TensorSpec("w", (30,), Role.MASKED, Init("uniform", 0.5))
    sent = TensorSpec("x", (1,), Role.DENSE, Init("sent"))
    layers, ended = Manifest((drawn, sent)), list[ModelState]()
    for seed in (0, 0, 1):
        settings = replace(SETTINGS, seed=seed, strategy_options="flash-spdst.reinitialize=true")
        strategy = strategy_for(settings)
        state = strategy.begin(
            layers, initial_vector(layers, seed, sent=np.full(31, 7, np.float32))
        )
        assert state.values is not None and state.mask is not None
        assert np.array_equal(state.values, state.mask.gather(state.initial)), "stage 1: w0"
        votes_of_one = Reduced(np.zeros(0, np.float32), votes=votes(*[1] * 15, *[0] * 15))
        ended.append(
            strategy.finish(StepDone(Work.TRAIN, 0, WARM_UP), state, votes_of_one, NoUploads())
        )
    first, again, other = (state.values for state in ended)
    assert first is not None and again is not None and other is not None
    mask = ended[0].mask
    assert mask is not None and np.array_equal(first, again)
    assert first[-1] == other[-1] == 7
    first, other = first[:-1], other[:-1]
    assert not np.isin(first, mask.gather(ended[0].initial)).any()
    assert not np.isin(first, other).any() and np.abs(first).max() < 0.5


@pytest.mark.parametrize(("sparsity", "counts"), [("0.75", [2, 1]), ("0.5", [4, 2])])
def test_densities_are_means_over_the_clients_and_scaled(sparsity: str, counts: list[int]) -> None:
    """Clients keep 3 and 4 of 4, and 1 and 2 of 8: densities 0.875 and 0.1875.

    3 of 12 weights are 2.1 and 0.9. 6 of 12 would be 4.2 and 1.8; the first layer has only 4.
    """
    reduced = Reduced(
        np.zeros(0, np.float32), votes=votes(2, 2, 2, 1, 2, 1, 0, 0, 0, 0, 0, 0), total_weight=2
    )
    flash = rule(replace(SETTINGS, sparsity=sparsity))
    assert flash.mean_counts(reduced, manifest_of(4, 8)) == counts


def test_too_few_bits_are_scaled_up_and_no_layer_ends_empty() -> None:
    """One client kept a single weight of the first layer; the run keeps four of eight."""
    reduced = Reduced(np.zeros(0, np.float32), votes=votes(1, 0, 0, 0, 0, 0, 0, 0))
    assert rule().mean_counts(reduced, LAYERS) == [3, 1]
    nothing = Reduced(np.zeros(0, np.float32), votes=votes(*[0] * 8))
    assert rule().mean_counts(nothing, LAYERS) == [2, 2]


def test_a_plain_round_takes_the_mean_on_the_same_mask() -> None:
    strategy = Strategy(SETTINGS, RuleMask(SETTINGS), rule())
    state = replace(begun(), stage="")
    mean = Reduced(vector(1, 2, 3, 4, 5))
    after = strategy.finish(StepDone(Work.TRAIN, 0), state, mean, NoUploads())
    assert after.mask == state.mask and after.mask_epoch == state.mask_epoch
    assert after.values is not None and after.values.tolist() == [1, 2, 3, 4, 5]


def test_a_client_learns_sparsely_in_stage_one_only() -> None:
    site = ScriptedSite(manifest_of(20, 20), SETTINGS, step=1.0)
    bits, values = "1" * 8 + "0" * 12 + "1" * 8 + "0" * 12, np.ones(17, np.float32)
    half = rule(init_epochs=3).client()
    first = half.train(received(bits, values, 0, WARM_UP), site, DictMemory(), ignore)
    assert len(site.calls) == 3 and first.bits is not None
    plain = half.train(received(bits, values), site, DictMemory(), ignore)
    assert len(site.calls) == 4 and site.calls[3].epochs is None and plain.bits is None


def test_a_real_client_returns_a_mask_of_the_same_size_twice() -> None:
    settings = replace(SMALL, strategy="flash-spdst")
    site, flash = small_site(settings), rule(settings, init_epochs=4)
    start = strategy_for(settings).begin(site.manifest, site.initial)
    assert start.mask is not None and start.values is not None
    work = Received(start.mask, start.values, 0, WARM_UP)
    made = [flash.client().train(work, site, DictMemory(), ignore).bits for _ in range(2)]
    assert made[0] is not None and made[0] == made[1] != start.mask
    assert made[0].num_kept == start.mask.num_kept
