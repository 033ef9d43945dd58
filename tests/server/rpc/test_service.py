"""The service over a real connection: what many clients need at once is made once."""

import asyncio
import threading
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from server.run_loop_harness import SETTINGS, conduct, context_of
from server.step_harness import C1, C2, Steps, announced, receiver_of
from ssfl.client.coding import read_values
from ssfl.codec import blocks, reference
from ssfl.method.manifest import Manifest
from ssfl.method.model_state import values_digest
from ssfl.method.settings import RunSettings
from ssfl.server.broadcast.payloads import Broadcast, Form
from ssfl.server.broadcast.tasks import task_for
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.rpc import service as service_module
from ssfl.server.rpc.interceptors import StatusInterceptor
from ssfl.server.rpc.service import CoordinatorService
from ssfl.server.run import events
from ssfl.strategies.contract import ClientId, Work
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import coordinator_pb2_grpc, transfer_pb2

ALL = tuple(range(1, 11))


@asynccontextmanager
async def served(coordinator: Coordinator, reference_coding: str) -> AsyncIterator[Any]:
    """Serve a coordinator on a port of its own; yield a stub that calls it."""
    uploads = receiver_of(coordinator)
    service = CoordinatorService(context_of(coordinator), uploads, reference_coding)
    server = grpc.aio.server(interceptors=[StatusInterceptor(coordinator.refusals)])
    coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield coordinator_pb2_grpc.CoordinatorServiceStub(channel)
    finally:
        await server.stop(0)


async def task_of(stub: Any, request: pb.NextTaskRequest) -> tuple[pb.Task, bytes]:
    """Return a task and the bytes that came with it."""
    task, data = pb.Task(), b""
    async for response in stub.NextTask(request, timeout=30):
        match response.WhichOneof("part"):
            case "task":
                task = response.task
            case "chunk":
                assert response.chunk.crc32 == zlib.crc32(response.chunk.data)
                data += response.chunk.data
    return task, data


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[Form]:
    """How often each form was made; every one takes a while, off the event loop."""
    counts: Counter[Form] = Counter()
    build = Broadcast.build

    def counting(broadcast: Broadcast, form: Form) -> None:
        assert threading.current_thread() is not threading.main_thread()
        time.sleep(0.05)
        counts[form] += 1
        build(broadcast, form)

    monkeypatch.setattr(Broadcast, "build", counting)
    return counts


def tell(
    folder: Path,
    manifest: Manifest,
    story: Callable[[Steps, Any], Awaitable[None]],
    reference_coding: str = "on",
    settings: RunSettings = SETTINGS,
) -> None:
    """Bring a run to its first round, with clients that read everything, and serve it."""

    async def script(coordinator: Coordinator) -> None:
        steps = await Steps(coordinator, manifest).training()
        for client in (C1, C2):
            digest = manifest.digest.hex()
            await coordinator.run.post(events.Joined(client, "t", 10, digest, "cpu", encodings=ALL))
        async with served(coordinator, reference_coding) as stub:
            await story(steps, stub)

    conduct(folder, script, settings)


async def next_round(steps: Steps) -> None:
    """Let both clients report their round."""
    for client, delta in ((C1, 0.125), (C2, 0.25)):
        data = bytes(blocks.encode(reference.CODE, steps.base + np.float32(delta), None))
        payload = announced(data, transfer_pb2.ENCODING_REFERENCE)
        await steps.update(payload, data, client)
    await steps.reaches(Work.TRAIN, round_number=1)


def test_a_form_is_encoded_once_for_concurrent_requests(
    tmp_path: Path, manifest: Manifest, built: Counter[Form]
) -> None:
    async def story(steps: Steps, stub: Any) -> None:
        requests = [pb.NextTaskRequest(caller=steps.caller(one)) for one in (C1, C2) * 10]
        answers = await asyncio.gather(*(task_of(stub, one) for one in requests))
        assert len({(task.task_digest, data) for task, data in answers}) == 1
        assert built == {Form.MASK: 1, Form.MASK_SORTED: 1, Form.VALUES_TO_NOTHING: 1}

    tell(tmp_path, manifest, story)


def test_each_client_gets_its_own_form_and_each_is_made_once(
    tmp_path: Path, manifest: Manifest, built: Counter[Form]
) -> None:
    async def story(steps: Steps, stub: Any) -> None:
        model = steps.coordinator.run.model
        assert model is not None and model.mask is not None
        first, base = model.base_digest, steps.base.copy()
        mine: dict[str, Any] = {
            "mask_digest": model.mask.digest,
            "initial_digest": model.initial_digest,
        }
        asked = pb.NextTaskRequest(caller=steps.caller(C1), **mine)
        task, data = await task_of(stub, asked)
        assert (task.train.base_digest, task.train.HasField("base"), data) == (first, False, b"")
        await next_round(steps)
        built.clear()
        holds = pb.NextTaskRequest(caller=steps.caller(C1), base_digest=first, **mine)
        lacks = pb.NextTaskRequest(caller=steps.caller(C2), mask_digest=model.mask.digest)
        answers = await asyncio.gather(*(task_of(stub, one) for one in (holds, lacks) * 5))
        for task, data in answers:
            work = task.train
            held = {first: base} if work.base.reference_digest else {}
            got = read_values(memoryview(data), work.base, base.size, held)
            assert values_digest(got) == work.base_digest == values_digest(steps.base)
        assert {task.train.base.reference_digest for task, _ in answers} == {first, b""}
        assert built == {Form.VALUES_TO_PREVIOUS: 1, Form.VALUES_TO_NOTHING: 1}

    tell(tmp_path, manifest, story)


def test_a_client_that_was_away_was_asked_when_it_takes_its_task_again(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def script(coordinator: Coordinator) -> None:
        steps, presence = await Steps(coordinator, manifest).training(), coordinator.presence
        asked = pb.NextTaskRequest(caller=steps.caller(C1))
        async with served(coordinator, "off") as stub:
            task, data = await task_of(stub, asked)
            first_s = presence.get(C1, 0.0).asked_s
            await task_of(stub, asked)
            again_s = presence.get(C1, 0.0).asked_s
            assert again_s > first_s
            asked.task_digest, asked.offset = task.task_digest, len(data) // 2
            await task_of(stub, asked)
            assert presence.get(C1, 0.0).asked_s == again_s  # it continues

    seconds = count(1.0)
    conduct(tmp_path, script, SETTINGS, clock=lambda: next(seconds))


@pytest.mark.parametrize(
    ("reference_coding", "value_type", "word"),
    [
        ("auto", "float32", "values_only"),
        ("off", "float32", "values_only"),
        ("on", "float32", "reference"),
        ("auto", "int8", "int8"),
    ],
)
def test_the_encoding_is_logged_when_a_client_is_ready(
    tmp_path: Path,
    plain_manifest: Manifest,
    caplog: pytest.LogCaptureFixture,
    reference_coding: str,
    value_type: str,
    word: str,
) -> None:
    async def story(_steps: Steps, stub: Any) -> None:
        request = pb.JoinRequest(
            protocol_version=1,
            client_id=ClientId("c3"),
            token=bytes(16),
            num_samples=10,
            manifest_digest=plain_manifest.digest,
            encodings=[transfer_pb2.Encoding.Name(one) for one in ALL],
        )
        with caplog.at_level("INFO", "ssfl.run"):
            await stub.Join(request, timeout=30)
            request.client_id = "c4"
            del request.encodings[4:]
            await stub.Join(request, timeout=30)
        ready = [one for one in caplog.records if one.message == "client ready"]
        chosen = {one.__dict__["client"]: one.__dict__["values"] for one in ready}
        assert chosen == {"c3": word, "c4": "values_only"}

    settings = replace(SETTINGS, value_type=value_type)
    tell(tmp_path, plain_manifest, story, reference_coding, settings)


def test_a_client_from_before_the_settings_of_images_is_refused_once_it_has_a_model(
    tmp_path: Path, plain_manifest: Manifest
) -> None:
    async def story(_steps: Steps, stub: Any) -> None:
        request = pb.JoinRequest(
            protocol_version=1,
            client_id="c3",
            token=bytes(16),
            num_samples=10,
            encodings=[transfer_pb2.Encoding.Name(one) for one in ALL],
        )
        response = await stub.Join(request, timeout=30)
        assert response.strategy == "augment contract 1"
        request.manifest_digest = plain_manifest.digest
        with pytest.raises(grpc.aio.AioRpcError, match="this run has augment contract 1, which"):
            await stub.Join(request, timeout=30)
        request.strategy = response.strategy
        await stub.Join(request, timeout=30)

    tell(tmp_path, plain_manifest, story, settings=replace(SETTINGS, augment="crop-flip"))


def test_a_heartbeat_does_not_look_for_the_task_again(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: Counter[ClientId] = Counter()

    def counting(*arguments: Any) -> Any:
        looked[arguments[2]] += 1
        return task_for(*arguments)

    monkeypatch.setattr(service_module, "task_for", counting)
    monkeypatch.setattr(service_module, "HEARTBEAT_S", 0.01)

    async def story(steps: Steps, stub: Any) -> None:
        caller = steps.caller(C1)
        step = steps.coordinator.run.state.step
        assert step is not None
        poll = stub.NextTask(pb.NextTaskRequest(caller=caller, finished_step=step.number))
        for _ in range(5):
            assert (await poll.read()).WhichOneof("part") == "waiting"
        assert looked == {C1: 1}
        await next_round(steps)
        while (answer := await poll.read()).WhichOneof("part") == "waiting":
            pass
        assert answer.task.train.round_number == 1
        poll.cancel()

    tell(tmp_path, manifest, story)
