"""The admin service over a real connection, asked by the operator's own commands."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc.aio
import numpy as np
import pytest

from server.conducting import SETTINGS, conduct
from server.steps import C1, C2, Steps, announced
from ssfl.codec import values_only
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import Work
from ssfl.program.exits import ExitCode
from ssfl.server import events
from ssfl.server.admin import AdminService
from ssfl.server.conductor import Conductor
from ssfl.server.interceptors import StatusInterceptor
from ssfl.server.sessions import Sessions
from ssfl.tools import main as tools
from ssfl.v1 import admin_pb2_grpc, transfer_pb2

Ask = Callable[..., Awaitable[int]]


@asynccontextmanager
async def operator(conductor: Conductor) -> AsyncIterator[Ask]:
    """Serve the admin port; yield a function that runs `ssfl refresh-mask` against it."""
    server = grpc.aio.server(interceptors=[StatusInterceptor(conductor.refusals)])
    service = AdminService(conductor, Sessions(), "out")
    admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield lambda *flags: asyncio.to_thread(
            tools.main, ["refresh-mask", "--admin", f"127.0.0.1:{port}", *flags]
        )
    finally:
        await server.stop(0)


async def trained(steps: Steps) -> None:
    """Let both clients train the open round."""
    data = bytes(values_only.encode(steps.base))
    for client in (C1, C2):
        await steps.update(announced(data, transfer_pb2.ENCODING_VALUES_ONLY), data, client)


async def scored_anew(steps: Steps) -> None:
    """Let both clients score the whole model, the earlier weights the higher."""
    falling = np.arange(steps.manifest.num_masked, 0, -1).astype(np.float32)
    data = bytes(values_only.encode(falling))
    for client in (C1, C2):
        await steps.scores(announced(data, transfer_pb2.ENCODING_DENSE), data, client)


def test_a_mask_is_renewed_when_the_operator_asks(
    tmp_path: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(conductor: Conductor) -> None:
        steps = await Steps(conductor, manifest).training()
        async with operator(conductor) as ask:
            assert await ask() == ExitCode.DONE
            said = "mask 1 will be renewed before the next round; 0 are done\n"
            assert capsys.readouterr().out == said
            assert await ask("--json") == ExitCode.DONE, "asking twice is harmless"
            told = json.loads(capsys.readouterr().out)
            assert told == {"mask_epoch": 1, "rounds_done": 0}
            before = conductor.model
            assert before is not None and before.mask is not None
            await trained(steps)
            await steps.reaches(Work.SCORE, 1)
            assert steps.step.reason == "asked for by the operator"
            await scored_anew(steps)
            await steps.reaches(Work.TRAIN, 1)
            after = conductor.model
            assert after is not None and after.mask is not None
            assert (after.mask_epoch, conductor.state.mask_epoch) == (2, 2)
            assert after.mask.bools().tolist() == [True] * 3 + [False] * 3
            newest = conductor.history.newest_mask
            assert (newest["epoch"], newest["rounds_done"]) == (2, 1)
            assert newest["renewed"]["reason"] == "asked for by the operator"

    conduct(tmp_path, script)


REFUSALS: dict[str, tuple[RunSettings, str]] = {
    "before a mask": (SETTINGS, "no mask has been agreed yet: wait for the first one"),
    "fedavg": (
        replace(SETTINGS, strategy="fedavg"),
        "strategy fedavg keeps every weight: there is no mask to renew",
    ),
    "own masks": (
        replace(SETTINGS, criterion="client-random"),
        "every client has a mask of its own, for good",
    ),
    "warm-up": (
        replace(SETTINGS, warmup_rounds=1, rounds=3),
        "no mask has been agreed yet: wait for the first one",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_mask_that_cannot_be_renewed_is_refused_with_the_reason(
    tmp_path: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    settings, sentence = REFUSALS[case]
    works = {"before a mask": Work.SCORE}

    async def script(conductor: Conductor) -> None:
        steps = Steps(conductor, manifest)
        async with operator(conductor) as ask:
            assert await ask() == ExitCode.REFUSED, "before anyone has joined, too"
            assert sentence in capsys.readouterr().err
            await steps.begun()
            await steps.reaches(works.get(case, Work.TRAIN))
            assert await ask() == ExitCode.REFUSED
            assert f"the coordinator refused: {sentence}" in capsys.readouterr().err

    conduct(tmp_path, script, settings)


def test_in_the_last_round_and_after_the_run_it_is_too_late(
    tmp_path: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(conductor: Conductor) -> None:
        await Steps(conductor, manifest).training()
        async with operator(conductor) as ask:
            assert await ask() == ExitCode.REFUSED
            assert "the last round has begun or is done" in capsys.readouterr().err
            await conductor.post(events.StopAsked())
            assert conductor.state.finished
            assert await ask() == ExitCode.REFUSED
            assert "over" in capsys.readouterr().err

    conduct(tmp_path, script, replace(SETTINGS, rounds=1))
