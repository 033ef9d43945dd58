"""A conductor with real files and threads, for tests that post to it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import strategy_for
from ssfl.method.strategies.contract import ClientId
from ssfl.server import events
from ssfl.server.conductor import Conductor
from ssfl.server.journal import Journal
from ssfl.server.ledger import Ledger
from ssfl.server.recover import load_manifest, load_models, open_run
from ssfl.server.spool import Spool
from ssfl.server.store import Store

SETTINGS = RunSettings(clients=2, rounds=2, sparsity="0.5", seed=5)
DEADLINE_S = 30.0  # for what must happen; nothing waits so long unless it is broken

C1, C2 = ClientId("c1"), ClientId("c2")

Script = Callable[[Conductor], Awaitable[None]]
WriteModel = Callable[[Conductor], None]


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
