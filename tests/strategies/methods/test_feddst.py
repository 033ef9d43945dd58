"""FedDST: the first mask, the rounds that move it, and both halves of a move."""

from dataclasses import replace

import numpy as np
import pytest

from ssfl.method.errors import SettingsError
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import (
    ClientId,
    Plan,
    Position,
    Received,
    Reduced,
    Reducer,
    StepDone,
    Work,
)
from ssfl.strategies.layerwise import kept_by_layer
from ssfl.strategies.mask_source import RuleMask
from ssfl.strategies.methods.feddst import (
    ADJUST,
    FedDst,
    FedDstOptions,
    adjusted,
    moving_share,
    pruned_back,
)
from ssfl.strategies.registry import check_settings, strategy_for
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

CLIENTS = [ClientId("c1"), ClientId("c2"), ClientId("c3")]
# Two layers of four weights, then a bias.
LAYERS = manifest_of(4, 4)
INITIAL = vector(1, -4, 3, -2, 8, 5, -6, 7, 60)
SETTINGS = RunSettings(strategy="feddst", sparsity="0.5", rounds=8, local_epochs=3)


def rule(**changes: object) -> FedDst:
    return FedDst(SETTINGS, FedDstOptions(**{"every": 2, "alpha": 0.5, **changes}))  # type: ignore[arg-type]


def begun(feddst: FedDst) -> ModelState:
    return feddst.begin(strategy_for(SETTINGS).source.begin(LAYERS, INITIAL))


def test_the_first_mask_keeps_the_largest_weights_of_each_layer() -> None:
    state = begun(rule(layers="uniform"))
    assert bits_of(state.mask) == "0110 1001".replace(" ", "")
    assert state.values is not None and state.values.tolist() == [-4, 3, 8, 7, 60]
    assert state.mask_epoch == 1


def test_a_random_first_mask_has_the_same_counts_and_follows_from_the_seed() -> None:
    made = [begun(rule(init="random")).mask for _ in range(2)]
    assert made[0] == made[1] != begun(rule()).mask
    assert made[0] is not None and bits_of(made[0])[:4].count("1") == 2
    assert made[0].num_kept == 4


def test_erk_is_the_default_and_uniform_an_option() -> None:
    """Shapes (2, 2) and (6, 6) of 40 weights, 20 kept: shares 4 and 12, so 5 of 4, then 16."""
    layers = manifest_of((2, 2), (6, 6))
    assert rule().counts(layers) == [4, 16]
    assert rule(layers="uniform").counts(layers) == [2, 18]


def test_counts_of_layers_can_be_rounded_down_as_in_the_released_code() -> None:
    """A quarter of two layers of ten weights is 2.5 in each."""
    settings, layers = replace(SETTINGS, sparsity="0.75"), manifest_of(10, 10)
    for rounding, counts in (("exact", [3, 2]), ("floor", [2, 2])):
        feddst = FedDst(settings, FedDstOptions(layers="uniform", rounding=rounding))
        assert feddst.counts(layers) == counts
        assert feddst.parts(ADJUST, layers).max_kept == sum(counts)
        source = strategy_for(settings).source.begin(layers, np.ones(21, np.float32))
        assert kept_by_layer(feddst.begin(source).mask, layers) == counts  # type: ignore[arg-type]


def test_every_second_round_of_the_first_half_moves_the_mask() -> None:
    feddst = rule()
    assert [number + 1 for number in range(8) if feddst.moves(number)] == [2, 4]
    assert [n + 1 for n in range(8) if rule(until_round=7, every=3).moves(n)] == [3, 6]
    assert [n + 1 for n in range(8) if rule(until_round=6, every=3).moves(n)] == [3, 6]
    assert not any(rule(every=10).moves(number) for number in range(8))


def test_a_round_that_moves_the_mask_is_reduced_by_holder() -> None:
    feddst = rule()
    plain = feddst.plan(Position(0, 1, 0), CLIENTS)
    assert plain == Plan(Work.TRAIN, tuple(CLIENTS), Reducer.WEIGHTED_SUM)
    move = feddst.plan(Position(1, 1, 0), CLIENTS)
    assert move == Plan(Work.TRAIN, tuple(CLIENTS), Reducer.WEIGHTED_SUM_BY_HOLDER, task=ADJUST)
    assert rule(until_round=99).plan(Position(9, 1, 0), CLIENTS) is None, "after the last round"


def test_only_a_move_sends_bits_and_no_more_than_the_run_keeps() -> None:
    plain, move = rule().parts("", LAYERS), rule().parts(ADJUST, LAYERS)
    assert plain.values and not plain.bits
    assert (move.values, move.bits, move.bits_required, move.max_kept) == (True, True, True, 4)


def test_the_share_falls_with_a_cosine_and_ends() -> None:
    """alpha / 2 * (1 + cos(pi / 4)) = 0.2 * 1.70711 in round 1 of 4."""
    found = [moving_share(0.4, "cosine", number, 4) for number in (0, 1, 2, 3, 4, 9)]
    assert found == pytest.approx([0.4, 0.341421, 0.2, 0.058579, 0, 0], abs=1e-6)
    assert [moving_share(0.4, "constant", number, 4) for number in (0, 3, 4)] == [0.4, 0.4, 0.0]


def test_a_client_prunes_to_s_plus_1_minus_s_times_alpha() -> None:
    """0.25 + 0.75 * 0.2 = 0.4 of 10, which leaves 6, although 0.8 of the 7 before are 5.6."""
    settings = replace(SETTINGS, sparsity="0.25")
    one = FedDst(settings, FedDstOptions(alpha=0.2, decay="constant", layers="uniform"))
    layer = manifest_of(10)
    assert (one.counts(layer), one.stay(layer, 0)) == ([7], [6])
    whole, mask = vector(0, -4, 3, 0, 8, 5, -6, 7, 0, -9, 60), mask_of("01101 11101")
    gradient = vector(5, 0, 0, 4, 0, 0, 0, 0, 6, 0, 99)
    after, values = adjusted(mask, whole, gradient, [6], [7], layer)
    assert bits_of(after) == "0100111111"
    assert values.tolist() == [0, -4, 0, 0, 8, 5, -6, 7, 0, -9, 60]


def test_alpha_applies_to_the_densities_of_all_layers_together() -> None:
    """20 of 40 weights, then 10. With linear sparsities, the layer of 4 stays dense."""
    layers = manifest_of((2, 2), (6, 6))
    for kind, counts, stay in (
        ("erk", [4, 16], [2, 7]), ("linear", [4, 16], [4, 6]), ("uniform", [2, 18], [1, 9]),
    ):  # fmt: skip
        feddst = rule(layers=kind, decay="constant")
        assert (feddst.counts(layers), feddst.stay(layers, 0)) == (counts, stay)
    layers = manifest_of((5, 4), (8, 10), (10, 16))  # 260 weights; the linear sparsities
    feddst = rule(layers="linear", decay="constant")
    assert (feddst.counts(layers), feddst.stay(layers, 0)) == ([13, 41, 76], [9, 21, 33])


def test_a_pruned_weight_that_is_regrown_at_once_starts_at_zero() -> None:
    whole = vector(0, -3, 0.5, 0, 2, 0, -1, 0, 60)
    gradient = vector(0, 0, 7, 0, 0, 0, -7, 0, 0)
    before = mask_of("0110 1010")
    after, values = adjusted(before, whole, gradient, [1, 1], [2, 2], LAYERS)
    assert after == before and values.tolist() == [0, -3, 0, 0, 2, 0, 0, 0, 60]


def test_growth_among_all_weights_sets_active_ones_to_zero() -> None:
    """Weight 1 is active and has the largest gradient, so only weight 5 is added."""
    layer, whole = manifest_of(8), vector(0, -3, 0.5, 0, 2, 0, -1, 0, 60)
    gradient = vector(0.1, 9, 0.2, -0.3, 0.4, -5, 0.5, 1, 99)
    before = mask_of("0110 1010")
    after, values = adjusted(before, whole, gradient, [2], [4], layer, grow_all=True)
    assert bits_of(after) == "01001100" and values.tolist() == [0, 0, 0, 0, 2, 0, 0, 0, 60]
    after, values = adjusted(before, whole, gradient, [2], [4], layer)
    assert bits_of(after) == "01001101" and values.tolist() == [0, -3, 0, 0, 2, 0, 0, 0, 60]


def test_a_share_moves_at_least_one_weight_of_a_layer() -> None:
    """0.495 of 4 is 1.98, rounded down. Without a share no round moves the mask."""
    small = rule(alpha=0.01, decay="constant", layers="uniform")
    assert small.stay(LAYERS, 0) == [1, 1]
    assert small.moves(1) and not rule(alpha=0.0).moves(1)


def test_a_layer_that_would_lose_all_its_weights_stays() -> None:
    whole, gradient = vector(0, -3, 0, 0, 2, 0, -1, 0, 60), vector(5, 0, 0, 0, 0, 5, 0, 0, 0)
    after, values = adjusted(mask_of("0100 1010"), whole, gradient, [0, 1], [1, 2], LAYERS)
    assert bits_of(after) == "01001100" and values.tolist() == [0, -3, 0, 0, 2, 0, 0, 0, 60]


def test_shares_of_whole_numbers_are_not_rounded_down() -> None:
    """0.93 of 100 is 93, although 1 - 0.07 is below 0.93 in floating point."""
    wide = FedDst(SETTINGS, FedDstOptions(alpha=0.07, decay="constant", layers="uniform"))
    assert wide.stay(manifest_of(200), 0) == [93]


def test_a_mask_below_its_counts_is_filled_up() -> None:
    whole, gradient = vector(0, -3, 0, 0, 2, 0, 0, 0, 60), vector(1, 0, 2, 0, 1, 0, 0, 2, 0)
    after, _ = adjusted(mask_of("0100 0000"), whole, gradient, [1, 1], [2, 2], LAYERS)
    assert bits_of(after) == "01101001"


def test_the_coordinator_prunes_to_the_largest_means_that_somebody_holds() -> None:
    """Weight 3 is the largest of layer 1, but no client holds it."""
    reduced = Reduced(vector(0.1, -0.3, 0.2, 9, 0, 0, -1, -2, 60), votes(5, 2, 7, 0, 5, 7, 7, 2, 7))
    assert bits_of(pruned_back(reduced, [2, 2], LAYERS)) == "01100011"
    assert bits_of(pruned_back(reduced, [2, 3], LAYERS)) == "01101011", "a held zero may stay"
    assert bits_of(pruned_back(reduced, [4, 0], LAYERS)) == "11100000", "three are held"


def test_means_over_the_holders_are_pruned_back() -> None:
    """Clients of 3 and 1 samples: weight 3 has (3 * 1 - 5) / 4 = -0.5 and drops out."""
    first, second = mask_of("1011 0010"), mask_of("1101 0100")
    weights = 3 * first.bools().astype(np.int64) + second.bools()
    one, two = vector(4, 0, -2, 1, 0, 0, 3, 0), vector(8, -1, 0, -5, 0, 2, 0, 0)
    mean = np.asarray((3 * one + two) / np.maximum(weights, 1), dtype=np.float32)
    assert mean.tolist() == [5, -1, -2, -0.5, 0, 2, 3, 0]
    assert bits_of(pruned_back(Reduced(mean, weights), [4], manifest_of(8))) == "10100110"


def test_a_move_replaces_the_mask_and_raises_its_epoch() -> None:
    strategy = Strategy(SETTINGS, RuleMask(SETTINGS), rule(layers="uniform"))
    state = strategy.begin(LAYERS, INITIAL)
    mean = vector(0, 7, 0, 8, 1, 0, 0, 2, 50)
    reduced = Reduced(mean, votes(0, 3, 0, 3, 3, 0, 0, 3, 3))
    after = strategy.finish(StepDone(Work.TRAIN, 1, ADJUST), state, reduced, NoUploads())
    assert bits_of(after.mask) == "01011001" and after.mask_epoch == 2
    assert after.values is not None and after.values.tolist() == [7, 8, 1, 2, 50]


def test_a_plain_round_takes_the_mean_on_the_same_mask() -> None:
    feddst = rule(layers="uniform")
    state = begun(feddst)
    reduced = Reduced(vector(1, 2, 3, 4, 5))
    after = feddst.finish(StepDone(Work.TRAIN, 0), state, reduced, NoUploads())
    assert after.mask == state.mask
    assert after.values is not None and after.values.tolist() == [1, 2, 3, 4, 5]


def test_a_client_moves_its_mask_before_the_last_epoch() -> None:
    """Every epoch adds 1: the grown weight starts at 0 and reaches 1."""
    site = ScriptedSite(LAYERS, SETTINGS, step=1.0)
    site.gradients = vector(0, 9, 0, 5, 0, 5, 9, 0, 0)
    work = received("0110 1010", vector(4, 1, 4, 1, 50), 1, ADJUST)
    half = rule(layers="uniform", decay="constant").client()
    reply = half.train(work, site, DictMemory(), ignore)
    assert [call.epochs for call in site.calls] == [range(2), range(2, 3)]
    assert [call.mask for call in site.calls] == ["01101010", "01011010"]
    assert site.calls[1].values == [6, 0, 6, 0, 52], "layer 2 regrows the weight that it pruned"
    assert bits_of(reply.bits) == "01011010"
    assert reply.trained.values.tolist() == [7, 1, 7, 1, 53]
    assert reply.trained.base.correct == 1 and reply.trained.personal.correct == 2


def test_more_last_epochs_and_a_short_round() -> None:
    for settings, last_epochs, expected in (
        (SETTINGS, 2, [range(1), range(1, 3)]),
        (SETTINGS, 9, [range(0), range(3)]),
        (SETTINGS, 0, [range(3), range(3, 3)]),
        (replace(SETTINGS, local_epochs=1), 1, [range(0), range(1)]),
        (replace(SETTINGS, local_steps=15, batch_size=2), 1, [range(2), range(2, 3)]),
    ):
        site = ScriptedSite(LAYERS, settings, gradients=np.zeros(9, dtype=np.float32))
        work = received("0110 1010", vector(4, 1, 4, 1, 50), 1, ADJUST)
        FedDst(settings, FedDstOptions(last_epochs=last_epochs)).client().train(
            work, site, DictMemory(), ignore
        )
        assert [call.epochs for call in site.calls] == expected


def test_a_plain_round_at_a_client_is_one_training_without_bits() -> None:
    site = ScriptedSite(LAYERS, SETTINGS, step=1.0)
    work = received("0110 1010", vector(4, 1, 4, 1, 50))
    reply = rule().client().train(work, site, DictMemory(), ignore)
    assert len(site.calls) == 1 and reply.bits is None
    assert reply.trained.values.tolist() == [7, 4, 7, 4, 53]


def test_a_real_client_trains_the_weights_that_it_grows() -> None:
    settings = replace(SMALL, strategy="feddst")
    site, feddst = small_site(settings), FedDst(settings, FedDstOptions(alpha=0.5, every=1))
    start = feddst.begin(strategy_for(settings).source.begin(site.manifest, site.initial))
    assert start.mask is not None and start.values is not None
    work = Received(start.mask, start.values, 0, ADJUST)
    reply = feddst.client().train(work, site, DictMemory(), ignore)
    assert reply.bits is not None
    assert kept_by_layer(reply.bits, site.manifest) == feddst.counts(site.manifest)
    grown = reply.bits.bools() & ~start.mask.bools()
    values = reply.bits.scatter(reply.trained.values)
    assert grown.sum() > 3 and values[: grown.size][grown].all()
    again = feddst.client().train(work, site, DictMemory(), ignore)
    assert again.bits == reply.bits
    assert np.array_equal(again.trained.values, reply.trained.values)


@pytest.mark.parametrize(
    "changes",
    [
        {"refresh_every": 5},
        {"warmup_rounds": 1},
        {"bytes_per_round": "2kB"},
        {"layer_guard": 0.1},
        {"criterion": "random"},
    ],
)
def test_settings_of_another_mask_are_refused(changes: dict[str, object]) -> None:
    check_settings(SETTINGS)
    with pytest.raises(SettingsError, match="--strategy feddst chooses the mask itself"):
        check_settings(replace(SETTINGS, **changes))  # type: ignore[arg-type]


def test_the_strategy_is_neither_dense_nor_refreshed() -> None:
    strategy = strategy_for(SETTINGS)
    assert not strategy.is_dense and strategy.why_fixed == "the strategy moves the mask itself"
    assert strategy.num_kept(LAYERS) == 4
