"""`ssfl check` against a real run: it passes, it joins no client, and the model is the same."""

import json

import pytest

from system.federation import (
    HELD_TASK,
    RUN,
    SHARDS,
    FinishedRun,
    Hold,
    finish,
    first_gradient_of,
)
from system.programs import Programs

pytestmark = pytest.mark.system

TASK = f"--task={HELD_TASK}"


def test_a_check_in_the_middle_of_a_run_changes_nothing(
    sites: Programs, undisturbed: FinishedRun
) -> None:
    coordinator = sites.coordinator(*RUN)
    hold = Hold(sites.folder, first_gradient_of(1))
    clients = [sites.client(shard, coordinator, TASK) for shard in SHARDS[:-1]]
    clients.append(sites.client(SHARDS[-1], coordinator, TASK, **hold.env))
    hold.reached()
    for shard in SHARDS[:-1]:
        coordinator.waits_for(shard, "reported")
    before = coordinator.status()
    facts = coordinator.facts()
    where = f"--coordinator={coordinator.address}"

    member = sites.run("ssfl", "check", f"--data={SHARDS[0]}", TASK, where, "--json")
    assert member.process.returncode == 0, member.out + member.err
    document = json.loads(member.out)
    steps = {step["name"]: step for step in document["steps"]}
    assert document["passed"]
    assert {step["verdict"] for step in steps.values()} == {"ok"}
    assert steps["admission"]["text"] == f"{SHARDS[0]} would be admitted"
    assert steps["same model"]["text"].startswith("as the run's (")
    assert [row["sparsity"] for row in document["rounds"] if row["is_run"]] == ["0.9"]
    assert document["link"]["up_bits_per_s"] > 1e6

    stranger = sites.run("ssfl", "check", where, "--client-id=stranger")
    assert stranger.process.returncode == 5
    assert "FAILED   admission" in stranger.out
    assert "this reproducible run has 3 clients, and all have joined" in stranger.out

    after = coordinator.status()
    assert [client.client_id for client in after.clients] == list(SHARDS)
    assert coordinator.facts() == facts, "nothing of a check is in the journal"
    grown = {
        entry.phase: entry.message_bytes - earlier.message_bytes
        for entry, earlier in zip(after.ledger, before.ledger, strict=True)
        if entry.message_bytes != earlier.message_bytes
    }
    assert set(grown) == {"control"}
    assert max(grown.values()) < 1 << 16, "the noise does not count as the run's bytes"
    for client_id in (SHARDS[0], "stranger"):
        coordinator.says(f"{client_id} measured its link: ")
    hold.release()
    assert finish(coordinator, clients).digest == undisturbed.digest
