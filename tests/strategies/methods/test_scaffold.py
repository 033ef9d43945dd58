"""SCAFFOLD: the control variates by hand, with a real network, and under changing masks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ssfl.client.local_work import Site
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import batch_tensors, training_batches
from ssfl.learning.flatten import write_vector
from ssfl.learning.load_task import load_task
from ssfl.learning.saliency import whole_gradient
from ssfl.method.errors import SettingsError
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import (
    Answer,
    ClientId,
    Correction,
    Position,
    Received,
    Reduced,
    Reducer,
    StepDone,
    Work,
)
from ssfl.strategies.methods.scaffold import control_change, divisor
from ssfl.strategies.registry import check_settings
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
from strategies.steps import NoUploads, finish

# Two steps of rate 0.25: the divisor is 0.5.
PLAIN = RunSettings(
    learning_rate=0.25, lr_decay=1.0, momentum=0.0, local_epochs=1, batch_size=16, criterion="none"
)


def sent(c: Vector, *places: int, round_number: int = 0) -> Received:
    return Received(mask_of(*places), vector(1, 1, 1, 1), round_number, "2", {"control": c})


def answered(site: FakeSite, memory: FakeMemory, received: Received) -> Answer:
    return rule_of("scaffold").client().train(received, site, memory, ignore)


# -- arithmetic


def test_the_divisor_of_plain_sgd_is_the_steps_times_the_rate() -> None:
    assert divisor([0.25] * 8, 0.0) == 2.0
    assert divisor([0.5, 0.25], 0.0) == 0.75, "rates that fall"
    assert divisor([], 0.9) == 0.0


def test_momentum_applies_early_gradients_more_often() -> None:
    """The first gradient moves the weights by 1 + 0.5 + 0.25 rates, the last by 1."""
    assert divisor([1.0, 1.0, 1.0], 0.5) == 1.75 + 1.5 + 1
    assert divisor([4.0, 2.0], 0.5) == (4 + 2 * 0.5) + 2


def test_the_change_of_a_control_variate() -> None:
    """c_i+ - c_i = (x - y) / (K rate) - c = (1 - 0.5) / 0.25 - 0.5, and so on."""
    c, x, y = vector(0.5, 0, 1), vector(1, 1, 1), vector(0.5, 1, 2)
    assert floats(control_change(c, x, y, 0.25)) == [1.5, 0, -5]


# -- the client


def test_the_first_round_is_corrected_by_c_alone_and_stores_the_mean_gradient() -> None:
    site, memory = FakeSite([vector(-1, 0, 2, 8)], PLAIN), FakeMemory()
    reply = answered(site, memory, sent(vector(0.5, 1, 0, 0), 1, 3))
    (rule,) = site.calls[0].rules
    assert isinstance(rule, Correction) and floats(rule.vector) == [0.5, 1, 0, 0]
    # (x - y) / 0.5 - c; the last value is a running statistic
    assert floats(reply.vectors["control"]) == [1.5, -1, -4, 0]
    stored = memory.puts["control"]
    assert isinstance(stored, np.ndarray)
    assert floats(stored) == [0, 1.5, 0, -1, -4, 0]
    assert floats(reply.trained.values) == [0, 1, 3, 9]
    assert (reply.bits, reply.numbers) == (None, ())


def test_later_rounds_subtract_the_own_control_variate() -> None:
    site = FakeSite([vector(-1, 0, 0, 0)], PLAIN)
    memory = FakeMemory({"control": vector(7, 2, 7, 3, 4, 0)})
    reply = answered(site, memory, sent(vector(0.5, 1, 0, 0), 1, 3))
    (rule,) = site.calls[0].rules
    assert isinstance(rule, Correction) and floats(rule.vector) == [-1.5, -2, -4, 0]
    # The change does not depend on c_i; it is added to it, and zero off the mask.
    assert floats(reply.vectors["control"]) == [1.5, -1, 0, 0]
    stored = memory.puts["control"]
    assert isinstance(stored, np.ndarray)
    assert floats(stored) == [0, 3.5, 0, 2, 4, 0]


def test_the_rate_is_that_of_the_round() -> None:
    site = FakeSite([vector(-1, 0, 0, 0)], replace(PLAIN, lr_decay=0.5))
    received = sent(vector(0, 0, 0, 0), 1, 3, round_number=2)
    assert floats(answered(site, FakeMemory(), received).vectors["control"]) == [8, 0, 0, 0]


def test_steps_momentum_and_the_schedule_of_rates_count() -> None:
    """With momentum 0.5 and two steps of 0.25 the divisor is 0.25 + 0.375."""
    none = vector(0, 0, 0, 0)
    for settings, expected in (
        (replace(PLAIN, momentum=0.5), 1 / 0.625),
        (replace(PLAIN, local_steps=4), 1.0),
        (replace(PLAIN, local_epochs=2), 1.0),
        # Rates 0.25 and (0.25 + 1e-5) / 2 for two steps each.
        (replace(PLAIN, local_epochs=2, local_schedule="cosine"), 1 / (0.5 + 0.25 + 1e-5)),
    ):
        site = FakeSite([vector(-1, 0, 0, 0)], settings)
        change = answered(site, FakeMemory(), sent(none, 1, 3)).vectors["control"]
        assert floats(change)[0] == pytest.approx(expected, rel=1e-6)


# -- the coordinator


def planned(num_clients: int, settings: RunSettings) -> str:
    names = [ClientId(f"c{number}") for number in range(num_clients)]
    plan = rule_of("scaffold", settings).plan(Position(0, 1, 0), names)
    assert plan is not None
    assert (plan.reducer, plan.equal_weights) == (Reducer.WEIGHTED_SUM, True)
    return plan.task


def test_the_plan_carries_the_number_of_clients() -> None:
    assert planned(5, RunSettings()) == "5"
    assert planned(5, RunSettings(clients_per_round=2)) == "5", "not that of the cohort"
    assert planned(5, RunSettings(clients=8)) == "8", "three are away"
    assert planned(9, RunSettings(clients=8)) == "9", "one joined later"
    assert rule_of("scaffold", RunSettings(rounds=1)).plan(Position(1, 1, 0), []) is None


def finished(state: ModelState, mean: Vector, change: Vector, **given: Any) -> ModelState:
    reduced = Reduced(mean, vectors={"control": change}, total_weight=given.pop("num_sent", 2))
    done = StepDone(Work.TRAIN, 0, given.pop("task", "2"))
    return rule_of("scaffold", **given).finish(done, state, reduced, NoUploads())


BEGUN = model(mask_of(1, 3), 1, 1, 1, 1, extra={"control": vector(1, 2, 3, 0)})


def test_the_mean_is_the_model_and_c_moves_by_the_mean_change() -> None:
    after = finished(BEGUN, vector(5, 6, 7, 8), vector(1, -1, 0.5, 0))
    assert floats(after.values) == [5, 6, 7, 8]
    assert floats(after.extra_vector("control")) == [2, 1, 3.5, 0]
    assert floats(BEGUN.extra_vector("control")) == [1, 2, 3, 0], "the old state changed"


def test_a_sampled_round_moves_c_by_its_share_of_the_clients() -> None:
    after = finished(BEGUN, vector(5, 6, 7, 8), vector(1, -1, 0.5, 0), task="8")
    assert floats(after.extra_vector("control")) == [1.25, 1.75, 3.125, 0]


def test_more_updates_than_planned_clients_count_once() -> None:
    after = finished(BEGUN, vector(5, 6, 7, 8), vector(1, -1, 0.5, 0), num_sent=3)
    assert floats(after.extra_vector("control")) == [2, 1, 3.5, 0]


def test_a_larger_server_rate_goes_further_except_for_running_statistics() -> None:
    after = finished(BEGUN, vector(5, 6, 7, 8), vector(0, 0, 0, 0), server_rate=1.5)
    assert floats(after.values) == [7, 8.5, 10, 8]


def test_the_update_has_a_further_vector_and_the_model_carries_c() -> None:
    rule = rule_of("scaffold")
    parts = rule.parts("2", SMALL)
    assert (parts.values, parts.bits, parts.vectors) == (True, False, ("control",))
    assert floats(rule.vectors(BEGUN)["control"]) == [1, 2, 3, 0]


def test_c_stays_the_mean_of_the_control_variates_of_all_clients() -> None:
    """Three clients, of which two train in each round."""
    rule = rule_of("scaffold", replace(PLAIN, clients=3))
    state = model(Mask.full(4), *[1.0] * 6, extra={"control": vector(*[0.0] * 6)})
    memories = [FakeMemory({"control": vector(*[0.0] * 6)}) for _ in range(3)]
    rng = np.random.default_rng(3)
    for cohort in ((0, 1), (1, 2), (0, 2), (0, 1)):
        changes, updates = [], []
        for number in cohort:
            memory = memories[number]
            assert state.mask is not None and state.values is not None
            received = Received(state.mask, state.values, 0, "3", rule.vectors(state))
            site = FakeSite([rng.integers(-4, 4, 6).astype(np.float32)], PLAIN)
            reply = rule.client().train(received, site, memory, ignore)
            memory.items = memory.puts
            changes.append(reply.vectors["control"])
            updates.append(reply.trained.values)
        reduced = Reduced(
            (updates[0] + updates[1]) / np.float32(2),
            vectors={"control": (changes[0] + changes[1]) / np.float32(2)},
            total_weight=2,
        )
        state = rule.finish(StepDone(Work.TRAIN, 0, "3"), state, reduced, NoUploads())
        mine = [memory.vector("control") for memory in memories]
        mean = np.mean([m for m in mine if m is not None], axis=0)
        assert state.extra_vector("control") == pytest.approx(mean, abs=1e-5)


# -- masks


def test_c_begins_at_zero_with_the_first_mask_and_keeps_the_weights_that_stay() -> None:
    strategy = strategy_of("scaffold", RunSettings(sparsity="0.5"))
    begun = strategy.begin(SMALL, vector(1, 2, 3, 4, 5, 6))
    assert dict(begun.extra) == dict(strategy.rule.vectors(begun)) == {}
    first = finish(strategy, Work.SCORE, begun, vector(0, 5, 0, 4), 0)
    assert floats(first.extra_vector("control")) == [0, 0, 0, 0]
    trained = replace(first, extra={"control": vector(1, 2, 3, 0)})
    second = finish(strategy, Work.SCORE, trained, vector(5, 0, 0, 4), 1)
    assert second.mask == mask_of(0, 3)
    assert floats(second.extra_vector("control")) == [0, 2, 3, 0]


def test_a_dense_run_begins_with_zeros() -> None:
    state = strategy_of("scaffold", PLAIN).begin(SMALL, vector(1, 2, 3, 4, 5, 6))
    assert floats(state.extra_vector("control")) == [0] * 6


def test_clients_with_own_masks_are_refused() -> None:
    settings = RunSettings(strategy="scaffold")
    check_settings(settings)
    with pytest.raises(SettingsError, match="--criterion client-random"):
        check_settings(replace(settings, criterion="client-random"))


def test_other_optimizers_are_refused() -> None:
    settings = RunSettings(strategy="scaffold", optimizer="adam", learning_rate=0.001)
    with pytest.raises(SettingsError, match="use --optimizer sgd"):
        check_settings(settings)


# -- with a real network


def real_site(**changes: Any) -> Site:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 1, 4, 4)).astype(np.float32), np.arange(30) % 3
    plain = RunSettings(model="mlp", width=4, seed=2, momentum=0.0, weight_decay=0.0, clip_norm=0.0)
    settings, shard = replace(plain, **changes), Shard(x, y, x[:9], y[:9], 3)
    return Site.build(load_task("image"), shard, settings, "c1", torch.device("cpu"))


def gradient_at_start(site: Site) -> Vector:
    indices = next(training_batches(30, site.settings, 0, "c1"))
    write_vector(site.network, site.manifest, site.initial)
    x, y = batch_tensors(site.shard.train_x, site.shard.train_y, indices, site.network)
    return whole_gradient(site.network, site.manifest, site.task, x, y)


@pytest.mark.parametrize(
    "changes",
    [
        {"local_steps": 1, "batch_size": 5},
        # Hardly a move, all samples in each batch: every gradient is the first.
        {"local_steps": 6, "batch_size": 30, "momentum": 0.5, "learning_rate": 1e-3},
    ],
)
def test_a_control_variate_is_the_mean_gradient_whatever_the_correction(
    changes: dict[str, Any],
) -> None:
    site = real_site(**changes)
    expected = gradient_at_start(site)
    full = Mask.full(site.manifest.num_masked)
    rng = np.random.default_rng(5)
    c, mine = (rng.normal(0, 0.1, site.initial.size).astype(np.float32) for _ in range(2))
    memory = FakeMemory({"control": mine})
    received = Received(full, site.initial, 0, "1", {"control": c})
    rule_of("scaffold").client().train(received, site, memory, ignore)
    stored = memory.puts["control"]
    assert isinstance(stored, np.ndarray)
    assert np.abs(stored - expected).max() < 0.02 * np.abs(expected).max()


def test_option_one_takes_the_gradient_of_all_samples_at_the_start() -> None:
    """Batches of 8, 8, 8 and 6 samples have the gradient of one batch of 30."""
    site = real_site(local_steps=2, batch_size=8)
    num_masked = site.manifest.num_masked
    x, y = batch_tensors(site.shard.train_x, site.shard.train_y, np.arange(30), site.network)
    for mask in (Mask.full(num_masked), Mask.from_bools(np.arange(num_masked) % 3 > 0)):
        start = mask.gather(site.initial)
        write_vector(site.network, site.manifest, mask.scatter(start))
        wanted = mask.gather(whole_gradient(site.network, site.manifest, site.task, x, y))
        memory = FakeMemory({"control": np.full(site.initial.size, 0.25, dtype=np.float32)})
        received = Received(mask, start, 0, "1", {"control": np.zeros_like(start)})
        half = rule_of("scaffold", option="I").client()
        change = half.train(received, site, memory, ignore).vectors["control"]
        np.testing.assert_allclose(change, wanted - 0.25, atol=1e-6)
        stored = memory.puts["control"]
        assert isinstance(stored, np.ndarray)
        np.testing.assert_allclose(mask.gather(stored), wanted, atol=1e-6)
