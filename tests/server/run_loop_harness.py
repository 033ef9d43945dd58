"""A coordinator with real files and threads, for tests that post to it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.server.accounting.ledger import Ledger
from ssfl.server.loop.coordinator import Coordinator, build_coordinator
from ssfl.server.loop.fact_writer import Clock
from ssfl.server.recovery.recover import OpenedRun, load_manifest, load_models, open_run
from ssfl.server.rpc.call_context import CallContext
from ssfl.server.rpc.session_numbers import KEY_BYTES, SessionNumbers
from ssfl.server.run import events
from ssfl.server.run.events import Event, Reply
from ssfl.server.storage.journal import Journal
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.spool import Spool
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.strategies.contract import ClientId
from ssfl.strategies.registry import strategy_for
from ssfl.v1 import coordinator_pb2 as pb

SETTINGS = RunSettings(clients=2, rounds=2, sparsity="0.5", seed=5)
DEADLINE_S = 30.0  # timeout of events that must happen; reached only on failure

C1, C2 = ClientId("c1"), ClientId("c2")
NUMBERS = SessionNumbers(bytes(KEY_BYTES))

Script = Callable[[Coordinator], Awaitable[None]]
WriteModel = Callable[[Coordinator], None]


def context_of(coordinator: Coordinator) -> CallContext:
    """Return the shared context of calls to a coordinator."""
    return CallContext(coordinator, NUMBERS)


class NoPeer:
    """The gRPC context of a call from an unknown address."""

    def peer(self) -> str:
        return ""


def caller_of(coordinator: Coordinator, client: ClientId) -> pb.Caller:
    """Return the caller message of a member."""
    state = coordinator.run.state
    number = NUMBERS.number(state.run_id, client, state.members[client].session)
    return pb.Caller(run_id=state.run_id, client_id=client, session=number)


async def begin(coordinator: Coordinator, manifest: Manifest) -> None:
    """Let both clients join and the first describe the model."""
    digest = manifest.digest.hex()
    for client in (C1, C2):
        await coordinator.run.post(events.Joined(client, "t", 10, digest, "cpu"))
    initial = initial_vector(manifest, SETTINGS.seed)
    coordinator.store.save_initial(manifest, initial)
    model = strategy_for(SETTINGS).begin(manifest, initial)
    described = events.Initialized(C1, digest, model.initial_digest.hex(), 0, "", 0, "")
    await coordinator.run.post(described, model)


def spooled(coordinator: Coordinator, client: ClientId) -> Event:
    """Put a client's answer to the open step into the spool; return its event."""
    step, model = coordinator.run.state.step, coordinator.run.model
    assert step is not None and model is not None
    size = model.manifest.num_masked if model.values is None else model.values.size
    values = Stream(0, "answer", client, step.round_number).uniform(size).astype("<f4")
    digest = sha256(values.tobytes()).digest()
    coordinator.spool.part(step.number, client, digest).append(values.tobytes())
    part = coordinator.spool.part(step.number, client, digest)
    coordinator.spool.keep(part, part.values)
    report = {
        "training_loss": 1.0,
        "evaluation": {"correct": 1, "total": 2, "loss_sum": 1.0},
        "personal": {"correct": 1, "total": 2, "loss_sum": 1.0},
    }
    return events.UploadReceived(step.number, client, digest.hex(), float(values.max()), report)


async def step_over(coordinator: Coordinator, number: int) -> None:
    """Wait until a step is committed."""
    while coordinator.run.state.step is not None and coordinator.run.state.step.number == number:
        await coordinator.run.tasks_changed().wait()


async def answer_all(coordinator: Coordinator) -> None:
    """Let both clients answer the open step; wait until it is committed."""
    step = coordinator.run.state.step
    assert step is not None
    for client in sorted(step.pending):
        assert await coordinator.run.post(spooled(coordinator, client)) is Reply.ACCEPTED
    await step_over(coordinator, step.number)


def write_final(coordinator: Coordinator) -> None:
    (coordinator.store.root / "final").write_text(coordinator.run.state.base_digest)


def open_coordinator(
    folder: Path,
    settings: RunSettings = SETTINGS,
    write_model: WriteModel = write_final,
    clock: Clock = lambda: 0.0,
    *,
    keep_uploads: bool = False,
) -> Coordinator:
    directory, ledger = StateDirectory(folder), Ledger()
    journal = Journal(directory.journal)
    state, newest = open_run(journal, settings, ledger)
    store = Store(folder, settings.seed)
    spool = Spool(directory.spool, directory.accepted if keep_uploads else None)
    opened = OpenedRun(directory, state, newest, journal, store, spool, ledger)
    coordinator = build_coordinator(opened, write_model, folder, clock)
    if manifest := load_manifest(state, store):
        coordinator.run.take_up(manifest, lambda: load_models(state, manifest, store))
    return coordinator


def conduct(
    folder: Path,
    script: Script,
    settings: RunSettings = SETTINGS,
    write_model: WriteModel = write_final,
    clock: Clock = lambda: 0.0,
    *,
    keep_uploads: bool = False,
) -> None:
    """Run a script and a coordinator concurrently; a failure of either fails the test."""

    async def both() -> None:
        coordinator = open_coordinator(
            folder, settings, write_model, clock, keep_uploads=keep_uploads
        )
        serving = asyncio.ensure_future(coordinator.run.serve())
        scripted = asyncio.ensure_future(_script(coordinator))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.wait({serving, scripted}, return_when=asyncio.FIRST_COMPLETED)
            for job in (serving, scripted):
                if job.done():
                    job.result()
        finally:
            for job in (serving, scripted):
                job.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await job

    async def _script(coordinator: Coordinator) -> None:
        await coordinator.run.post(events.Signal.RECOVERED)
        await coordinator.run.current_model()
        await script(coordinator)

    asyncio.run(both())
