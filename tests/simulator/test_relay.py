"""Gossip strategies in the simulator: bytes by formula, any order of clients, own models."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ssfl.api.history import RunHistory
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.device import client_torch_settings
from ssfl.learning.load_task import load_task
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.simulator.batched_executor import fast_executor
from ssfl.simulator.executors import ExactExecutor, Job, Result
from ssfl.simulator.federation import MakeExecutor, SimulatedFederation
from ssfl.strategies.registry import check_settings, strategy_for
from ssfl.study.data import DataSpec, build_shards
from ssfl.study.outcome import outcome_of

CLIENTS, ROUNDS, NEIGHBOURS = 5, 3, 2
SMALL = RunSettings(
    model="mlp", width=4, rounds=ROUNDS, clients=CLIENTS, local_steps=2, sparsity="0.5",
    reproducible=True, seed=3,
)  # fmt: skip
STRATEGIES = {
    name: replace(SMALL, strategy=name, strategy_options=f"{name}.neighbours={NEIGHBOURS}")
    for name in ("d-psgd", "dispfl", "fedfomo")
}


@pytest.fixture(scope="module")
def shards() -> dict[str, Shard]:
    return build_shards(DataSpec(clients=CLIENTS, samples_per_client=30, validation=0.2), seed=3)


def run(
    shards: Mapping[str, Shard],
    settings: RunSettings,
    make_executor: MakeExecutor = ExactExecutor,
    *,
    coded: bool = True,
    arrivals: Mapping[str, int] | None = None,
) -> SimulatedFederation:
    check_settings(settings, simulated=True)
    with client_torch_settings():
        federation = SimulatedFederation(
            load_task("image"), shards, settings, arrivals, make_executor, reference_coding=coded
        )
        while federation.next_work is not None:
            federation.run_step()
    return federation


@pytest.fixture(scope="module", params=STRATEGIES)
def done(request: pytest.FixtureRequest, shards: dict[str, Shard]) -> SimulatedFederation:
    """A run of each strategy, with an evaluation after each round."""
    return run(shards, replace(STRATEGIES[request.param], evaluate_every=1))


def relayed(document: Mapping[str, Any], direction: str) -> int:
    rows = [row for row in document["ledger"] if row["phase"] == "relay"]
    return sum(row["payload_bytes"] for row in rows if row["direction"] == direction)


def update_bytes(federation: SimulatedFederation) -> int:
    """Return the bytes of an update without coding: 4P, or 4 (k + D) + ceil(W / 8)."""
    manifest, strategy = federation.model.manifest, strategy_for(federation.settings)
    if strategy.is_dense:
        return 4 * manifest.size
    kept = strategy.num_kept(manifest)
    return 4 * (kept + manifest.num_unmasked) + (manifest.num_masked + 7) // 8


def test_uncoded_bytes_equal_the_formula_and_coded_ones_are_fewer(
    shards: dict[str, Shard], done: SimulatedFederation
) -> None:
    plain = run(shards, done.settings, coded=False)
    each, found = update_bytes(plain), plain.document()
    assert relayed(found, "up") == ROUNDS * CLIENTS * each
    # All start from the same weights: the first round hands nothing out.
    received = (ROUNDS - 1) * NEIGHBOURS * each
    assert relayed(found, "down") == CLIENTS * received
    gossip = found["gossip"]
    assert gossip["bytes_relay"] == relayed(found, "up") + relayed(found, "down")
    assert gossip["bytes_peers"] == CLIENTS * received
    assert gossip["bytes_busiest_in"] == received
    rows = gossip["clients"]
    assert {row["in"] for row in rows.values()} == {received} and len(rows) == CLIENTS
    assert sum(row["out"] for row in rows.values()) == CLIENTS * received
    assert gossip["bytes_busiest"] == max(row["in"] + row["out"] for row in rows.values())
    assert gossip["bytes_busiest"] > received
    less = done.document()
    assert 0 < relayed(less, "up") <= relayed(found, "up")
    assert 0 < relayed(less, "down") <= relayed(found, "down")
    assert less["model_digest"] == found["model_digest"], "coding is without loss"
    outcome = outcome_of(found)
    assert {key: outcome[key] for key in gossip if key != "clients"} == {
        key: value for key, value in gossip.items() if key != "clients"
    }


def test_other_strategies_have_no_gossip_bytes(shards: dict[str, Shard]) -> None:
    document = run(shards, replace(SMALL, strategy="fedavg", rounds=1)).document()
    assert "gossip" not in document and outcome_of(document)["bytes_relay"] is None
    assert relayed(document, "up") == 0


class Backwards(ExactExecutor):
    """Computes the last client first."""

    def each(self, work: Callable[..., Result], jobs: Iterable[Job]) -> Iterator[Result]:
        results = list(super().each(work, list(jobs)[::-1]))
        return iter(results[::-1])


def test_the_order_of_clients_does_not_change_a_bit(
    shards: dict[str, Shard], done: SimulatedFederation
) -> None:
    backwards = run(shards, done.settings, Backwards)
    ours, theirs = done.document(), backwards.document()
    assert ours["model_digest"] == theirs["model_digest"]
    assert ours["gossip"] == theirs["gossip"] and ours["personal"] == theirs["personal"]
    for client in done._clients:
        one, other = done._clients[client].memory, backwards._clients[client].memory
        assert one.keys() == other.keys()
        for key, value in one.items():
            if isinstance(value, Mask):
                assert value == other[key]
            else:
                np.testing.assert_array_equal(value, other[key])


def test_the_run_s_model_is_the_mean_of_the_own_models(done: SimulatedFederation) -> None:
    manifest, models = done.model.manifest, []
    for client in done._clients.values():
        mask, values = client.memory.get("held"), client.memory["model"]
        assert not isinstance(values, Mask)
        mask = mask if isinstance(mask, Mask) else Mask.full(manifest.num_masked)
        models.append(mask.scatter(values).astype(np.float64))
    assert done.model.values is not None
    np.testing.assert_allclose(done.model.values, np.mean(models, 0), atol=1e-6)
    assert len({model.tobytes() for model in models}) == CLIENTS


def test_a_round_has_personal_accuracies_and_only_an_evaluation_has_global_ones(
    done: SimulatedFederation,
) -> None:
    document = done.document()
    for row in document["rounds"]:
        assert row["pooled"] is row["mean"] is row["loss"] is None
        assert 0 <= row["personal"] <= 1
    assert len(document["evaluations"]) == ROUNDS
    assert all(0 <= row["pooled"] <= 1 for row in document["evaluations"])
    # The own models at the end are those after the last round.
    last = document["rounds"][-1]["personal"]
    assert document["personal"]["personal"]["mean"] == pytest.approx(last)
    assert outcome_of(document)["personal"] == pytest.approx(last)
    pooled = [row["pooled"] for row in document["evaluations"]]
    assert RunHistory.of(document).accuracy.tolist() == pooled


def test_fine_tuning_starts_from_the_mean_and_leaves_the_rounds_alone(
    shards: dict[str, Shard],
) -> None:
    plain, tuned = (
        run(shards, replace(STRATEGIES["d-psgd"], personalize_epochs=epochs)).document()
        for epochs in (0, 3)
    )
    assert plain["model_digest"] == tuned["model_digest"] and plain["gossip"] == tuned["gossip"]
    pairs = [document["personal"]["personal"]["loss"] for document in (plain, tuned)]
    assert pairs[0] != pairs[1]


def test_fast_trains_clients_in_one_batch(
    shards: dict[str, Shard], done: SimulatedFederation
) -> None:
    fast = run(shards, done.settings, fast_executor)
    assert fast.order == "in one batch"
    assert fast.model.values is not None and done.model.values is not None
    np.testing.assert_allclose(fast.model.values, done.model.values, atol=1e-5)


def test_a_client_that_joins_late_takes_part_in_the_exchange(shards: dict[str, Shard]) -> None:
    names = list(shards)
    settings = replace(STRATEGIES["d-psgd"], clients=CLIENTS - 1, reproducible=False)
    document = run(shards, settings, arrivals={names[-1]: 1}).document()
    assert [len(row["clients"]) for row in document["rounds"]] == [4, 5, 5]
    assert document["gossip"]["clients"][names[-1]]["in"] > 0
