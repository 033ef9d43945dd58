"""How the run learns its model, without a network (uploads of steps: tests/system)."""

import asyncio
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from server.run_loop_harness import DEADLINE_S, NoPeer, caller_of, conduct, context_of
from server.step_harness import receiver_of
from ssfl.codec import values_only
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.model_state import values_digest
from ssfl.server.errors import BadValues, InvalidRequest, JoinAgain, ManifestMismatch, ModelUnusable
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.loop.limits import Limits
from ssfl.server.rpc.upload_service import UploadService
from ssfl.server.run import events
from ssfl.strategies.contract import ClientId
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2

C1, C2 = ClientId("c1"), ClientId("c2")
SENT = Manifest(
    (
        TensorSpec("w", (4,), Role.MASKED, Init("sent")),
        TensorSpec("b", (1,), Role.DENSE, Init("zeros")),
    )
)
Vector = npt.NDArray[np.float32]


def vector(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


async def join(coordinator: Coordinator, client: ClientId, manifest: Manifest) -> None:
    await coordinator.run.post(events.Joined(client, "t", 10, manifest.digest.hex(), "cpu"))


def handlers_of(coordinator: Coordinator, limits: Limits | None = None) -> UploadService:
    uploads = receiver_of(coordinator)
    return UploadService(context_of(coordinator), uploads, limits or Limits())


async def describe(
    coordinator: Coordinator,
    client: ClientId,
    manifest: Manifest,
    initial: Vector,
    limits: Limits | None = None,
    handlers: UploadService | None = None,
) -> transfer_pb2.Outcome:
    """Answer INITIALIZE for a client; return the outcome."""
    caller = caller_of(coordinator, client)
    data = bytes(values_only.encode(initial))
    header = pb.InitialModel(manifest=manifest.json, initial_digest=values_digest(initial))
    if not manifest.rebuildable:
        header.initial.encoding = transfer_pb2.ENCODING_DENSE
        header.initial.num_bytes = len(data)
        header.initial.digest = values_digest(initial)

    async def requests() -> AsyncIterator[pb.SendInitialRequest]:
        yield pb.SendInitialRequest(caller=caller, header=header)
        chunk = transfer_pb2.Chunk(data=data, crc32=zlib.crc32(data))
        yield pb.SendInitialRequest(chunk=chunk)

    handlers = handlers or handlers_of(coordinator, limits)
    answers = [answer async for answer in handlers.SendInitial(requests(), NoPeer())]
    return answers[-1].receipt.outcome


def test_a_model_that_follows_from_the_seed_is_described_without_weights(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await join(coordinator, C1, manifest)
        initial = initial_vector(manifest, seed=5)
        outcome = await describe(coordinator, C1, manifest, initial)
        assert outcome == transfer_pb2.OUTCOME_ACCEPTED
        assert coordinator.run.model is not None
        assert coordinator.run.model.initial.tobytes() == initial.tobytes()

    conduct(tmp_path, script)


def test_weights_of_another_seed_are_refused(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        await join(coordinator, C1, manifest)
        with pytest.raises(ManifestMismatch, match="do not have the digest"):
            await describe(coordinator, C1, manifest, initial_vector(manifest, seed=6))

    conduct(tmp_path, script)


def test_the_first_of_two_descriptions_counts_and_is_what_a_restart_finds(tmp_path: Path) -> None:
    first, second = vector(1, 2, 3, 4, 5), vector(9, 9, 9, 9, 9)

    async def script(coordinator: Coordinator) -> None:
        await join(coordinator, C1, SENT)
        await join(coordinator, C2, SENT)
        accepted = await describe(coordinator, C1, SENT, first)
        again = await describe(coordinator, C2, SENT, second)
        assert accepted == transfer_pb2.OUTCOME_ACCEPTED
        assert again == transfer_pb2.OUTCOME_ALREADY_ACCEPTED
        coordinator.store.save_initial(SENT, second)  # as when both were under way at once

    async def restarted(coordinator: Coordinator) -> None:
        assert coordinator.run.model is not None
        assert coordinator.run.model.initial.tolist() == first.tolist()

    conduct(tmp_path, script)
    conduct(tmp_path, restarted)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1025.0])
def test_initial_weights_that_could_never_be_summed_are_refused(tmp_path: Path, bad: float) -> None:
    async def script(coordinator: Coordinator) -> None:
        await join(coordinator, C1, SENT)
        for at, tensor in ((2, "w"), (4, "b")):
            initial = vector(1, 2, 3, 4, 5)
            initial[at] = bad
            with pytest.raises(BadValues, match=f"^c1 sent .* in {tensor}: values must be finite"):
                await describe(coordinator, C1, SENT, initial)
        assert coordinator.run.model is None

    conduct(tmp_path, script)


def test_the_manifest_must_be_the_one_of_join(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        await join(coordinator, C1, manifest)
        with pytest.raises(InvalidRequest, match="not the one whose digest came in Join"):
            await describe(coordinator, C1, SENT, vector(1, 2, 3, 4, 5))

    conduct(tmp_path, script)


def test_another_model_than_the_runs_must_join_again(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        await join(coordinator, C1, manifest)
        await join(coordinator, C2, SENT)
        await describe(coordinator, C1, manifest, initial_vector(manifest, seed=5))
        with pytest.raises(JoinAgain, match="the run's model is known now"):
            await describe(coordinator, C2, SENT, vector(1, 2, 3, 4, 5))

    conduct(tmp_path, script)


def test_a_model_too_small_for_the_sparsity_is_refused_and_not_kept(tmp_path: Path) -> None:
    tiny = Manifest((TensorSpec("w", (1,), Role.MASKED, Init("zeros")),))

    async def script(coordinator: Coordinator) -> None:
        await join(coordinator, C1, tiny)
        with pytest.raises(ModelUnusable, match="keeps none of the model's 1 masked weights"):
            await describe(coordinator, C1, tiny, vector(0))
        assert coordinator.run.model is None
        assert list(tmp_path.glob("manifest-*")) == []

    conduct(tmp_path, script)


def test_a_model_bomb_is_refused_before_anything_of_it_is_made(tmp_path: Path) -> None:
    bomb = Manifest((TensorSpec("w", (1 << 15, 1 << 15), Role.MASKED, Init("normal", 1.0)),))

    async def script(coordinator: Coordinator) -> None:
        await join(coordinator, C1, bomb)
        with pytest.raises(ModelUnusable, match=r"1073741824 values; .*--max-model-values"):
            await describe(coordinator, C1, bomb, vector(0))
        await join(coordinator, C2, SENT)
        await coordinator.run.post(events.Lost(C1))
        with pytest.raises(ModelUnusable, match="at most 4"):
            await describe(coordinator, C2, SENT, vector(1, 2, 3, 4, 5), Limits(max_model_values=4))
        assert not coordinator.spool.root.exists()

    conduct(tmp_path, script)


@pytest.mark.parametrize("kind", ["rebuildable", "sent"])
def test_only_the_client_that_was_asked_may_describe_the_model(
    tmp_path: Path, manifest: Manifest, kind: str
) -> None:
    """Otherwise any member could choose the run's model, or leave a whole model in the spool."""
    model = SENT if kind == "sent" else manifest
    initial = vector(1, 2, 3, 4, 5) if kind == "sent" else initial_vector(manifest, seed=5)

    async def script(coordinator: Coordinator) -> None:
        await join(coordinator, C1, model)
        await join(coordinator, C2, model)
        with pytest.raises(JoinAgain, match="another client was asked"):
            await describe(coordinator, C2, model, initial)
        assert coordinator.run.model is None and not coordinator.spool.root.exists()
        await coordinator.run.post(events.Lost(C1))
        outcome = await describe(coordinator, C2, model, initial)
        assert outcome == transfer_pb2.OUTCOME_ACCEPTED
        assert list(coordinator.spool.root.glob("*/*")) == []

    conduct(tmp_path, script)


class SlowBuild:
    """Stands in for `initial_vector`: the first build of `slow` lasts until `check` ends it."""

    def __init__(self, slow: Manifest) -> None:
        self.slow = slow
        self.began = threading.Event()
        self.num_built = 0

    def __call__(
        self, manifest: Manifest, seed: int, check: Callable[[], object] = lambda: None
    ) -> Vector:
        self.num_built += 1
        is_slow = manifest == self.slow and self.num_built == 1
        self.began.set()
        end_s = time.monotonic() + DEADLINE_S
        while is_slow and time.monotonic() < end_s:
            check()
        return initial_vector(manifest, seed)


def test_an_unwanted_build_delays_no_other_description(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = Manifest((TensorSpec("w", (12_000, 12_000), Role.MASKED, Init("normal", 1.0)),))
    build = SlowBuild(huge)
    monkeypatch.setattr("ssfl.server.loop.initial_upload.initial_vector", build)

    async def script(coordinator: Coordinator) -> None:
        handlers = handlers_of(coordinator)
        await join(coordinator, C1, huge)
        await join(coordinator, C2, manifest)
        hostile = asyncio.ensure_future(
            describe(coordinator, C1, huge, vector(0), handlers=handlers)
        )
        await asyncio.to_thread(build.began.wait)
        await coordinator.run.post(events.Lost(C1))
        initial = initial_vector(manifest, seed=5)
        outcome = await describe(coordinator, C2, manifest, initial, handlers=handlers)
        assert outcome == transfer_pb2.OUTCOME_ACCEPTED
        with pytest.raises(JoinAgain):
            await hostile

    conduct(tmp_path, script)


def test_a_client_that_describes_its_model_again_and_again_has_one_build(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = SlowBuild(SENT)
    monkeypatch.setattr("ssfl.server.loop.initial_upload.initial_vector", build)

    async def script(coordinator: Coordinator) -> None:
        handlers, initial = handlers_of(coordinator), initial_vector(manifest, seed=5)
        await join(coordinator, C1, manifest)
        calls = [describe(coordinator, C1, manifest, initial, handlers=handlers) for _ in range(8)]
        assert set(await asyncio.gather(*calls)) == {transfer_pb2.OUTCOME_ACCEPTED}
        assert build.num_built == 1

    conduct(tmp_path, script)


def test_a_build_outlives_a_lost_connection_but_not_another_description(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = SlowBuild(manifest)
    monkeypatch.setattr("ssfl.server.loop.initial_upload.initial_vector", build)

    async def script(coordinator: Coordinator) -> None:
        handlers = handlers_of(coordinator)
        await join(coordinator, C1, manifest)
        lost = asyncio.ensure_future(
            describe(coordinator, C1, manifest, vector(1), handlers=handlers)
        )
        await asyncio.to_thread(build.began.wait)
        lost.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lost
        again = asyncio.ensure_future(
            describe(coordinator, C1, manifest, vector(1), handlers=handlers)
        )
        other = initial_vector(manifest, seed=5)
        outcome = await describe(coordinator, C1, manifest, other, handlers=handlers)
        assert outcome == transfer_pb2.OUTCOME_ACCEPTED
        with pytest.raises(JoinAgain, match="another description of the model has replaced"):
            await again
        assert build.num_built == 2

    conduct(tmp_path, script)


class EndlessBuild(SlowBuild):
    """A build that lasts until `done`, or until `check` ends it, for every manifest."""

    def __init__(self) -> None:
        self.num_built = 0
        self.began, self.done = threading.Event(), threading.Event()

    def __call__(
        self, manifest: Manifest, seed: int, check: Callable[[], object] = lambda: None
    ) -> Vector:
        self.num_built += 1
        self.began.set()
        end_s = time.monotonic() + DEADLINE_S
        while not self.done.is_set() and time.monotonic() < end_s:
            check()
        return initial_vector(manifest, seed)


def test_a_late_description_never_replaces_that_of_the_client_that_is_asked(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = EndlessBuild()
    monkeypatch.setattr("ssfl.server.loop.initial_upload.initial_vector", build)

    async def script(coordinator: Coordinator) -> None:
        handlers, initial = handlers_of(coordinator), initial_vector(manifest, seed=5)
        await join(coordinator, C1, manifest)
        await join(coordinator, C2, manifest)
        await coordinator.run.post(events.DescriptionOverdue(C1))
        honest = asyncio.ensure_future(
            describe(coordinator, C2, manifest, initial, handlers=handlers)
        )
        await asyncio.to_thread(build.began.wait)
        for number in range(3):
            with pytest.raises(JoinAgain, match="another client is asked"):
                await describe(coordinator, C1, manifest, vector(number), handlers=handlers)
        build.done.set()
        assert await honest == transfer_pb2.OUTCOME_ACCEPTED
        assert build.num_built == 1

    conduct(tmp_path, script)


def test_the_client_that_is_asked_replaces_a_late_description(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = EndlessBuild()
    monkeypatch.setattr("ssfl.server.loop.initial_upload.initial_vector", build)

    async def script(coordinator: Coordinator) -> None:
        handlers, initial = handlers_of(coordinator), initial_vector(manifest, seed=5)
        await join(coordinator, C1, manifest)
        await join(coordinator, C2, manifest)
        await coordinator.run.post(events.DescriptionOverdue(C1))
        late = asyncio.ensure_future(
            describe(coordinator, C1, manifest, vector(1), handlers=handlers)
        )
        await asyncio.to_thread(build.began.wait)
        honest = asyncio.ensure_future(
            describe(coordinator, C2, manifest, initial, handlers=handlers)
        )
        with pytest.raises(JoinAgain, match="has replaced this one"):
            await late
        build.done.set()
        assert await honest == transfer_pb2.OUTCOME_ACCEPTED

    conduct(tmp_path, script)


def test_a_late_client_has_one_build_until_the_next_client_is_passed_over(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = EndlessBuild()
    build.done.set()
    monkeypatch.setattr("ssfl.server.loop.initial_upload.initial_vector", build)

    async def script(coordinator: Coordinator) -> None:
        handlers, initial = handlers_of(coordinator), initial_vector(manifest, seed=5)
        for client in (C1, C2, ClientId("c3")):
            await join(coordinator, client, manifest)
        await coordinator.run.post(events.DescriptionOverdue(C1))
        with pytest.raises(ManifestMismatch):
            await describe(coordinator, C1, manifest, vector(1), handlers=handlers)
        for _ in range(3):
            with pytest.raises(JoinAgain, match="another client is asked"):
                await describe(coordinator, C1, manifest, vector(1), handlers=handlers)
        assert build.num_built == 1
        await coordinator.run.post(events.DescriptionOverdue(C2))
        outcome = await describe(coordinator, C1, manifest, initial, handlers=handlers)
        assert outcome == transfer_pb2.OUTCOME_ACCEPTED

    conduct(tmp_path, script)


def test_a_late_description_leaves_the_partial_model_of_the_client_that_is_asked(
    tmp_path: Path,
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await join(coordinator, C1, SENT)
        await join(coordinator, C2, SENT)
        await coordinator.run.post(events.DescriptionOverdue(C1))
        digest = values_digest(vector(1, 2, 3, 4, 5))
        coordinator.spool.part(0, C2, digest).append(b"12345678")
        late = vector(9, 9, 9, 9, np.nan)
        with pytest.raises(BadValues):
            await describe(coordinator, C1, SENT, late)
        assert coordinator.spool.part(0, C2, digest).num_bytes == 8

    conduct(tmp_path, script)


def test_a_description_is_allowed_time_for_its_size(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        for client, model in ((C1, manifest), (C2, SENT)):
            await join(coordinator, client, model)
            with pytest.raises((ManifestMismatch, BadValues)):
                await describe(coordinator, client, model, vector(1, 2, 3, 4, np.nan))
            await coordinator.run.post(events.DescriptionOverdue(client))
        allowed_s = [coordinator.presence.get(client, 0.0).description_s for client in (C1, C2)]
        assert allowed_s == [manifest.size / 1e6, SENT.size * 4 / 32768]

    conduct(tmp_path, script)
