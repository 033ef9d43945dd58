"""Evaluations that decide, and evaluations that a run waits for."""

from dataclasses import replace
from typing import Any

import pytest

from server.core_harness import World
from ssfl.method.settings import RunSettings
from ssfl.server.run import events
from ssfl.server.run.state import Step
from ssfl.strategies.contract import ClientId, Work

CLIENTS = [ClientId("c1"), ClientId("c2"), ClientId("c3")]
SETTINGS = RunSettings(
    strategy="fedavg", clients=3, rounds=4, evaluate_every=1, round_deadline_s=100.0
)


def evaluating(**changes: Any) -> World:
    """Return a run after its first round, with an open evaluation by all clients."""
    settings = replace(SETTINGS, **changes)
    settings.validate()
    world = World(settings, list(CLIENTS))
    for client in CLIENTS:
        world.join(client)
    for client in CLIENTS:
        world.answer(client, open_step(world, Work.TRAIN))
    world.deliver()
    open_step(world, Work.EVALUATE)
    return world


def open_step(world: World, work: Work) -> Step:
    step = world.state.step
    assert step is not None and step.work is work
    return step


def evaluated_by(world: World, correct: int, *clients: ClientId) -> None:
    """Let clients report this many of ten samples correct; the others miss the deadline."""
    step = open_step(world, Work.EVALUATE)
    tested = {"correct": correct, "total": 10, "loss_sum": 1.0}
    for client in clients:
        report = {"evaluation": tested}
        world.post(events.UploadReceived(step.number, client, "", report=report))
    world.now_s += 100.0
    world.post(events.Signal.TICK)


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({"reproducible": True, "patience": 1}, True),
        ({"reproducible": True, "target_accuracy": 0.9}, True),
        ({"reproducible": True}, False),
        ({"patience": 1}, False),
    ],
)
def test_a_reproducible_run_waits_for_every_evaluation_that_may_end_it(
    changes: dict[str, Any], waits: bool
) -> None:
    world = evaluating(**changes)
    step = open_step(world, Work.EVALUATE)
    evaluated_by(world, 5, CLIENTS[0])
    assert (world.state.step is not None and world.state.step.number == step.number) == waits


@pytest.mark.parametrize(
    ("clients", "reached"), [(CLIENTS[:1], False), (CLIENTS[:2], True), (CLIENTS, True)]
)
def test_fewer_than_min_clients_do_not_reach_a_target(
    clients: list[ClientId], reached: bool
) -> None:
    world = evaluating(target_accuracy=0.9, min_clients=2)
    evaluated_by(world, 10, *clients)
    assert bool(world.state.end_reason) == reached
    assert (world.state.best is not None) == reached
    if world.state.best:
        assert world.state.best.clients == tuple(clients)


def test_the_only_remaining_client_decides() -> None:
    world = evaluating(target_accuracy=0.9, min_clients=2)
    for client in CLIENTS[1:]:
        world.post(events.Left(client, finished=False))
    evaluated_by(world, 10, CLIENTS[0])
    assert world.state.end_reason
