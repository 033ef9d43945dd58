"""kill -9 at chosen moments: the run resumes by itself and ends with the same digest.

The undisturbed run is the reference. Clients are blocked at a known gradient
(federation.Hold), so that the process which dies really is in the middle of something.
"""

import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ssfl import api
from ssfl.datasets.shards.shard_file import read_shard, write_shard
from system.federation import (
    HELD_TASK,
    RUN,
    SHARDS,
    FinishedRun,
    Hold,
    finish,
    first_gradient_of,
)
from system.programs import Coordinator, Program, Programs, until
from system.raw_client import expected_values, take_part_with_rejoins
from system.raw_run import RawRun

pytestmark = pytest.mark.system

TASK = f"--task={HELD_TASK}"
SCORING = 1
IN_ROUND_1 = first_gradient_of(1)


def start(
    programs: Programs, gradient: int, *flags: str
) -> tuple[Coordinator, list[Program], Hold]:
    """Start a run whose last client is blocked at a gradient; the others have reported."""
    coordinator = programs.coordinator(*(flags or RUN))
    hold = Hold(programs.folder, gradient)
    clients = [programs.client(shard, coordinator, TASK) for shard in SHARDS[:-1]]
    clients.append(programs.client(SHARDS[-1], coordinator, TASK, **hold.env))
    hold.reached()
    for shard in SHARDS[:-1]:
        coordinator.waits_for(shard, "reported")
    return coordinator, clients, hold


def accepted(coordinator: Coordinator) -> list[tuple[int, str, str]]:
    """Return (step, client, digest) of every accepted upload."""
    facts = coordinator.facts("UploadAccepted")
    return [(fact["step"], fact["client"], fact["digest"]) for fact in facts]


def restart(programs: Programs, coordinator: Coordinator) -> Coordinator:
    """Kill the coordinator with SIGKILL and restart it with the same state and port."""
    coordinator.kill()
    return programs.coordinator(*RUN, port=coordinator.port)


@pytest.mark.parametrize("gradient", [SCORING, IN_ROUND_1], ids=["scoring", "in a round"])
def test_the_coordinator_resumes_with_the_same_accepted_set(
    sites: Programs, undisturbed: FinishedRun, gradient: int
) -> None:
    coordinator, clients, hold = start(sites, gradient)
    before = accepted(coordinator)
    assert {client for _, client, _ in before[-2:]} == set(SHARDS[:-1])
    again = restart(sites, coordinator)
    again.says("resumed")
    for shard in SHARDS[:-1]:
        assert again.client_state(shard) == "reported"
    assert accepted(again) == before
    hold.release()
    assert finish(again, clients).digest == undisturbed.digest
    after = accepted(again)
    assert after[: len(before)] == before
    assert len({(step, client) for step, client, _ in after}) == len(after), "counted twice"


def test_a_coordinator_killed_right_after_the_run_still_delivers_the_model(
    sites: Programs, undisturbed: FinishedRun
) -> None:
    coordinator, clients, hold = start(sites, first_gradient_of(2))
    hold.release()
    until(lambda: coordinator.facts("RunFinished"), "the run is finished")
    coordinator.kill()
    serving = [flag for flag in RUN if flag != "--exit-when-done"]
    again = sites.coordinator(*serving, port=coordinator.port)
    again.says("this run is finished")
    assert [client.ends() for client in clients] == [0, 0, 0]
    assert again.status().model_digest.hex() == undisturbed.digest
    until(lambda: list(sites.folder.glob("runs/*/coordinator/history.json")), "the history")
    assert again.history()["model_digest"] == undisturbed.digest
    masks = [file.read_bytes() for file in sites.folder.glob("runs/*/*/mask.bin")]
    assert len(masks) == 1 + len(SHARDS)
    assert len(set(masks)) == 1


def test_a_client_killed_in_a_round_rejoins_with_its_token(
    sites: Programs, undisturbed: FinishedRun
) -> None:
    coordinator, clients, hold = start(sites, IN_ROUND_1)
    clients.pop().kill()
    hold.release()
    clients.append(sites.client(SHARDS[-1], coordinator, TASK))
    assert finish(coordinator, clients).digest == undisturbed.digest
    joined = [fact for fact in coordinator.facts("ClientJoined") if fact["client"] == SHARDS[-1]]
    assert len(joined) >= 3  # before and after its model was built, and after the kill
    assert len({fact["token"] for fact in joined}) == 1
    assert "round closed before training ended" not in clients[-1].err


@pytest.mark.parametrize("reproducible", [True, False])
def test_a_client_with_more_samples_than_before_continues(
    sites: Programs, shards: Path, *, reproducible: bool
) -> None:
    """A step keeps the weights it started with; the new count applies from the next step."""
    waits_for_all = "--reproducible" if reproducible else "--min-clients=3"
    flags = [flag if flag != "--reproducible" else waits_for_all for flag in RUN]
    coordinator, clients, hold = start(sites, IN_ROUND_1, *flags)
    clients.pop().kill()
    hold.release()
    grown = sites.folder / "grown"
    grown.mkdir()
    shard = read_shard(shards / f"{SHARDS[-1]}.npz")
    more_x, more_y = (
        np.concatenate([array, array[:1]]) for array in (shard.train_x, shard.train_y)
    )
    write_shard(grown / f"{SHARDS[-1]}.npz", replace(shard, train_x=more_x, train_y=more_y))
    clients.append(sites.client(SHARDS[-1], coordinator, TASK, f"--data-root={grown}"))
    finish(coordinator, clients)
    steps = coordinator.facts("StepStarted")
    weights = [step["cohort"][SHARDS[-1]] for step in steps if step["work"] == "train"]
    assert weights == [40, 40, 41]
    accepted_steps = {fact["step"] for fact in coordinator.facts("UploadAccepted")
               if fact["client"] == SHARDS[-1]}  # fmt: skip
    assert accepted_steps == {step["step"] for step in steps}
    assert "num_samples=41" in coordinator.says("joined again with another number of samples")


def test_a_finished_answer_survives_the_death_of_both_ends(
    sites: Programs, undisturbed: FinishedRun
) -> None:
    """The client trains while the coordinator is down, dies, and sends without training again."""
    coordinator, clients, hold = start(sites, IN_ROUND_1)
    coordinator.kill()
    hold.release()
    answer = sites.folder / ".ssfl" / "clients" / SHARDS[-1] / "answer.json"
    until(answer.exists, "the answer is kept on disk")
    clients.pop().kill()
    again = sites.coordinator(*RUN, port=coordinator.port)
    clients.append(sites.client(SHARDS[-1], again, TASK))
    assert finish(again, clients).digest == undisturbed.digest
    events = [
        line for line in clients[-1].err.splitlines() if "values sent" in line or "trained" in line
    ]
    assert "values sent" in events[0], "it trained the round a second time"
    assert not answer.exists()


def test_clients_follow_a_coordinator_that_starts_a_new_run_with_other_settings(
    sites: Programs, undisturbed: FinishedRun
) -> None:
    """The settings of the new run on the same port apply, not those of the previous one."""
    other = [flag for flag in RUN if not flag.startswith(("--seed", "--local-steps"))]
    first = sites.coordinator(*other, "--seed=99", "--local-steps=50", "--clients=4")
    clients = [sites.client(shard, first) for shard in SHARDS]
    for shard in SHARDS:
        first.waits_for(shard)
    first.kill()
    again = sites.coordinator(*RUN, "--fresh", port=first.port)
    assert finish(again, clients).digest == undisturbed.digest


def test_kill_9_at_six_random_moments_changes_nothing(programs: Programs) -> None:
    """Raw clients take milliseconds per round, so a kill may hit any part of a round."""
    moments = random.Random(5)
    flags = ("--clients=2", "--rounds=40", "--sparsity=0.75", "--evaluate-every=9")
    coordinator = programs.coordinator(*flags)
    raw = RawRun(programs, coordinator)
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(take_part_with_rejoins, client) for client in (raw.ann, raw.bob)]
        for _ in range(6):
            steps = len(coordinator.facts("StepStarted"))
            until(more_steps(coordinator, steps), "the run continues")
            time.sleep(moments.uniform(0, 0.03))
            coordinator.kill()
            coordinator = programs.coordinator(*flags, port=coordinator.port)
        finals = [end.result() for end in ends]
    expected = expected_values((raw.ann, raw.bob), rounds=40)
    assert all(np.array_equal(final, expected) for final in finals)
    uploads = [(step, client) for step, client, _ in accepted(coordinator)]
    assert len(set(uploads)) == len(uploads)
    assert coordinator.facts("StepVoided") == []
    raw.close()


def more_steps(coordinator: Coordinator, steps: int) -> Callable[[], bool]:
    """Return a condition: the run has more than `steps` steps, or is over."""
    return lambda: bool(
        len(coordinator.facts("StepStarted")) > steps or coordinator.facts("RunFinished")
    )


@pytest.mark.parametrize(
    ("strategy", "options", "in_round_1"),
    [
        ("ditto", "ditto.personal_epochs=2", 14),
        ("sub-fedavg", "sub-fedavg.accuracy=0", 7),
        ("topk-updates", "topk-updates.share=0.1", 7),
    ],
)
def test_a_void_round_leaves_no_trace_in_the_memory_of_clients(
    sites: Programs, shards: Path, strategy: str, options: str, in_round_1: int
) -> None:
    """Two clients have answered when the third leaves in a pause: the round is void."""
    simulated = api.simulate(
        api.read_shards(shards), strategy=strategy, strategy_options=options, local_epochs=2,
        rounds=2, model="mlp", sparsity="0.9", seed=7, evaluate_every=0, scoring_batches=1,
    )  # fmt: skip
    coordinator, clients, _ = start(
        sites, in_round_1, *RUN, f"--strategy={strategy}", f"--{options}", "--rounds=2",
        "--local-steps=0", "--local-epochs=2",
    )  # fmt: skip
    clients.pop().signal(signal.SIGTERM)
    coordinator.waits_for(SHARDS[-1], "left")
    admin = f"--admin=localhost:{coordinator.admin_port}"
    assert sites.run("ssfl", "pause", admin).ends() == 0
    assert "to be tried again after the pause" in coordinator.says("step void")
    clients.append(sites.client(SHARDS[-1], coordinator, TASK))
    assert sites.run("ssfl", "resume", admin).ends() == 0
    real = finish(coordinator, clients)
    assert len(coordinator.facts("StepVoided")) == 1
    assert real.digest == simulated.digest
    personal = api.RunHistory.of(real.history).personal
    assert personal.tolist() == simulated.history.personal.tolist()
