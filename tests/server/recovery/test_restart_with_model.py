"""After a restart, calls are answered while the model is still being read."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.rpc.test_service import served
from server.run_loop_harness import SETTINGS, conduct
from server.step_harness import C1, C2, Steps, announced
from ssfl.codec import values_only
from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState
from ssfl.server.errors import StateError
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.loop.run_loop import RunLoop
from ssfl.server.recovery.recover import load_models
from ssfl.server.rpc.admin import AdminService
from ssfl.server.run import events
from ssfl.strategies.contract import Work
from ssfl.v1 import admin_pb2, transfer_pb2
from ssfl.v1 import coordinator_pb2 as pb

DEADLINE_S = 20.0


class Gate:
    """Reads the model when the test allows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()

        def slow(*args: Any) -> Sequence[ModelState]:
            assert self.open.wait(DEADLINE_S)
            return load_models(*args)

        monkeypatch.setattr("server.run_loop_harness.load_models", slow)


def trained(folder: Path, manifest: Manifest) -> None:
    """Create a state directory with round 0 open and the update of c2 in it."""

    async def script(coordinator: Coordinator) -> None:
        steps = Steps(coordinator, manifest)
        await steps.training()
        await send(steps, C2)

    conduct(folder, script, replace(SETTINGS, rounds=1))


async def send(steps: Steps, client: Any) -> list[str]:
    data = bytes(values_only.encode(steps.base))
    return await steps.update(announced(data, transfer_pb2.ENCODING_VALUES_ONLY), data, client)


def test_join_is_answered_at_once_while_tasks_and_uploads_wait_for_the_model(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, manifest)
    gate = Gate(monkeypatch)

    async def script(coordinator: Coordinator) -> None:
        assert coordinator.run.is_reading and coordinator.run.model is None
        status = await AdminService(coordinator, "runs").GetStatus(
            admin_pb2.GetStatusRequest(), None
        )
        assert (status.phase, status.num_values) == ("train", manifest.size)
        async with served(coordinator, "on") as stub:
            newcomer = pb.JoinRequest(
                protocol_version=1,
                client_id="c3",
                token=bytes(16),
                num_samples=10,
                manifest_digest=manifest.digest,
                encodings=transfer_pb2.Encoding.keys()[1:],
            )
            joined = await stub.Join(newcomer)
            assert joined.manifest == manifest.json
            steps = Steps(coordinator, manifest)
            caller = steps.caller(C1)
            poll = stub.NextTask(pb.NextTaskRequest(caller=caller))
            first = await poll.read()
            assert "is reading its model" in first.waiting.reason
            data = bytes(4 * (manifest.num_masked // 2 + manifest.num_unmasked))
            payload = announced(data, transfer_pb2.ENCODING_VALUES_ONLY)
            state = coordinator.run.state
            header = pb.SendUpdateRequest(caller=caller)
            assert state.step is not None
            header.header.step = state.step.number
            header.header.num_samples = 10
            header.header.mask_digest = bytes.fromhex(state.mask_digest)
            header.header.mask_epoch = state.mask_epoch
            header.header.base_digest = bytes.fromhex(state.base_digest)
            header.header.values.CopyFrom(payload)
            upload = stub.SendUpdate()
            await upload.write(header)
            answering = asyncio.ensure_future(upload.read())
            task = asyncio.ensure_future(poll.read())
            await stub.Progress(pb.ProgressRequest(caller=caller))
            assert not answering.done() and not task.done()
            gate.open.set()
            assert (await task).task.HasField("train")
            assert (await answering).grant.offset == 0
            upload.cancel()
            poll.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLoop, "current_model", _unless_first(RunLoop.current_model))
        conduct(tmp_path, script, replace(SETTINGS, rounds=1))


def _unless_first(wait: Any) -> Any:
    """Open a coordinator without waiting for its model, unlike the shared helper."""
    asked = []

    async def current_model(run: RunLoop) -> ModelState | None:
        asked.append(1)
        return run.model if len(asked) == 1 else await wait(run)

    return current_model


def test_a_sum_that_is_due_waits_for_the_model(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill between the last upload and the sum, the new process computes the sum."""
    trained(tmp_path, manifest)
    gate = Gate(monkeypatch)
    threading.Timer(0.0, gate.open.set).start()

    async def script(coordinator: Coordinator) -> None:
        steps = Steps(coordinator, manifest)
        await send(steps, C1)
        await steps.reaches(Work.EVALUATE, 1)
        assert coordinator.run.state.rounds_done == 1

    conduct(tmp_path, script, replace(SETTINGS, rounds=1))


@pytest.mark.parametrize("name", ["values-1.f32", "mask-1.bin"])
def test_a_damaged_model_ends_the_coordinator_and_is_named(
    tmp_path: Path, manifest: Manifest, name: str
) -> None:
    trained(tmp_path, manifest)
    data = bytearray((tmp_path / name).read_bytes())
    data[0] ^= 1
    (tmp_path / name).write_bytes(data)

    async def script(coordinator: Coordinator) -> None:
        await coordinator.run.post(events.Signal.TICK)
        await asyncio.Event().wait()

    with pytest.raises(StateError, match=f"{name} does not match the journal: restore"):
        conduct(tmp_path, script, replace(SETTINGS, rounds=1))
