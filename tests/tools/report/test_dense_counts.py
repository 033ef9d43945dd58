"""The transfers compared with dense training are those that take place."""

from dataclasses import replace
from typing import Any

import pytest

from ssfl.learning.load_task import load_task
from ssfl.method.settings import RunSettings
from ssfl.server.accounting.dense_equivalent import COMPARED
from ssfl.server.accounting.ledger import Direction
from ssfl.server.history.counters import ProcessCounters
from ssfl.server.report.run_view import RunView
from ssfl.server.report.traffic import DenseComparison
from ssfl.server.run import facts
from ssfl.server.run.apply import apply
from ssfl.server.run.state import RunState
from ssfl.simulator.federation import SimulatedFederation
from ssfl.strategies.contract import ClientId
from ssfl.strategies.registry import strategy_for
from ssfl.study.data import DataSpec, build_shards

SMALL = RunSettings(
    model="mlp", width=8, rounds=5, clients=3, local_steps=1, sparsity="0.8", reproducible=True,
    evaluate_every=0, scoring_batches=1, seed=3,
)  # fmt: skip
CLIENTS = 4
RUNS: dict[str, dict[str, Any]] = {
    "dense": {"strategy": "fedavg"},
    "dense, each round tested": {"strategy": "fedavg", "evaluate_every": 1},
    "dense, sampled": {"strategy": "fedavg", "clients_per_round": 2, "evaluate_every": 2},
    "one mask": {},
    "one mask, each round tested": {"evaluate_every": 1},
    "refreshed": {"refresh_rounds": "2,4"},
    "refreshed, each round tested": {"refresh_rounds": "2,4", "evaluate_every": 1},
    "refreshed, sampled": {"refresh_rounds": "3", "clients_per_round": 2, "evaluate_every": 2},
    "refreshed by one client": {"refresh_rounds": "2,4", "criterion": "one-client"},
    "drawn": {"criterion": "random"},
    "first dense": {"warmup_rounds": 2},
    "first dense, sampled": {"warmup_rounds": 2, "clients_per_round": 2, "evaluate_every": 1},
    "a mask each": {"criterion": "client-random", "evaluate_every": 2},
    "personal at the end": {"personalize_epochs": 1},
}


class CountingFederation(SimulatedFederation):
    """A simulated run that counts the models sent as values, and keeps the counters."""

    def __init__(self, settings: RunSettings, arrivals: dict[str, int] | None = None) -> None:
        self.sent = 0  # models, as values
        self.counters = ProcessCounters()
        self._state_before = RunState(settings)
        shards = build_shards(DataSpec(clients=CLIENTS), seed=3)
        super().__init__(load_task("image"), shards, settings, arrivals, reference_coding=False)

    def _begin(self) -> None:
        self.counters.begin(self._state_before, self._ledger)
        super()._begin()

    def finish(self) -> None:
        while self.next_work is not None:
            self.run_step()
        self.close()

    def _count_bytes(
        self, client: ClientId, phase: str, direction: Direction, num_bytes: int, encoding: str
    ) -> None:
        if direction is Direction.DOWN and phase in COMPARED and not self.state.finished:
            self.sent += 1
        super()._count_bytes(client, phase, direction, num_bytes, encoding)

    def _with_accounting(self, fact: facts.Fact) -> facts.Fact:
        self.counters.take(fact, self._state_before, self._ledger, self.model.manifest.size)
        self._state_before = apply(self._state_before, fact)
        return super()._with_accounting(fact)


def viewed(run: CountingFederation) -> tuple[RunView, DenseComparison]:
    """Return the view of the page and the comparison of the report for a run's history."""
    settings, manifest = run.settings, run.model.manifest
    view = RunView(own_masks=strategy_for(settings).has_own_masks)
    against = DenseComparison(manifest.size, manifest.num_masked)
    steps = [
        *(("evaluations", entry) for entry in run.history.evaluations),
        *(("masks", entry) for entry in run.history.masks),
        *(("rounds", entry) for entry in run.history.rounds),
    ]
    for name, entry in sorted(steps, key=lambda step: int(step[1]["rounds_done"])):
        view.add(name, entry)
        against.add(name, entry, view)
    return view, against


def check(run: CountingFederation) -> None:
    """Assert that page, report and metrics count the models that were sent."""
    run.finish()
    view, against = viewed(run)
    dense = 4 * run.model.manifest.size
    assert view.num_models == run.sent > 0
    assert run.counters.dense_bytes[Direction.DOWN] == run.sent * dense
    assert run.counters.dense_bytes[Direction.UP] == view.num_updates * dense
    if run.settings.criterion != "client-random":  # the masks of clients are not in the history
        compared = view.bytes(run._rows(), run.model.manifest.size)
        assert compared["down"]["values"] == 4 * against.kept_values_down
        assert compared["up"]["values"] == 4 * against.kept_values_up
    if run.settings.strategy == "fedavg":
        assert compared["up"]["ratio"] == compared["down"]["ratio"] == 1.0
        assert run.counters.ratios == {Direction.UP: 1.0, Direction.DOWN: 1.0}
        assert against.break_even is None


@pytest.mark.parametrize("name", RUNS)
def test_every_sent_model_counts_once(name: str) -> None:
    check(CountingFederation(replace(SMALL, **RUNS[name])))


@pytest.mark.parametrize("name", ["dense", "one mask", "refreshed, sampled", "first dense"])
def test_weights_from_a_file_count_if_they_are_sent_as_values(name: str) -> None:
    run = CountingFederation(replace(SMALL, **RUNS[name]))
    for client in run._clients.values():
        client.request.initial_digest = b"that of the seed"
    check(run)


@pytest.mark.parametrize("name", ["dense", "one mask", "refreshed, each round tested"])
def test_a_client_that_joins_later_is_sent_the_model(name: str) -> None:
    run = CountingFederation(replace(SMALL, **RUNS[name], reproducible=False), {"shard_03": 3})
    check(run)
    took_part = [len(entry["clients"]) for entry in run.history.rounds]
    assert took_part == [3, 3, 3, 4, 4]
