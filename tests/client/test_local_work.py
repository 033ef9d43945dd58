"""A site with a real network: scoring, testing and personalizing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ssfl.client.local_work import Site, Vector
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.errors import ModelError
from ssfl.learning.load_task import load_task
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientId, Received, ScoringRequest
from ssfl.strategies.registry import strategy_for

SETTINGS = RunSettings(model="mlp", width=4, batch_size=5, local_epochs=1, seed=2)


def shard(validation: int = 0) -> Shard:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 1, 4, 4)).astype(np.float32), np.arange(30) % 3
    without = Shard(x, y, x[:9], y[:9], 3)
    return replace(without, val_x=x[:validation], val_y=y[:validation]) if validation else without


def site_of(data: Shard | None = None, **changes: object) -> Site:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    return Site.build(load_task("image"), data or shard(), settings, "c1", torch.device("cpu"))


def ignore(_done: int, _all: int) -> None:
    """Ignore progress."""


def test_an_unknown_criterion_is_refused_by_name() -> None:
    site = site_of()
    with pytest.raises(ModelError, match="unknown criterion: 'astrology'"):
        site.score(ScoringRequest(site.initial, criterion="astrology"))


def test_an_optimizer_that_cannot_train_the_model_is_refused_before_the_site_joins() -> None:
    with pytest.raises(ModelError, match=r"--optimizer adam: Invalid beta parameter at index 1"):
        site_of(optimizer="adam", learning_rate=0.01, optimizer_options="betas=0.9:9")


def test_an_own_loop_cannot_keep_the_state_of_its_optimizer(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from ssfl.learning.image_task import *\ndef fit(model, batches, settings):\n    pass\n"
    )
    settings = replace(SETTINGS, optimizer_state="keep")
    with pytest.raises(ModelError, match="keep is not available for a task with its own fit"):
        Site.build(load_task(str(own)), shard(), settings, "c1", torch.device("cpu"))


@pytest.mark.parametrize("strategy", ["scaffold", "sparsyfed", "fedpm"])
def test_an_own_loop_is_refused_by_strategies_that_change_its_steps(
    tmp_path: Path, strategy: str
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from ssfl.learning.image_task import *\ndef fit(model, batches, settings):\n    pass\n"
    )
    settings = replace(SETTINGS, strategy=strategy)
    with pytest.raises(ModelError, match=f"strategy {strategy} changes the steps"):
        Site.build(load_task(str(own)), shard(), settings, "c1", torch.device("cpu"))


class Memory(dict[str, Vector]):
    def vector(self, name: str) -> Vector | None:
        return self.get(name)

    def put(self, name: str, value: Vector) -> None:
        self[name] = value


def test_a_sites_memory_keeps_the_state_of_rounds_and_not_of_personal_models() -> None:
    site = site_of(
        optimizer="adam", learning_rate=0.01, optimizer_state="keep", personalize_epochs=1
    )
    site.memory = memory = Memory()
    mask = Mask.full(site.manifest.num_masked)
    values = mask.gather(site.initial)
    first, second = (site.train(mask, values, 0, ignore).values for _ in range(2))
    assert not np.array_equal(first, second)
    assert memory["optimizer.step"].tolist() == [12.0] * 6, "of two rounds"
    site.personalize(mask, values, 2, ignore)
    assert memory["optimizer.step"].tolist() == [12.0] * 6


def test_scores_depend_on_the_number_of_minibatches_and_are_deterministic() -> None:
    site = site_of()
    one, three = (site.score(ScoringRequest(site.initial, num_batches=number)) for number in (1, 3))
    assert one.shape == (site.manifest.num_masked,)
    assert not np.array_equal(one, three)
    assert np.array_equal(three, site.score(ScoringRequest(site.initial, num_batches=3)))


def test_each_mask_epoch_draws_other_minibatches() -> None:
    site = site_of()
    drawn = [
        site.score(ScoringRequest(site.initial, epoch=number)).tobytes() for number in (0, 1, 0)
    ]
    assert drawn[0] == drawn[2] != drawn[1]


def test_dropped_weights_are_scored_at_rest_or_at_zero() -> None:
    """A weight that is zero in the network is scored by its resting value."""
    mask = Mask.from_bools(np.arange(site_of().manifest.num_masked) % 2 == 0)
    whole, masked = (
        site.score(ScoringRequest(site.initial, mask))
        for site in (site_of(), site_of(scoring_point="masked"))
    )
    assert not np.array_equal(whole, masked)
    assert masked[~mask.bools()].any()
    first = site_of(scoring_point="masked")
    same = site_of()
    assert np.array_equal(
        first.score(ScoringRequest(first.initial)), same.score(ScoringRequest(same.initial))
    ), "without a mask there is nothing to drop"


@pytest.mark.parametrize("criterion", ["grasp", "synflow"])
def test_other_criteria_score_every_weight(criterion: str) -> None:
    site = site_of()
    found = site.score(
        ScoringRequest(site.initial, criterion=criterion, num_kept=10, num_batches=2)
    )
    assert found.shape == (site.manifest.num_masked,) and np.isfinite(found).all()


def test_a_validation_split_is_tested_if_the_site_has_one() -> None:
    without, having = site_of(), site_of(shard(validation=6))
    mask = Mask.full(without.manifest.num_masked)
    assert without.evaluate_global(mask, without.initial).validation is None
    tested = having.evaluate_global(mask, having.initial)
    assert tested.evaluation.total == 9
    assert tested.validation is not None and tested.validation.total == 6


def test_a_personal_model_stays_inside_the_mask_and_both_models_are_tested() -> None:
    site = site_of(personalize_epochs=3)
    mask = Mask.from_bools(np.arange(site.manifest.num_masked) % 2 == 0)
    values = mask.gather(site.initial)
    own = site.personalize(mask, values, 7, ignore)
    assert own.values.shape == values.shape and not np.array_equal(own.values, values)
    assert own.base == site.evaluate_global(mask, values).evaluation
    assert own.personal == site.evaluate_global(mask, own.values).evaluation
    again = site.personalize(mask, values, 7, ignore)
    assert np.array_equal(again.values, own.values)


def test_a_personal_model_starts_from_the_final_values_on_the_mask_of_the_client() -> None:
    """Only the personal model lies on that mask: the global model is tested whole."""
    site = site_of(personalize_epochs=1, criterion="client-random", sparsity="0.5")
    whole = Mask.full(site.manifest.num_masked)
    mask = strategy_for(site.settings).client_mask(ClientId("c1"), site.manifest)
    assert mask is not None and mask != whole
    held, own = site.personal_model(Received(whole, site.initial, 7), {}, ignore)
    assert held == mask
    trained = site.personalize(mask, mask.gather(site.initial), 7, ignore)
    assert np.array_equal(own.values, trained.values)
    assert own.base == site.evaluate(whole, site.initial) != trained.base
    assert own.personal == site.evaluate(mask, own.values)


@pytest.mark.parametrize("strategy", ["sparsyfed", "fedpm"])
def test_a_personal_model_starts_from_plain_weights(strategy: str) -> None:
    site = site_of(personalize_epochs=1, strategy=strategy, norm="group")
    rule = strategy_for(site.settings)
    state = rule.begin(site.manifest, site.initial)
    plain = rule.deployed(state)
    assert state.mask and plain.mask and state.values is not None and plain.values is not None
    mask, own = site.personal_model(Received(state.mask, state.values, 7), {}, ignore)
    assert mask == plain.mask
    assert own.base == site.evaluate(plain.mask, plain.values)
    trained = site.personalize(plain.mask, plain.values, 7, ignore)
    assert np.array_equal(own.values, trained.values)


def test_more_personal_epochs_are_more_steps() -> None:
    site = site_of(personalize_epochs=3)
    steps: list[tuple[int, int]] = []
    mask = Mask.full(site.manifest.num_masked)
    site.personalize(mask, site.initial, 7, lambda done, total: steps.append((done, total)))
    assert steps[-1] == (18, 18), "3 epochs of 30 samples, 5 at a time"


def test_a_restarted_learning_rate_changes_the_personal_model() -> None:
    made = []
    for rule in ("continue", "restart"):
        site = site_of(personalize_epochs=1, personalize_lr=rule, lr_decay=0.5)
        mask = Mask.full(site.manifest.num_masked)
        made.append(site.personalize(mask, site.initial, 7, ignore).values)
    moved = [float(np.abs(values - site_of().initial).sum()) for values in made]
    assert moved[1] > 10 * moved[0], "the full step size instead of 2^-7 of it"
