"""Mask refreshes in a running federation: by an operator, by newcomers, and with a crash."""

import json
from pathlib import Path

import numpy as np
import pytest

from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.shard_file import Shard, write_shard
from system.federation import HELD_TASK, RUN, SHARDS, FinishedRun, Hold, finish, first_gradient_of
from system.programs import Coordinator, Program, Programs, until

pytestmark = pytest.mark.system

TASK = f"--task={HELD_TASK}"
IN_ROUND_0 = first_gradient_of(0)
IN_REFRESH = first_gradient_of(2)  # after two rounds comes the gradient of the second scoring
LATE = "shard_late"


def refresh(coordinator: Coordinator, programs: Programs, *flags: str) -> Program:
    """Run `ssfl refresh-mask`."""
    return programs.run(
        "ssfl", "refresh-mask", f"--admin=localhost:{coordinator.admin_port}", *flags
    )


def renewals(history: dict[str, object]) -> list[dict[str, object]]:
    masks = history["masks"]
    assert isinstance(masks, list)
    return [mask for mask in masks if mask["reason"]]


def test_an_operator_refreshes_the_mask_of_a_running_federation(sites: Programs) -> None:
    coordinator = sites.coordinator(*RUN)
    too_early = refresh(coordinator, sites)
    assert too_early.process.returncode == 5
    assert "no mask has been agreed yet: wait for the first one" in too_early.err
    hold = Hold(sites.folder, IN_ROUND_0)
    clients = [sites.client(shard, coordinator, TASK, **hold.env) for shard in SHARDS]
    hold.reached()
    asked = refresh(coordinator, sites, "--json")
    assert json.loads(asked.out) == {"mask_epoch": 1, "rounds_done": 0}
    again = refresh(coordinator, sites)  # asking twice has the effect of once
    assert again.out == "mask 1 will be refreshed before the next round; 0 rounds are done\n"
    hold.release()
    done = finish(coordinator, clients)
    assert [mask["epoch"] for mask in done.history["masks"]] == [1, 2]
    (renewed,) = renewals(done.history)
    assert renewed["reason"] == "asked for by the operator"
    assert renewed["rounds_done"] == 1
    assert "refreshing the mask: asked for by the operator" in coordinator.err
    assert "mask refreshed" in coordinator.err
    over = {
        (row["phase"], row["direction"]): row["payload_bytes"]
        for row in done.history["ledger"]
        if row["phase"] == "mask"
    }
    first, second = (bits_of(done, mask["epoch"]) for mask in done.history["masks"])
    assert np.count_nonzero(first != second) > 0
    assert over[("mask", "down")] > 0


def bits_of(done: FinishedRun, epoch: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    file = done.folder / ".ssfl" / "coordinator" / f"mask-{epoch}.bin"
    return np.frombuffer(file.read_bytes(), dtype=np.uint8)


@pytest.mark.parametrize("victim", ["coordinator", "client"])
def test_a_crash_in_the_middle_of_a_refresh_changes_no_bit(sites: Programs, victim: str) -> None:
    flags = (*RUN, "--refresh-rounds=2")
    coordinator = sites.coordinator(*flags)
    undisturbed = finish(coordinator, [sites.client(shard, coordinator) for shard in SHARDS])
    coordinator = sites.coordinator(*flags, "--fresh")
    hold = Hold(sites.folder, IN_REFRESH)
    clients = [sites.client(shard, coordinator, TASK) for shard in SHARDS[:-1]]
    held = sites.client(SHARDS[-1], coordinator, TASK, **hold.env)
    hold.reached()
    assert coordinator.status().phase == "score"
    for shard in SHARDS[:-1]:
        coordinator.waits_for(shard, "reported")
    if victim == "coordinator":
        coordinator.kill()
        coordinator = sites.coordinator(*flags, port=coordinator.port)
        coordinator.says("resumed")
    else:
        held.kill()
        held = sites.client(SHARDS[-1], coordinator, TASK)
    hold.release()
    for program in [*clients, held]:
        assert program.ends() == 0
    assert coordinator.ends() == 0
    runs = sorted(sites.folder.glob("runs/*/coordinator/history.json"))
    digests = {json.loads(file.read_bytes())["model_digest"] for file in runs}
    assert len(runs) == 2 and digests == {undisturbed.digest}


def test_a_late_client_with_new_labels_triggers_a_refresh_and_votes_in_it(
    programs: Programs,
) -> None:
    write_sites(programs.folder / "shards")
    flags = [flag for flag in RUN if flag not in ("--reproducible", "--clients=3")]
    coordinator = programs.coordinator(*flags, "--clients=2", "--refresh-on-new-labels")
    hold = Hold(programs.folder, IN_ROUND_0)
    early = [
        programs.client(shard, coordinator, TASK, "--share-labels", **hold.env)
        for shard in SHARDS[:2]
    ]
    hold.reached()
    late = programs.client(LATE, coordinator, TASK, "--share-labels")
    coordinator.waits_for(LATE)
    late.says("joined")
    coordinator.says("client ready")
    until_ready(coordinator)
    hold.release()
    done = finish(coordinator, [*early, late])
    (renewed,) = renewals(done.history)
    assert renewed["reason"] == "new labels: 8, 9"
    assert set(renewed["votes"]) == {*SHARDS[:2], LATE}  # type: ignore[call-overload]
    assert done.history["not_voted"] == []


def until_ready(coordinator: Coordinator) -> None:
    """Wait until the late client has reported its model."""

    def is_ready() -> bool:
        joined = [fact for fact in coordinator.facts("ClientJoined") if fact["client"] == LATE]
        return any(fact["manifest_digest"] for fact in joined)

    until(is_ready, "the late client is ready")


def write_sites(folder: Path) -> None:
    """Write two sites with digits 0 to 7 and one with 8 and 9."""
    folder.mkdir()
    whole = digits()
    old, new = np.flatnonzero(whole.train_y < 8), np.flatnonzero(whole.train_y >= 8)
    for name, chosen in ((SHARDS[0], old[:40]), (SHARDS[1], old[40:80]), (LATE, new[:40])):
        shard = Shard(
            whole.train_x[chosen], whole.train_y[chosen], whole.test_x[:15], whole.test_y[:15], 10
        )
        write_shard(folder / f"{name}.npz", shard)
