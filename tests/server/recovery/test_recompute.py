"""Rounds in which clients are lost, replaced and late: the journalled sets make the same model."""

import random
from pathlib import Path

import pytest

from server.run_loop_harness import conduct, spooled, step_over
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import strategy_for
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server.loop.run_loop import RunLoop
from ssfl.server.recovery.recompute import Refold, Verdict
from ssfl.server.recovery.state_dir_check import file_problems, read_state
from ssfl.server.run import events
from ssfl.server.run.apply import newest_counted
from ssfl.server.run.events import Reply
from ssfl.server.run.facts import ClientsAdded
from ssfl.server.storage.spool import Spool

CLIENTS = [ClientId(f"c{number}") for number in range(8)]
SETTINGS = RunSettings(
    clients=8, clients_per_round=3, rounds=6, sparsity="0.5", seed=5, evaluate_every=0,
    refresh_every=2,
)  # fmt: skip


async def begin(run_loop: RunLoop, manifest: Manifest) -> None:
    for number, client in enumerate(CLIENTS):
        joined = events.Joined(client, "t", 10 + number, manifest.digest.hex(), "cpu")
        await run_loop.post(joined)
    initial = initial_vector(manifest, SETTINGS.seed)
    run_loop.store.save_initial(manifest, initial)
    model = strategy_for(SETTINGS).begin(manifest, initial)
    digest = model.initial_digest.hex()
    first = events.Initialized(CLIENTS[0], manifest.digest.hex(), digest, 0, "", 0, "")
    await run_loop.post(first, model)


async def disturbed_step(run_loop: RunLoop, chance: random.Random) -> None:
    """Lose two of those who are asked for an update, let the others answer in any order."""
    step = run_loop.state.step
    assert step is not None
    if step.work is Work.TRAIN:
        for client in chance.sample(sorted(step.cohort), 2):
            await run_loop.post(events.Lost(client))
            await run_loop.post(events.Tick())
    while (now := run_loop.state.step) and now.number == step.number and now.closed is None:
        here = sorted(now.pending - run_loop.state.lost)
        reply = await run_loop.post(spooled(run_loop, chance.choice(here)))
        assert reply is Reply.ACCEPTED
    await step_over(run_loop, step.number)
    for client in CLIENTS:
        await run_loop.post(events.Returned(client))


@pytest.mark.parametrize("seed", range(4))
def test_what_counted_makes_the_model_again(
    tmp_path: Path, plain_manifest: Manifest, seed: int
) -> None:
    chance = random.Random(seed)
    finals: list[str] = []

    async def script(run_loop: RunLoop) -> None:
        run_loop.spool = Spool(tmp_path / "spool", tmp_path / "accepted")
        run_loop.spool.set_aside(*newest_counted(run_loop.state))  # as at every start
        if not run_loop.state.members:
            await begin(run_loop, plain_manifest)
        for _ in range(4):
            if not run_loop.state.finished:
                await disturbed_step(run_loop, chance)
        if run_loop.state.finished:
            await run_loop.model_written.wait()
            finals.append(run_loop.state.base_digest)

    while not finals:
        conduct(tmp_path, script, SETTINGS)
    told = read_state(tmp_path)
    assert any(isinstance(fact, ClientsAdded) for fact in told.facts), "nobody was replaced"
    refold = Refold(tmp_path, SETTINGS)
    results = [result for fact in told.facts if (result := refold.take(fact))]
    assert [result.verdict for result in results] == [Verdict.OK] * len(results)
    assert [result.work for result in results].count(Work.SCORE) == 3
    assert results[-1].base_digest == finals[0]
    assert refold.under_way() is None
    assert file_problems(tmp_path, refold.state, refold.masks, refold.account) == []
