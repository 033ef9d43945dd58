"""FLASH-JMWST: rounds in which clients move the mask, and what the coordinator keeps."""

from dataclasses import replace

import numpy as np
import pytest

from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import (
    ClientId,
    Plan,
    Position,
    Received,
    Reduced,
    Reducer,
    StepDone,
    UploadParts,
    Work,
)
from ssfl.strategies.layerwise import kept_by_layer
from ssfl.strategies.mask_source import RuleMask
from ssfl.strategies.methods.flash_jmwst import MOVE, FlashJmwst, JmwstOptions
from ssfl.strategies.methods.flash_spdst import WARM_UP, FlashSpdst
from ssfl.strategies.registry import rule_for, strategy_for
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
LAYERS = manifest_of(4, 4)
INITIAL = vector(1, 2, 3, 4, 5, 6, 7, 8, 60)
SETTINGS = RunSettings(strategy="flash-jmwst", sparsity="0.5", rounds=8, local_epochs=2)


def rule(**changes: object) -> FlashJmwst:
    return FlashJmwst(SETTINGS, JmwstOptions(**changes))  # type: ignore[arg-type]


def test_each_file_names_its_own_rule() -> None:
    assert rule_for("flash-jmwst") is FlashJmwst and rule_for("flash-spdst") is FlashSpdst


def test_stage_one_is_that_of_spdst() -> None:
    spdst = FlashSpdst(SETTINGS, FlashSpdst.Options())
    position = Position(0, 1, 0, stage=WARM_UP)
    assert rule().plan(position, CLIENTS) == spdst.plan(position, CLIENTS)
    assert rule().parts(WARM_UP, LAYERS) == spdst.parts(WARM_UP, LAYERS)
    state = RuleMask(SETTINGS).begin(LAYERS, INITIAL)
    assert rule().begin(state).mask == spdst.begin(state).mask


def test_every_nth_round_moves_the_mask_and_clients_count_equally() -> None:
    flash = rule(every=3)
    plans = [flash.plan(Position(done, 2, 0), CLIENTS) for done in range(8)]
    assert [plan.task for plan in plans if plan] == [MOVE, "", "", MOVE, "", "", MOVE, ""]
    assert plans[0] == Plan(Work.TRAIN, tuple(CLIENTS), equal_weights=True, task=MOVE)
    assert plans[1] == Plan(Work.TRAIN, tuple(CLIENTS), equal_weights=True)
    assert flash.plan(Position(9, 2, 0), CLIENTS) is None


@pytest.mark.parametrize(
    ("mode", "reducer"),
    [("mean", Reducer.WEIGHTED_SUM), ("holders", Reducer.WEIGHTED_SUM_BY_HOLDER)],
)
def test_the_mode_of_the_mean_is_an_option(mode: str, reducer: Reducer) -> None:
    plan = rule(update_mode=mode).plan(Position(0, 2, 0), CLIENTS)
    assert plan is not None and plan.reducer is reducer


def test_a_move_sends_bits_and_values() -> None:
    assert rule().parts(MOVE, LAYERS) == UploadParts(bits=True, bits_required=True, max_kept=4)
    assert rule().parts("", LAYERS) == UploadParts()
    released = rule(growth="released").parts(MOVE, LAYERS)
    assert released == UploadParts(bits=True, bits_required=True), "of any size"


def test_the_next_mask_has_the_mean_densities_and_the_largest_weights() -> None:
    """Votes of 6 and 2: three of layer 1 and one of layer 2. No client holds the weight of 9."""
    strategy = Strategy(SETTINGS, RuleMask(SETTINGS), rule())
    state = replace(strategy.begin(LAYERS, INITIAL), stage="")
    mean = vector(0.1, -5, 0.2, 9, 1, -2, 0, 0, 50)
    reduced = Reduced(mean, votes=votes(2, 2, 2, 0, 1, 1, 0, 0), total_weight=2)
    after = strategy.finish(StepDone(Work.TRAIN, 0, MOVE), state, reduced, NoUploads())
    assert bits_of(after.mask) == "11100100"
    assert after.values is not None
    assert np.array_equal(after.values, vector(0.1, -5, 0.2, -2, 50))
    assert (after.mask_epoch, after.stage) == (2, "")


def test_the_next_mask_of_unequal_layers() -> None:
    """Densities of 3.5 of 4 and 1.5 of 8, scaled to 3 of 12: the two and the one largest |w|."""
    settings, layers = replace(SETTINGS, sparsity="0.75"), manifest_of(4, 8)
    flash = FlashJmwst(settings, JmwstOptions())
    state = flash.begin(RuleMask(settings).begin(layers, np.zeros(13, np.float32)))
    mean = vector(0.1, -4, 2, -3, 1, -2, 0, 0, 0.5, 0, 0, 3, 50)
    reduced = Reduced(mean, votes=votes(2, 2, 2, 1, 1, 1, 0, 0, 0, 0, 0, 1), total_weight=2)
    after = flash.finish(StepDone(Work.TRAIN, 0, MOVE), state, reduced, NoUploads())
    assert bits_of(after.mask) == "010100000001"


def test_densities_are_scaled_up_too_but_only_held_weights_are_kept() -> None:
    """Two votes for layer 1 and one for layer 2 give 3 and 1 of four; layer 1 has two holders."""
    strategy = Strategy(SETTINGS, RuleMask(SETTINGS), rule())
    state = replace(strategy.begin(LAYERS, INITIAL), stage="")
    reduced = Reduced(vector(1, 2, 0, 0, 0, 0, 0, 3, 50), votes=votes(1, 1, 0, 0, 0, 0, 0, 1))
    after = strategy.finish(StepDone(Work.TRAIN, 0, MOVE), state, reduced, NoUploads())
    assert bits_of(after.mask) == "11000001"


def test_densities_may_be_scaled_down_only_and_rounded_down() -> None:
    """Of 2 * 8 weights, 0.75 prunes to 4.

    Two clients hold 4 + 3 and 2 + 1: means of 3.5 and 1.5, whose sum is 5; 4 / 5 of them are 2.8
    and 1.2. Means of 1.5 and 1 are below 4 and stay, rounded down.
    """
    settings, layers = replace(SETTINGS, sparsity="0.75"), manifest_of(8, 8)
    flash = FlashJmwst(settings, JmwstOptions(rescale="down"))
    many = votes(2, 2, 2, 1, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0)
    few = votes(2, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0)
    assert flash.next_counts(many, 2, layers) == [2, 1]
    assert flash.next_counts(few, 2, layers) == [1, 1]
    both = FlashJmwst(settings, JmwstOptions())
    assert both.next_counts(many, 2, layers) == [3, 1]
    assert both.next_counts(few, 2, layers) == [2, 2], "2.4 and 1.6"
    nothing = votes(*[0] * 16)
    assert flash.next_counts(nothing, 2, layers) == [0, 0]


def test_densities_may_be_those_of_the_weights_that_any_client_holds() -> None:
    """Five and one: 4 / 6 of them are 3.33 and 0.67; votes of seven and two are 3.1 and 0.9."""
    settings, layers = replace(SETTINGS, sparsity="0.75"), manifest_of(8, 8)
    held = votes(2, 2, 1, 1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0)
    for rescale, counts in (("both", [3, 1]), ("down", [3, 0])):
        options = JmwstOptions(densities="union", rescale=rescale)
        assert FlashJmwst(settings, options).next_counts(held, 2, layers) == counts
    wide = votes(1, 1, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0)
    options = JmwstOptions(densities="union")
    assert FlashJmwst(settings, options).next_counts(wide, 2, layers) == [3, 1]
    assert FlashJmwst(settings, JmwstOptions()).next_counts(wide, 2, layers) == [2, 2]


def test_a_mask_that_stays_keeps_its_epoch() -> None:
    strategy = Strategy(SETTINGS, RuleMask(SETTINGS), rule())
    start = replace(strategy.begin(LAYERS, INITIAL), stage="")
    state = replace(start, mask=mask_of("1100 1100"), values=vector(1, 2, 5, 6, 60))
    reduced = Reduced(vector(3, 3, 0, 0, 3, 3, 0, 0, 50), votes=votes(2, 2, 0, 0, 2, 2, 0, 0))
    after = strategy.finish(StepDone(Work.TRAIN, 0, MOVE), state, reduced, NoUploads())
    assert after.mask == state.mask and after.mask_epoch == state.mask_epoch
    assert after.values is not None and after.values.tolist() == [3, 3, 3, 3, 50]


def test_the_other_steps_are_those_of_spdst() -> None:
    state = rule().begin(RuleMask(SETTINGS).begin(LAYERS, INITIAL))
    warm = Reduced(np.zeros(0, np.float32), votes=votes(1, 1, 1, 0, 1, 0, 0, 0))
    after = rule().finish(StepDone(Work.TRAIN, 0, WARM_UP), state, warm, NoUploads())
    assert after.stage == "" and after.mask is not None
    assert kept_by_layer(after.mask, LAYERS) == [3, 1]
    mean = Reduced(vector(1, 2, 3, 4, 5))
    plain = rule().finish(StepDone(Work.TRAIN, 0), after, mean, NoUploads())
    assert plain.values is not None and plain.values.tolist() == [1, 2, 3, 4, 5]


def test_a_client_moves_its_mask_in_the_rounds_that_ask_for_it() -> None:
    """Two local epochs: one move between them, at half of the share."""
    site = ScriptedSite(manifest_of(20, 20), SETTINGS, step=1.0)
    bits, values = "1" * 8 + "0" * 12 + "1" * 8 + "0" * 12, np.ones(17, np.float32)
    half = rule(prune_rate=0.5).client()
    reply = half.train(received(bits, values, 5, MOVE), site, DictMemory(), ignore)
    assert [(call.round_number, call.epochs) for call in site.calls] == [
        (5, range(1)), (5, range(1, 2)),
    ]  # fmt: skip
    assert reply.bits is not None and bits_of(reply.bits) == site.calls[1].mask
    stayed = np.array(site.calls[1].values) == 2
    assert reply.bits.num_kept == 16
    assert stayed.sum() - 1 >= 12, "a quarter of eight may move in each layer"
    frozen = half.train(received(bits, values, 6), site, DictMemory(), ignore)
    assert frozen.bits is None and site.calls[2].epochs is None
    half.train(received(bits, values, 0, WARM_UP), site, DictMemory(), ignore)
    assert len(site.calls) == 3 + 10


def test_with_one_local_epoch_the_mask_moves_before_it() -> None:
    site = ScriptedSite(manifest_of(20, 20), replace(SETTINGS, local_epochs=1), step=1.0)
    bits, values = "1" * 8 + "0" * 12 + "1" * 8 + "0" * 12, np.ones(17, np.float32)
    reply = rule().client().train(received(bits, values, 5, MOVE), site, DictMemory(), ignore)
    assert [call.epochs for call in site.calls] == [range(1)]
    assert site.calls[0].mask == bits_of(reply.bits) != bits


def test_a_real_client_moves_its_mask_within_a_round() -> None:
    settings = replace(SMALL, strategy="flash-jmwst")
    site = small_site(settings)
    start = strategy_for(settings).begin(site.manifest, site.initial)
    assert start.mask is not None and start.values is not None
    reply = (
        strategy_for(settings)
        .client()
        .train(Received(start.mask, start.values, 0, MOVE), site, DictMemory(), ignore)
    )
    assert reply.bits is not None and reply.bits != start.mask
    assert reply.bits.num_kept == start.mask.num_kept
    assert reply.trained.values.size == start.values.size
