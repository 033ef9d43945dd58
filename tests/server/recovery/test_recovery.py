"""A coordinator killed at any point finishes the run with the same result."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from server.core_harness import World
from ssfl.method.settings import RunSettings
from ssfl.server.run import events, facts
from ssfl.server.run.apply import with_lost
from ssfl.server.run.state import RunState
from ssfl.strategies.contract import ClientId

CLIENTS = [ClientId("c1"), ClientId("c2"), ClientId("c3")]
RUNS = {
    "ssfl": RunSettings(clients=3, rounds=3, evaluate_every=2),
    "fedavg": RunSettings(strategy="fedavg", clients=3, rounds=3),
    "sampled": RunSettings(clients=3, rounds=4, clients_per_round=2, seed=3),
    "reproducible": RunSettings(clients=3, rounds=2, reproducible=True),
    "by countdown": RunSettings(rounds=2),
    "renewed": RunSettings(clients=3, rounds=4, refresh_rounds="1,3"),
    "warm": RunSettings(clients=3, rounds=4, warmup_rounds=2, refresh_every=3),
    "alone": RunSettings(clients=3, rounds=3, criterion="random", refresh_every=1),
    "early": RunSettings(clients=3, rounds=20, evaluate_every=1, patience=2),
    "personal": RunSettings(clients=3, rounds=2, personalize_epochs=1, evaluate_every=1),
}


def new(settings: RunSettings) -> World:
    return World(settings, list(CLIENTS))


def undisturbed(settings: RunSettings) -> World:
    world = new(settings)
    world.finish_calmly()
    return world


def lasting(state: RunState) -> RunState:
    """Return a state without the fields that are not journalled."""
    return replace(with_lost(state, frozenset()), countdown_from_s=0.0, step_began_s=0.0)


def crashes(settings: RunSettings) -> Iterator[World]:
    """Yield the world after each fact of an undisturbed run, as left by a crash at that point.

    Uploads and sums are on disk before the facts that name them, so all files up to a fact exist.
    """
    whole = undisturbed(settings)
    recorded = [facts.from_json(record) for record in whole.journal]
    for length in range(1, len(recorded) + 1):
        spool = {
            (fact.step, fact.client, fact.digest)
            for fact in recorded[:length]
            if isinstance(fact, facts.UploadAccepted)
        }
        yield World(
            settings,
            list(CLIENTS),
            journal=whole.journal[:length],
            spool=spool,
            stored=dict(whole.stored),
            accepted=_accepted(recorded[:length]),
            closed={
                f.step: f.accepted for f in recorded[:length] if isinstance(f, facts.StepClosed)
            },
        )


def _accepted(recorded: list[facts.Fact]) -> dict[int, dict[ClientId, str]]:
    uploads: dict[int, dict[ClientId, str]] = {}
    for fact in recorded:
        if isinstance(fact, facts.UploadAccepted):
            uploads.setdefault(fact.step, {})[fact.client] = fact.digest
    return uploads


@pytest.mark.parametrize("name", RUNS)
def test_a_crash_after_any_fact_leads_to_the_same_model(name: str) -> None:
    settings = RUNS[name]
    whole = undisturbed(settings)
    assert whole.state.rounds_done == (5 if name == "early" else settings.rounds)
    count = 0
    for world in crashes(settings):
        count += 1
        world.finish_calmly()
        assert world.state.rounds_done == whole.state.rounds_done, count
        assert world.state.mask_epoch == whole.state.mask_epoch, count
        assert world.state.best == whole.state.best, count
        assert world.final_model == whole.final_model, count
        assert world.void == set(), count
    assert count == len(whole.journal) > 20


@pytest.mark.parametrize("name", RUNS)
def test_two_crashes_in_a_row_have_the_effect_of_one(name: str) -> None:
    """Recovery journals no facts that would change a second recovery."""
    for world in crashes(RUNS[name]):
        journal, state = list(world.journal), lasting(world.state)
        world.restart()
        assert lasting(world.state) == state
        assert world.journal == journal


@pytest.mark.parametrize("name", RUNS)
def test_the_state_is_the_fold_of_the_journal(name: str) -> None:
    whole = undisturbed(RUNS[name])
    assert lasting(whole.replayed()) == lasting(whole.state)


def test_a_run_killed_at_every_upload_ends_with_the_same_model() -> None:
    settings = RUNS["ssfl"]
    world = new(settings)
    for client in CLIENTS:
        world.join(client)
    while not world.state.finished:
        step = world.state.step
        assert step is not None
        if world.results:
            world.deliver()
        else:
            world.answer(max(step.pending), step)
        world.restart()
        if world.state.step and world.state.step.closed is not None:
            assert world.results, "the sum is made again"
    assert world.final_model == undisturbed(settings).final_model


def test_the_deadline_restarts_after_a_restart() -> None:
    world = new(replace(RUNS["fedavg"], round_deadline_s=100.0))
    for client in CLIENTS:
        world.join(client)
    step = world.state.step
    assert step is not None
    for now_s in (99.0, 0.0, 99.0):
        if now_s == 0.0:
            world.restart()
        world.now_s = now_s
        world.post(events.Signal.TICK)
        assert world.state.step == step, "the time before the crash does not count"
    world.now_s = 100.0
    world.post(events.Signal.TICK)
    assert world.void == {step.number}


def test_no_client_is_lost_after_a_restart_until_it_misses_heartbeats() -> None:
    world = new(RUNS["fedavg"])
    for client in CLIENTS:
        world.join(client)
    world.post(events.Lost(CLIENTS[0]))
    assert world.state.lost == {CLIENTS[0]}
    world.restart()
    assert world.state.lost == frozenset()
