"""A run_loop with real files and threads, for tests that post to it."""

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
from ssfl.server.loop.presence import PresenceTable
from ssfl.server.loop.run_loop import RunLoop
from ssfl.server.recovery.recover import load_manifest, load_models, open_run
from ssfl.server.rpc.call_context import CallContext
from ssfl.server.rpc.session_numbers import KEY_BYTES, SessionNumbers
from ssfl.server.run import events
from ssfl.server.run.events import Event, Reply
from ssfl.server.storage.journal import Journal
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.spool import Spool
from ssfl.v1 import coordinator_pb2 as pb

SETTINGS = RunSettings(clients=2, rounds=2, sparsity="0.5", seed=5)
DEADLINE_S = 30.0  # for what must happen; nothing waits so long unless it is broken

C1, C2 = ClientId("c1"), ClientId("c2")
NUMBERS = SessionNumbers(bytes(KEY_BYTES))

Script = Callable[[RunLoop], Awaitable[None]]
WriteModel = Callable[[RunLoop], None]


def context_of(run_loop: RunLoop, sessions: PresenceTable | None = None) -> CallContext:
    """Return what calls to a run_loop share."""
    return CallContext(run_loop, sessions or PresenceTable(), NUMBERS)


def caller_of(run_loop: RunLoop, client: ClientId) -> pb.Caller:
    """Return a member as it names itself in its calls."""
    state = run_loop.state
    number = NUMBERS.number(state.run_id, client, state.members[client].session)
    return pb.Caller(run_id=state.run_id, client_id=client, session=number)


async def begin(run_loop: RunLoop, manifest: Manifest) -> None:
    """Let both clients join and the first describe the model."""
    digest = manifest.digest.hex()
    for client in (C1, C2):
        await run_loop.post(events.Joined(client, "t", 10, digest, "cpu"))
    initial = initial_vector(manifest, SETTINGS.seed)
    run_loop.store.save_initial(manifest, initial)
    model = strategy_for(SETTINGS).begin(manifest, initial)
    described = events.Initialized(C1, digest, model.initial_digest.hex(), 0, "", 0, "")
    await run_loop.post(described, model)


def spooled(run_loop: RunLoop, client: ClientId) -> Event:
    """Put a client's answer to the open step into the spool; return the event that tells of it."""
    step, model = run_loop.state.step, run_loop.model
    assert step is not None and model is not None
    size = model.manifest.num_masked if model.values is None else model.values.size
    values = Stream(0, "answer", client, step.round_number).uniform(size).astype("<f4")
    digest = sha256(values.tobytes()).digest()
    run_loop.spool.part(step.number, client, digest).append(values.tobytes())
    part = run_loop.spool.part(step.number, client, digest)
    run_loop.spool.keep(part, part.values)
    report = {
        "training_loss": 1.0,
        "evaluation": {"correct": 1, "total": 2, "loss_sum": 1.0},
        "personal": {"correct": 1, "total": 2, "loss_sum": 1.0},
    }
    return events.UploadReceived(step.number, client, digest.hex(), float(values.max()), report)


async def step_over(run_loop: RunLoop, number: int) -> None:
    """Wait until a step is committed."""
    while run_loop.state.step is not None and run_loop.state.step.number == number:
        await run_loop.tasks_changed().wait()


async def answer_all(run_loop: RunLoop) -> None:
    """Let both clients answer the open step; wait until it is committed."""
    step = run_loop.state.step
    assert step is not None
    for client in sorted(step.pending):
        assert await run_loop.post(spooled(run_loop, client)) is Reply.ACCEPTED
    await step_over(run_loop, step.number)


def write_final(run_loop: RunLoop) -> None:
    (run_loop.store.root / "final").write_text(run_loop.state.base_digest)


def open_run_loop(
    folder: Path, settings: RunSettings = SETTINGS, write_model: WriteModel = write_final
) -> RunLoop:
    journal, ledger = Journal(folder / "journal"), Ledger()
    state, newest = open_run(journal, settings, ledger)
    store = Store(folder, settings.seed)
    run_loop = RunLoop(
        state, None, journal, store, Spool(folder / "spool"), newest, ledger,
        lambda: 0.0, write_model,
    )  # fmt: skip
    if manifest := load_manifest(state, store):
        run_loop.take_up(manifest, lambda: load_models(state, manifest, store))
    return run_loop


def conduct(
    folder: Path,
    script: Script,
    settings: RunSettings = SETTINGS,
    write_model: WriteModel = write_final,
) -> None:
    """Run a script beside a run_loop; a failure of either fails the test."""

    async def both() -> None:
        run_loop = open_run_loop(folder, settings, write_model)
        serving = asyncio.ensure_future(run_loop.serve())
        scripted = asyncio.ensure_future(_script(run_loop))
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

    async def _script(run_loop: RunLoop) -> None:
        await run_loop.post(events.Recovered())
        await run_loop.current_model()
        await script(run_loop)

    asyncio.run(both())
