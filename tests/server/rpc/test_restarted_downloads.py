"""A download cut by a coordinator restart resumes with the same task and the same bytes."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from server.run_loop_harness import SETTINGS, conduct
from server.step_harness import C1, C2, Steps, announced
from ssfl.codec import values_only
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.settings import RunSettings
from ssfl.server.broadcast.payloads import NotBuilt
from ssfl.server.broadcast.tasks import Ready, task_for
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.run import events
from ssfl.server.uploads.encoding_choice import Reader
from ssfl.strategies.contract import Work
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2

RUNS = {
    "coded": replace(SETTINGS, rounds=3),
    "lossy": replace(SETTINGS, rounds=3, value_type="int8"),
    "lossy values": replace(SETTINGS, rounds=3, value_type="int8", downloads="values"),
    "dense": replace(SETTINGS, rounds=3, strategy="fedavg"),
    "renewed": replace(SETTINGS, rounds=3, refresh_rounds="1,2"),
    "renewed and kept": replace(SETTINGS, rounds=3, refresh_rounds="1,2", deactivated="keep"),
    "warm": replace(SETTINGS, rounds=3, warmup_rounds=1),
}
MANIFEST = Manifest(
    (
        TensorSpec("first", (20, 10), Role.MASKED, Init("normal", 0.1)),
        TensorSpec("bias", (10,), Role.DENSE, Init("zeros")),
    )
)
TEST = {"correct": 1, "total": 2, "loss_sum": 1.0, "metric_sums": {}}
ALL = Reader(frozenset(transfer_pb2.Encoding.values()), coded=True)


class Held:
    """What a client holds of the newest task that it took whole."""

    def __init__(self) -> None:
        self.request = pb.NextTaskRequest()
        self.seen: list[tuple[str, bytes, bytes]] = []  # kind, digest and bytes of every task

    def ask(self, steps: Steps) -> Ready:
        """Return the task for who holds this; what it needs is made."""
        coordinator = steps.coordinator
        model = coordinator.run.model
        assert model is not None
        self.request.initial_digest = model.initial_digest
        broadcast = steps.context.broadcasts.shared(model)
        while True:
            try:
                ready = task_for(coordinator.run.state, broadcast, C1, self.request, 8, ALL)
                assert ready is not None
                return ready
            except NotBuilt as needed:
                broadcast.build(needed.form)

    def take(self, ready: Ready) -> None:
        """Hold what a task brings."""
        self.seen.append(described(ready))
        work = getattr(ready.task, str(ready.task.WhichOneof("work")))
        if work.HasField("mask"):
            self.request.mask_digest = work.mask.mask_digest
            self.request.base_digest = work.base_digest
        if ready.task.HasField("score"):
            self.request.scored_digest = work.initial_digest


def described(ready: Ready) -> tuple[str, bytes, bytes]:
    data = b"".join(part.data for part in ready.parts)
    kind = str(ready.task.WhichOneof("work"))
    return kind, ready.task.task_digest, hashlib.sha256(data).digest()


def values(count: int, step: int) -> bytes:
    return np.random.default_rng(step).normal(0, 0.1, count).astype("<f4").tobytes()


async def answered(steps: Steps) -> None:
    """Let both clients answer the open step."""
    coordinator, step = steps.coordinator, steps.step
    model = coordinator.run.model
    assert model is not None
    for client in (C1, C2):
        match step.work:
            case Work.SCORE:
                found = np.random.default_rng(step.number).random(steps.manifest.num_masked)
                data = bytes(values_only.encode(found.astype(np.float32)))
                await steps.scores(announced(data, transfer_pb2.ENCODING_DENSE), data, client)
            case Work.TRAIN:
                data = values(steps.base.size, step.number)
                payload = announced(data, transfer_pb2.ENCODING_VALUES_ONLY)
                await steps.update(payload, data, client)
            case _:
                event = events.UploadReceived(step.number, client, "", report={"evaluation": TEST})
                await coordinator.run.post(event)
    while (now := coordinator.run.state.step) is not None and now.number == step.number:
        await coordinator.run.tasks_changed().wait()


def restarts(folder: Path, settings: RunSettings) -> Iterator[Held]:
    """Yield what a client was given: by one process, then by a new one for every step."""
    once, again = Held(), Held()

    async def undisturbed(coordinator: Coordinator) -> None:
        steps = Steps(coordinator, MANIFEST)
        await steps.begun()
        while True:
            while coordinator.run.state.step is None and not coordinator.run.state.finished:
                await coordinator.run.tasks_changed().wait()
            once.take(once.ask(steps))
            if coordinator.run.state.finished:
                return
            await answered(steps)

    async def one_step(coordinator: Coordinator) -> None:
        steps = Steps(coordinator, MANIFEST)
        if not coordinator.run.state.members:
            await steps.begun()
        while coordinator.run.state.step is None and not coordinator.run.state.finished:
            await coordinator.run.tasks_changed().wait()
        again.take(again.ask(steps))
        if not coordinator.run.state.finished:
            await answered(steps)

    (folder / "once").mkdir()
    (folder / "again").mkdir()
    conduct(folder / "once", undisturbed, settings)
    while not again.seen or again.seen[-1][0] != "finish":
        conduct(folder / "again", one_step, settings)
    yield once
    yield again


@pytest.mark.parametrize("name", RUNS)
def test_every_task_of_a_coordinator_that_is_always_restarted_is_the_same(
    tmp_path: Path, name: str
) -> None:
    once, again = restarts(tmp_path, RUNS[name])
    kinds = [kind for kind, *_ in once.seen]
    assert kinds.count("train") == 3 and kinds[-1] == "finish"
    assert again.seen == once.seen
