"""Rounds with lost, replaced and late clients: the journalled uploads give the same model."""

import random
from pathlib import Path

import pytest

from server.run_loop_harness import conduct, spooled, step_over
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.recovery.recompute import Refold, StepVerdict
from ssfl.server.recovery.state_dir_check import file_problems, read_state
from ssfl.server.run import events
from ssfl.server.run.apply import newest_counted
from ssfl.server.run.events import Reply
from ssfl.server.run.facts import ClientsAdded
from ssfl.strategies.contract import ClientId, Work
from ssfl.strategies.registry import strategy_for

CLIENTS = [ClientId(f"c{number}") for number in range(8)]
SETTINGS = RunSettings(
    clients=8, clients_per_round=3, rounds=6, sparsity="0.5", seed=5, evaluate_every=0,
    refresh_every=2,
)  # fmt: skip


async def begin(coordinator: Coordinator, manifest: Manifest) -> None:
    for number, client in enumerate(CLIENTS):
        joined = events.Joined(client, "t", 10 + number, manifest.digest.hex(), "cpu")
        await coordinator.run.post(joined)
    initial = initial_vector(manifest, SETTINGS.seed)
    coordinator.store.save_initial(manifest, initial)
    model = strategy_for(SETTINGS).begin(manifest, initial)
    digest = model.initial_digest.hex()
    first = events.Initialized(CLIENTS[0], manifest.digest.hex(), digest, 0, "", 0, "")
    await coordinator.run.post(first, model)


async def disturbed_step(coordinator: Coordinator, chance: random.Random) -> None:
    """Lose two of the clients asked for an update; let the others answer in any order."""
    step = coordinator.run.state.step
    assert step is not None
    if step.work is Work.TRAIN:
        for client in chance.sample(sorted(step.cohort), 2):
            await coordinator.run.post(events.Lost(client))
            await coordinator.run.post(events.Signal.TICK)
    while (now := coordinator.run.state.step) and now.number == step.number and now.closed is None:
        here = sorted(now.pending - coordinator.run.state.lost)
        reply = await coordinator.run.post(spooled(coordinator, chance.choice(here)))
        assert reply is Reply.ACCEPTED
    await step_over(coordinator, step.number)
    for client in CLIENTS:
        await coordinator.run.post(events.Returned(client))


@pytest.mark.parametrize("seed", range(4))
def test_counted_uploads_reproduce_the_model(
    tmp_path: Path, plain_manifest: Manifest, seed: int
) -> None:
    chance = random.Random(seed)
    finals: list[str] = []

    async def script(coordinator: Coordinator) -> None:
        coordinator.spool.set_aside(*newest_counted(coordinator.run.state))  # as at every start
        if not coordinator.run.state.members:
            await begin(coordinator, plain_manifest)
        for _ in range(4):
            if not coordinator.run.state.finished:
                await disturbed_step(coordinator, chance)
        if coordinator.run.state.finished:
            await coordinator.run.model_written.wait()
            finals.append(coordinator.run.state.base_digest)

    while not finals:
        conduct(tmp_path, script, SETTINGS, keep_uploads=True)
    inspected = read_state(tmp_path)
    assert any(isinstance(fact, ClientsAdded) for fact in inspected.facts), "no client was replaced"
    refold = Refold(tmp_path, SETTINGS)
    results = [result for fact in inspected.facts if (result := refold.take(fact))]
    assert [result.verdict for result in results] == [StepVerdict.OK] * len(results)
    assert [result.work for result in results].count(Work.SCORE) == 3
    assert results[-1].base_digest == finals[0]
    assert refold.under_way() is None
    assert file_problems(tmp_path, refold.state, refold.masks, refold.account) == []
