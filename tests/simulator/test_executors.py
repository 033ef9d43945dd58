"""Exact, stacked and pooled executors give the same run: its history and its model."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from ssfl.codec import blocks, reference
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.load_task import load_task
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.server.run.state import Step
from ssfl.simulator.batched_executor import PooledExecutor, StackedExecutor, fast_executor
from ssfl.simulator.executors import ExactExecutor
from ssfl.simulator.federation import MakeExecutor, SimulatedFederation
from ssfl.strategies.contract import ClientId
from ssfl.strategies.registry import strategy_for
from ssfl.study.data import DataSpec, build_shards

SMALL = RunSettings(
    model="cnn-small", rounds=3, clients=6, clients_per_round=4, local_steps=3, learning_rate=0.05,
    sparsity="0.8", reproducible=True, evaluate_every=1, personalize_epochs=1, seed=3,
    scoring_batches=2,
)  # fmt: skip


# Strategies whose client halves train in one batch.
IMAGES = {"augment": "crop-flip", "normalize": "0.3/0.4"}
EPOCHS = {"local_steps": 0, "local_epochs": 2, "batch_size": 16, "rounds": 2}
STACKED = ("ditto", "fedprox", "scaffold", "topk-weights", "topk-updates", "feddst", "sub-fedavg",
           "flash-jmwst", "flash-spdst")  # fmt: skip


@pytest.fixture(scope="module")
def shards() -> dict[str, Shard]:
    return build_shards(DataSpec(clients=6, validation=0.2, samples_per_client=60), seed=3)


def run(
    shards: Mapping[str, Shard],
    settings: RunSettings,
    make_executor: MakeExecutor,
    *,
    reference_coding: bool = True,
) -> SimulatedFederation:
    federation = SimulatedFederation(
        load_task("image"),
        shards,
        settings,
        make_executor=make_executor,
        reference_coding=reference_coding,
    )
    try:
        while federation.next_work is not None:
            federation.run_step()
    finally:
        federation.close()
    return federation


def accuracies(document: Mapping[str, Any]) -> Iterator[float]:
    for evaluation in document["evaluations"]:
        yield evaluation["mean"]
        yield evaluation["validation"]["mean"]
    for row in document["personal"]["clients"] if document["personal"] else ():
        yield row["global"]
        yield row["personal"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"strategy": "fedavg", "momentum": 0.5},
        {"criterion": "client-random", "sparsity": "0.5"},
        {"refresh_every": 1, "scoring_point": "masked"},
        {"warmup_rounds": 1, "local_schedule": "cosine", "clip_norm": 1.0},
        {"strategy": "sparsyfed", "rounds": 2},
        IMAGES | {"scoring_augment": True},
        IMAGES | {"strategy": "feddst", **EPOCHS},  # trains some epochs of a round at a time
        *({"strategy": name, **EPOCHS} for name in STACKED),
    ],
    ids=["ssfl", "dense", "own masks", "refresh", "warm-up", "other weights are tested",
         "augmented and normalized", "augmented by parts of rounds", *STACKED],
)  # fmt: skip
def test_stacked_clients_agree_with_exact_ones(
    shards: dict[str, Shard], change: dict[str, Any]
) -> None:
    settings = replace(SMALL, **change)
    exact = run(shards, settings, ExactExecutor)
    fast = run(shards, settings, fast_executor)
    assert isinstance(fast._executor, StackedExecutor)
    assert exact.model.mask is not None and fast.model.mask is not None
    ours, theirs = fast.document(), exact.document()
    assert [mask["digest"] for mask in ours["masks"]][:1] == [
        mask["digest"] for mask in theirs["masks"]
    ][:1]
    if not settings.refresh_every:  # with a refresh, scores near the threshold may differ
        assert exact.model.mask.digest == fast.model.mask.digest
        assert exact.model.values is not None and fast.model.values is not None
        np.testing.assert_allclose(fast.model.values, exact.model.values, atol=1e-4)
        assert_sent_alike(ours["ledger"], theirs["ledger"])
    np.testing.assert_allclose(list(accuracies(ours)), list(accuracies(theirs)), atol=0.05)


@pytest.mark.parametrize("strategy", ["sparsyfed", "fedpm"])
def test_stacked_clients_test_plain_weights(shards: dict[str, Shard], strategy: str) -> None:
    settings = replace(SMALL, strategy=strategy)
    clients = {ClientId(name): shard for name, shard in shards.items()}
    exact, fast = (
        make(load_task("image"), clients, settings) for make in (ExactExecutor, fast_executor)
    )
    assert isinstance(fast, StackedExecutor)
    model = strategy_for(settings).begin(exact.model.manifest, exact.model.initial)
    ours, theirs = (
        [one.evaluation.loss_sum for one in executor.evaluate(list(clients), model)]
        for executor in (fast, exact)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_pooled_clients_of_larger_networks_agree_with_exact_ones(shards: dict[str, Shard]) -> None:
    settings = replace(SMALL, model="resnet20", width=4, norm="batch", rounds=2, local_steps=1)
    exact = run(shards, settings, ExactExecutor)
    pooled = run(shards, settings, partial(fast_executor, cores=2))
    assert isinstance(pooled._executor, PooledExecutor)
    assert exact.model.values is not None and pooled.model.values is not None
    np.testing.assert_allclose(pooled.model.values, exact.model.values, atol=2e-3)
    ours, theirs = (
        [row for row in run.document()["ledger"] if row["phase"] in ("values", "evaluation")]
        for run in (pooled, exact)
    )  # scores are rounded differently, so the size of their code differs
    assert_sent_alike(ours, theirs)


@pytest.mark.parametrize("make_executor", [ExactExecutor, fast_executor], ids=["exact", "fast"])
def test_each_mode_counts_the_bytes_of_its_own_encoded_values(
    shards: dict[str, Shard], make_executor: MakeExecutor
) -> None:
    class Encoding(SimulatedFederation):
        """Encodes every update once more."""

        encoded = 0

        def _accept_update(self, accepted: Any, model: ModelState, coded: Any, step: Step) -> Any:
            accepted = super()._accept_update(accepted, model, coded, step)
            values = self._received[accepted.client].values
            self.encoded += len(blocks.encode(reference.CODE, values, model.values))
            return accepted

    federation = Encoding(load_task("image"), shards, SMALL, make_executor=make_executor)
    while federation.next_work is not None:
        federation.run_step()
    (row,) = [
        row
        for row in federation.document()["ledger"]
        if (row["phase"], row["direction"]) == ("values", "up")
    ]
    assert row["encoding"] == "reference"
    assert row["payload_bytes"] == federation.encoded > 0


def test_reference_coding_saves_bytes_and_changes_no_bit_of_the_model(
    shards: dict[str, Shard],
) -> None:
    coded, plain = (
        run(shards, SMALL, partial(ExactExecutor), reference_coding=on) for on in (True, False)
    )
    assert coded.model.base_digest == plain.model.base_digest
    assert coded.document()["rounds"][-1]["clients"] == plain.document()["rounds"][-1]["clients"]
    assert total(coded) < 0.9 * total(plain)


def total(federation: SimulatedFederation) -> int:
    return sum(
        row["payload_bytes"]
        for row in federation.document()["ledger"]
        if row["phase"] in ("values", "evaluation")
    )


def assert_sent_alike(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Compare two ledgers; the size of coded values depends on their last bits."""
    sizes = [
        [row["payload_bytes"] for row in rows if row["encoding"] == "reference"]
        for rows in (ours, theirs)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    fixed = [
        [{**row, "payload_bytes": None} if row["encoding"] == "reference" else row for row in rows]
        for rows in (ours, theirs)
    ]
    assert fixed[0] == fixed[1]


def test_a_single_core_gets_no_pool(shards: dict[str, Shard]) -> None:
    executor = fast_executor(load_task("image"), shards, replace(SMALL, model="resnet20", width=4))  # type: ignore[arg-type]
    assert isinstance(executor, ExactExecutor)


def test_other_optimizers_than_sgd_run_client_by_client(shards: dict[str, Shard]) -> None:
    settings = replace(
        SMALL, optimizer="AdamW", learning_rate=0.01, lr_schedule="cosine", rounds=2,
        personalize_epochs=0,
    )  # fmt: skip
    executor = fast_executor(load_task("image"), shards, settings)  # type: ignore[arg-type]
    assert isinstance(executor, ExactExecutor)
    first, second = (run(shards, settings, each) for each in (ExactExecutor, fast_executor))
    assert first.model.values is not None and second.model.values is not None
    np.testing.assert_allclose(first.model.values, second.model.values, atol=1e-3)
    plain = run(shards, replace(settings, optimizer="sgd"), ExactExecutor)
    assert plain.model.values is not None
    assert np.abs(first.model.whole - plain.model.whole).max() > 0.01


def test_late_clients_with_new_labels_refresh_the_mask() -> None:
    spec = DataSpec(clients=6, late_classes="8,9", late_clients=2, late_round=2)
    shards = build_shards(spec, seed=1)
    late = sorted(shards)[-2:]
    settings = replace(
        SMALL, clients=4, clients_per_round=0, reproducible=False, refresh_on_new_labels=True,
        rounds=4,
    )  # fmt: skip
    federation = SimulatedFederation(load_task("image"), shards, settings, dict.fromkeys(late, 2))
    while federation.next_work is not None:
        federation.run_step()
    document = federation.document()
    assert [len(entry["clients"]) for entry in document["rounds"]] == [4, 4, 6, 6]
    first, second = document["masks"]
    assert (second["rounds_done"], second["reason"]) == (2, "new labels: 8, 9")
    assert set(second["votes"]) - set(first["votes"]) == set(late)


def test_the_best_model_is_kept_in_addition_to_the_last(shards: dict[str, Shard]) -> None:
    settings = replace(SMALL, rounds=6, learning_rate=0.5, personalize_epochs=0)
    federation = run(shards, settings, ExactExecutor)
    state = federation.state
    assert state.best is not None and federation.best is not None
    assert federation.best.base_digest.hex() == state.best.base_digest
    tests = {test["rounds_done"]: test["validation"]["pooled"] for test in
             federation.document()["evaluations"]}  # fmt: skip
    assert state.best.chosen_on == "validation"
    assert tests[state.best.rounds_done] == max(tests.values()) == state.best.accuracy
