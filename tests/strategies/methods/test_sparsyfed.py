"""SparsyFed: powered weights, the prune after training, and the union of the clients' masks."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.client.local_work import Site
from ssfl.method.errors import DensityError
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import (
    ClientId,
    Position,
    Received,
    Reduced,
    Reducer,
    StepDone,
    UploadParts,
    Work,
)
from ssfl.strategies.mask_source import RuleMask
from ssfl.strategies.methods.sparsyfed import (
    SparsyFed,
    SparsyFedOptions,
    kept_weights,
    num_kept,
    power,
    signed_power,
    with_power,
)
from ssfl.strategies.registry import strategy_for
from ssfl.strategies.strategy import Strategy
from strategies.scripted_site import DictMemory, ignore, manifest_of, mask_of, vector
from strategies.small_site import SMALL, small_site
from strategies.steps import NoUploads

FOUR = manifest_of(2, 2)  # four masked weights in two layers, then a bias


def mask(*kept: int) -> Mask:
    return mask_of("".join(map(str, kept)))


def sparsyfed(exponent: float = 2.0, activations: str = "batch", **settings: Any) -> Strategy:
    run = RunSettings(strategy="sparsyfed", **settings)
    rule = SparsyFed(run, SparsyFedOptions(exponent, activations))
    return Strategy(run, RuleMask(run), rule)


def test_power_by_hand() -> None:
    size = np.array([0.0, 1.0, 16.0, 2.0**-8])
    assert power(size, 1.25).tolist() == [0, 1, 32, 2.0**-10]
    assert power(size, 1.0).tolist() == size.tolist()
    assert power(size, 2.5).tolist() == [0, 1, 1024, 2.0**-20]
    assert power(size, 0.5).tolist() == [0, 1, 4, 2.0**-4]


def test_power_agrees_with_logarithms_to_the_precision_of_float32() -> None:
    size = np.geomspace(1e-12, 1e3, 1000)
    for exponent in (0.8, 1.1, 1 / 1.1, 3.999):
        np.testing.assert_allclose(power(size, exponent), size**exponent, rtol=1e-8)


def test_signed_power_keeps_signs_and_zeros_and_rounds_once() -> None:
    assert signed_power(vector(16, -16, 0, 1), 1.25).tolist() == [32, -32, 0, 1]
    long = np.linspace(-1, 1, 200_001, dtype=np.float32)  # several blocks
    expected = np.sign(long) * np.sqrt(np.sqrt(np.abs(long.astype(np.float64)))) * np.abs(long)
    assert signed_power(long, 1.25).tobytes() == expected.astype(np.float32).tobytes()


def test_unmasked_values_are_not_powered() -> None:
    assert with_power(mask(1, 0, 0, 1), vector(3, -4, 7), 2).tolist() == [9, -16, 7]


@pytest.mark.parametrize(
    ("sparsity", "size", "kept"),
    [("0.95", 50, 2), ("0.95", 30, 2), ("0.5", 4, 2), ("0.5", 5, 3), ("0.5", 7, 3), ("0.9", 4, 0)],
)
def test_the_number_that_is_dropped_is_rounded_half_to_even(
    sparsity: str, size: int, kept: int
) -> None:
    """47.5 is 48, 28.5 is 28, 2.5 is 2, 3.5 is 4; 3.6 is 4 and leaves none."""
    if kept:
        assert num_kept(sparsity, size) == kept
    else:
        with pytest.raises(DensityError, match="keeps none"):
            num_kept(sparsity, size)


def test_the_largest_weights_of_all_layers_are_kept() -> None:
    assert kept_weights(vector(-3, 1, 0.5, 2), 2) == mask(1, 0, 0, 1)


def test_of_equal_weights_the_first_are_kept_and_zeros_never() -> None:
    assert kept_weights(vector(1, -1, 1, 1), 2) == mask(1, 1, 0, 0)
    assert kept_weights(vector(0, 5, 0, 0), 3) == mask(0, 1, 0, 0)
    assert kept_weights(vector(0, 0, 0, 0), 3) == mask(0, 0, 0, 0)


def test_the_run_begins_dense_with_corrected_weights() -> None:
    start = vector(9, -4, 1, 0, 7)
    state = sparsyfed(sparsity="0.5").begin(FOUR, start)
    assert state.mask == mask(1, 1, 1, 1) and state.values is not None
    assert state.values.tolist() == [3, -2, 1, 0, 7], "square roots; the bias is as it was"
    assert state.initial.tolist() == start.tolist()


def test_the_deployed_weights_are_the_initial_ones_before_training() -> None:
    start = np.linspace(-1, 1, 41, dtype=np.float32)
    strategy = sparsyfed(1.25)
    deployed = strategy.rule.deployed(strategy.begin(manifest_of(40), start))
    assert deployed.values is not None
    np.testing.assert_allclose(deployed.values, start, rtol=1e-6)


def test_an_impossible_sparsity_is_refused_before_the_first_round() -> None:
    with pytest.raises(DensityError, match="keeps none of the model's 4 weights"):
        sparsyfed(sparsity="0.9").begin(FOUR, vector(1, 1, 1, 1, 1))


def test_a_round_is_fedavgs_with_a_mask_of_each_client() -> None:
    strategy = sparsyfed(sparsity="0.5", clients_per_round=2, rounds=3)
    clients = [ClientId(name) for name in "abc"]
    plan = strategy.plan(Position(0, 1, 0), clients)
    assert plan is not None and plan.work is Work.TRAIN and len(plan.cohort) == 2
    assert plan.reducer is Reducer.WEIGHTED_SUM and not plan.equal_weights
    assert strategy.plan(Position(3, 5, 0), clients) is None
    assert strategy.parts("", FOUR) == UploadParts(bits=True, bits_required=True, max_kept=2)


def test_the_next_mask_is_the_union_and_dropped_weights_count_as_zero() -> None:
    """Clients of 1 and 3 samples keep weights 0, 1 and 1, 3: the mean is over all 4 samples."""
    strategy = sparsyfed(sparsity="0.5")
    state = strategy.begin(FOUR, vector(9, 4, 1, 1, 7))
    # weight 0: 1 x 8 / 4; weight 1: (1 x 4 + 3 x -4) / 4; weight 3: 3 x 4 / 4; bias: mean
    reduced = Reduced(vector(2, -2, 0, 3, 6), votes=np.array([1, 4, 0, 3]), total_weight=4)
    after = strategy.finish(StepDone(Work.TRAIN, 0), state, reduced, NoUploads())
    assert after.mask == mask(1, 1, 0, 1) and after.mask_epoch == 2
    assert after.values is not None and after.values.tolist() == [2, -2, 3, 6]
    deployed = strategy.rule.deployed(after)
    assert deployed.mask == after.mask and deployed.values is not None
    assert deployed.values.tolist() == [4, -4, 9, 6]


def test_a_weight_of_the_union_may_be_zero_and_the_same_mask_is_no_new_one() -> None:
    strategy = sparsyfed(sparsity="0.5")
    state = replace(
        strategy.begin(FOUR, vector(9, 4, 1, 1, 7)), mask=mask(1, 1, 0, 0), values=vector(3, 2, 7)
    )
    reduced = Reduced(vector(0, 2, 0, 0, 7), votes=np.array([2, 2, 0, 0]), total_weight=2)
    after = strategy.finish(StepDone(Work.TRAIN, 1), state, reduced, NoUploads())
    assert (after.mask, after.mask_epoch) == (state.mask, state.mask_epoch)
    assert after.values is not None and after.values.tolist() == [0, 2, 7]


def test_a_run_of_this_name_has_the_papers_exponent_and_starts_dense() -> None:
    strategy = strategy_for(RunSettings(strategy="sparsyfed", sparsity="0.5"))
    assert isinstance(strategy.rule, SparsyFed) and strategy.rule.options.exponent == 1.25
    assert strategy.begin(FOUR, vector(16, 1, 1, 1, 7)).mask == mask(1, 1, 1, 1)


# -- the client's half


def site_of(sparsity: str, **changes: Any) -> Site:
    return small_site(replace(SMALL, sparsity=sparsity, clip_norm=0.0, **changes))


def received_by(site: Site, strategy: Strategy, kept: Mask | None = None) -> Received:
    state = strategy.begin(site.manifest, site.initial)
    assert state.mask is not None and state.values is not None
    if kept is None:
        return Received(state.mask, state.values, 0)
    return Received(kept, kept.gather(state.values), 3)


def strategy_of(site: Site, exponent: float = 1.25, activations: str = "batch") -> Strategy:
    return sparsyfed(exponent, activations, sparsity=site.settings.sparsity)


def every_second(site: Site) -> Mask:
    return Mask.from_bools(np.arange(site.manifest.num_masked) % 2 == 0)


@pytest.mark.parametrize("activations", ["batch", "round", "full"])
def test_a_client_prunes_to_the_sparsity_inside_its_start(activations: str) -> None:
    site = site_of("0.75")
    strategy = strategy_of(site, activations=activations)
    start = every_second(site)
    reply = strategy.client().train(received_by(site, strategy, start), site, DictMemory(), ignore)
    assert reply.bits is not None
    assert reply.bits.num_kept == num_kept("0.75", site.manifest.num_masked)
    assert not (reply.bits.bools() & ~start.bools()).any(), "a zero has no gradient"
    assert reply.trained.values.size == reply.bits.num_kept + site.manifest.num_unmasked
    assert reply.trained.training_loss > 0


def test_a_client_tests_the_powered_weights_of_base_and_update() -> None:
    site = site_of("0.5")
    strategy = strategy_of(site)
    received = received_by(site, strategy)
    reply = strategy.client().train(received, site, DictMemory(), ignore)
    assert reply.bits is not None

    def deployed(kept: Mask, values: npt.NDArray[np.float32]) -> ModelState:
        state = ModelState(site.manifest, site.initial, kept, 1, values)
        return strategy.rule.deployed(state)

    for found, kept, values in (
        (reply.trained.base, received.mask, received.values),
        (reply.trained.personal, reply.bits, reply.trained.values),
    ):
        plain = deployed(kept, values)
        assert plain.mask is not None and plain.values is not None
        assert found == site.evaluate(plain.mask, plain.values)
        assert found != site.evaluate(kept, values), "the trained weights are others"


def test_an_exponent_of_one_is_plain_training_and_then_a_prune() -> None:
    site = site_of("0.5")
    strategy = strategy_of(site, exponent=1.0, activations="full")
    received = received_by(site, strategy)
    plain = site.train(received.mask, received.values, 0, ignore)
    reply = strategy.client().train(received, site, DictMemory(), ignore)
    num_masked = site.manifest.num_masked
    kept = kept_weights(plain.values[:num_masked], num_kept("0.5", num_masked))
    assert reply.bits == kept
    assert reply.trained.values.tobytes() == kept.gather(plain.values).tobytes()
    assert reply.trained.training_loss == plain.training_loss


def test_the_same_round_gives_the_same_bits_and_leaves_the_network_plain() -> None:
    site = site_of("0.5")
    strategy = strategy_of(site)
    received = received_by(site, strategy, every_second(site))
    names = [name for name, _ in site.network.named_parameters()]
    replies = [
        strategy.client().train(received, site, DictMemory(), ignore).trained.values.tobytes()
        for _ in range(2)
    ]
    assert replies[0] == replies[1]
    assert [name for name, _ in site.network.named_parameters()] == names
    assert not any({"weight", "forward"} & set(vars(m)) for m in site.network.modules())


def test_training_lowers_the_loss_over_rounds() -> None:
    """Three rounds of one client, from the dense start."""
    site = site_of("0.5", learning_rate=0.3)
    strategy = strategy_of(site)
    state = strategy.begin(site.manifest, site.initial)
    losses = []
    for number in range(3):
        assert state.mask is not None and state.values is not None
        received = Received(state.mask, state.values, number)
        reply = strategy.client().train(received, site, DictMemory(), ignore)
        losses.append(reply.trained.base.loss_sum)
        assert reply.bits is not None
        votes = reply.bits.bools().astype(np.int64)
        reduced = Reduced(reply.bits.scatter(reply.trained.values), votes=votes, total_weight=1)
        state = strategy.finish(StepDone(Work.TRAIN, number), state, reduced, NoUploads())
        assert state.mask == reply.bits
    assert losses[2] < losses[0] / 2
