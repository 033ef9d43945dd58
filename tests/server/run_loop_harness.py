"""A conductor with real files and threads, for tests that post to it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import strategy_for
from ssfl.method.strategies.contract import ClientId
from ssfl.method.streams import Stream
from ssfl.server.accounting.ledger import Ledger
from ssfl.server.loop.presence import Sessions
from ssfl.server.loop.run_loop import Conductor
from ssfl.server.recovery.recover import load_manifest, load_models, open_run
from ssfl.server.rpc.call_context import Desk
from ssfl.server.rpc.session_numbers import KEY_BYTES, SessionNumbers
from ssfl.server.run import events
from ssfl.server.run.events import Event, Reply
from ssfl.server.storage.journal import Journal
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.spool import Spool, append
from ssfl.v1 import coordinator_pb2 as pb

SETTINGS = RunSettings(clients=2, rounds=2, sparsity="0.5", seed=5)
DEADLINE_S = 30.0  # for what must happen; nothing waits so long unless it is broken

C1, C2 = ClientId("c1"), ClientId("c2")
NUMBERS = SessionNumbers(bytes(KEY_BYTES))

Script = Callable[[Conductor], Awaitable[None]]
WriteModel = Callable[[Conductor], None]


def desk_of(conductor: Conductor, sessions: Sessions | None = None) -> Desk:
    """Return what calls to a conductor share."""
    return Desk(conductor, sessions or Sessions(), NUMBERS)


def caller_of(conductor: Conductor, client: ClientId) -> pb.Caller:
    """Return a member as it names itself in its calls."""
    state = conductor.state
    number = NUMBERS.number(state.run_id, client, state.members[client].session)
    return pb.Caller(run_id=state.run_id, client_id=client, session=number)


async def begin(conductor: Conductor, manifest: Manifest) -> None:
    """Let both clients join and the first describe the model."""
    digest = manifest.digest.hex()
    for client in (C1, C2):
        await conductor.post(events.Joined(client, "t", 10, digest, "cpu"))
    initial = initial_vector(manifest, SETTINGS.seed)
    conductor.store.save_initial(manifest, initial)
    model = strategy_for(SETTINGS).begin(manifest, initial)
    described = events.Initialized(C1, digest, model.initial_digest.hex(), 0, "", 0, "")
    await conductor.post(described, model)


def spooled(conductor: Conductor, client: ClientId) -> Event:
    """Put a client's answer to the open step into the spool; return the event that tells of it."""
    step, model = conductor.state.step, conductor.model
    assert step is not None and model is not None
    size = model.manifest.num_masked if model.values is None else model.values.size
    values = Stream(0, "answer", client, step.round_number).uniform(size).astype("<f4")
    digest = sha256(values.tobytes()).digest()
    append(conductor.spool.part(step.number, client, digest), values.tobytes())
    part = conductor.spool.part(step.number, client, digest)
    conductor.spool.keep(part, part)
    report = {
        "training_loss": 1.0,
        "evaluation": {"correct": 1, "total": 2, "loss_sum": 1.0},
        "personal": {"correct": 1, "total": 2, "loss_sum": 1.0},
    }
    return events.UploadReceived(step.number, client, digest.hex(), float(values.max()), report)


async def step_over(conductor: Conductor, number: int) -> None:
    """Wait until a step is committed."""
    while conductor.state.step is not None and conductor.state.step.number == number:
        await conductor.news().wait()


async def answer_all(conductor: Conductor) -> None:
    """Let both clients answer the open step; wait until it is committed."""
    step = conductor.state.step
    assert step is not None
    for client in sorted(step.pending):
        assert await conductor.post(spooled(conductor, client)) is Reply.ACCEPTED
    await step_over(conductor, step.number)


def write_final(conductor: Conductor) -> None:
    (conductor.store.root / "final").write_text(conductor.state.base_digest)


def open_conductor(
    folder: Path, settings: RunSettings = SETTINGS, write_model: WriteModel = write_final
) -> Conductor:
    journal, ledger = Journal(folder / "journal"), Ledger()
    state, newest = open_run(journal, settings, ledger)
    store = Store(folder, settings.seed)
    conductor = Conductor(
        state, None, journal, store, Spool(folder / "spool"), newest, ledger,
        lambda: 0.0, write_model,
    )  # fmt: skip
    if manifest := load_manifest(state, store):
        conductor.take_up(manifest, lambda: load_models(state, manifest, store))
    return conductor


def conduct(
    folder: Path,
    script: Script,
    settings: RunSettings = SETTINGS,
    write_model: WriteModel = write_final,
) -> None:
    """Run a script beside a conductor; a failure of either fails the test."""

    async def both() -> None:
        conductor = open_conductor(folder, settings, write_model)
        serving = asyncio.ensure_future(conductor.serve())
        scripted = asyncio.ensure_future(_script(conductor))
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

    async def _script(conductor: Conductor) -> None:
        await conductor.post(events.Recovered())
        await conductor.current_model()
        await script(conductor)

    asyncio.run(both())
