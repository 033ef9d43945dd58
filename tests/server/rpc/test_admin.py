"""The admin service over a real connection, asked by the operator's own commands."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from server.run_loop_harness import SETTINGS, conduct
from server.step_harness import C1, C2, Steps, announced
from ssfl.codec import values_only
from ssfl.durable.failpoints import install_hook, trigger
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.rpc.admin import AdminService
from ssfl.server.rpc.interceptors import StatusInterceptor
from ssfl.server.run import events
from ssfl.server.storage import disk_full
from ssfl.strategies.contract import Work
from ssfl.tools import main as tools
from ssfl.tools.operate import admin_client
from ssfl.v1 import admin_pb2_grpc, transfer_pb2
from tools.check.check_fixtures import grpc_server

Ask = Callable[..., Awaitable[int]]


@asynccontextmanager
async def operator(
    coordinator: Coordinator, interceptors: Sequence[Any] | None = None
) -> AsyncIterator[Ask]:
    """Serve the admin port; yield a function that runs a command of `ssfl` against it."""
    if interceptors is None:
        interceptors = [StatusInterceptor(coordinator.refusals)]
    server = grpc.aio.server(interceptors=interceptors)
    service = AdminService(coordinator, "out")
    admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield lambda command, *flags: asyncio.to_thread(
            tools.main, [command, "--admin", f"127.0.0.1:{port}", *flags]
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


def test_the_operator_can_refresh_the_mask(
    tmp_path: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(coordinator: Coordinator) -> None:
        steps = await Steps(coordinator, manifest).training()
        async with operator(coordinator) as ask:
            assert await ask("refresh-mask") == ExitCode.DONE
            said = "mask 1 will be refreshed before the next round; 0 rounds are done\n"
            assert capsys.readouterr().out == said
            assert await ask("refresh-mask", "--json") == ExitCode.DONE, "asking twice is harmless"
            document = json.loads(capsys.readouterr().out)
            assert document == {"mask_epoch": 1, "rounds_done": 0}
            before = coordinator.run.model
            assert before is not None and before.mask is not None
            await trained(steps)
            await steps.reaches(Work.SCORE, 1)
            assert steps.step.reason == "asked for by the operator"
            await scored_anew(steps)
            await steps.reaches(Work.TRAIN, 1)
            after = coordinator.run.model
            assert after is not None and after.mask is not None
            assert (after.mask_epoch, coordinator.run.state.mask_epoch) == (2, 2)
            assert after.mask.bools().tolist() == [True] * 3 + [False] * 3
            newest = coordinator.history.newest_mask
            assert (newest["epoch"], newest["rounds_done"]) == (2, 1)
            assert newest["renewed"]["reason"] == "asked for by the operator"

    conduct(tmp_path, script)


REFUSALS: dict[str, tuple[RunSettings, str]] = {
    "before a mask": (SETTINGS, "no mask has been agreed yet: wait for the first one"),
    "fedavg": (
        replace(SETTINGS, strategy="fedavg"),
        "strategy fedavg keeps every weight: there is no mask to refresh",
    ),
    "own masks": (
        replace(SETTINGS, criterion="client-random"),
        "every client has a permanent mask of its own",
    ),
    "warm-up": (
        replace(SETTINGS, warmup_rounds=1, rounds=3),
        "no mask has been agreed yet: wait for the first one",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refresh_without_a_mask_is_refused_with_the_reason(
    tmp_path: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    settings, sentence = REFUSALS[case]
    works = {"before a mask": Work.SCORE}

    async def script(coordinator: Coordinator) -> None:
        steps = Steps(coordinator, manifest)
        async with operator(coordinator) as ask:
            assert await ask("refresh-mask") == ExitCode.REFUSED, "before anyone has joined, too"
            assert sentence in capsys.readouterr().err
            await steps.begun()
            await steps.reaches(works.get(case, Work.TRAIN))
            assert await ask("refresh-mask") == ExitCode.REFUSED
            assert f"the coordinator refused: {sentence}" in capsys.readouterr().err

    conduct(tmp_path, script, settings)


def test_in_the_last_round_and_after_the_run_it_is_too_late(
    tmp_path: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await Steps(coordinator, manifest).training()
        async with operator(coordinator) as ask:
            assert await ask("refresh-mask") == ExitCode.REFUSED
            assert "the last round has begun or is done" in capsys.readouterr().err
            await coordinator.run.post(events.Signal.STOP)
            assert coordinator.run.state.finished
            assert await ask("refresh-mask") == ExitCode.REFUSED
            assert "over" in capsys.readouterr().err

    conduct(tmp_path, script, replace(SETTINGS, rounds=1))


def test_a_pause_lasts_over_a_restart_and_until_an_operator_resumes(
    tmp_path: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    async def until_paused(coordinator: Coordinator) -> None:
        steps = await Steps(coordinator, manifest).training()
        async with operator(coordinator) as ask:
            assert await ask("pause") == ExitCode.DONE
            assert "then no step starts until `ssfl resume`; 0 rounds" in capsys.readouterr().out
            assert await ask("pause", "--json") == ExitCode.DONE, "asking twice is harmless"
            document = json.loads(capsys.readouterr().out)
            assert document == {"paused": True, "was_paused": True, "rounds_done": 0}
            await trained(steps)
            while coordinator.run.state.step:
                await asyncio.sleep(0.01)
            assert coordinator.run.state.rounds_done == 1
            assert await ask("status", "--json") == ExitCode.DONE
            document = json.loads(capsys.readouterr().out)
            assert (document["phase"], document["paused"]) == ("paused", True)
            assert "an operator: paused since 20" in document["waiting_for"]
            assert await ask("status") == ExitCode.DONE
            assert "waiting for an operator: paused since" in capsys.readouterr().out

    async def resumed(coordinator: Coordinator) -> None:
        assert (coordinator.run.state.phase, coordinator.run.state.rounds_done) == ("paused", 1)
        async with operator(coordinator) as ask:
            assert await ask("resume", "--json") == ExitCode.DONE
            document = json.loads(capsys.readouterr().out)
            assert document == {"paused": False, "was_paused": True}
            assert coordinator.run.state.step is not None
            assert await ask("resume") == ExitCode.DONE
            assert "was not paused" in capsys.readouterr().out
            assert await ask("pause") == ExitCode.DONE
            assert await ask("stop") == ExitCode.DONE
            capsys.readouterr()
            assert (coordinator.run.state.phase, coordinator.run.state.paused) == ("stopped", False)
            for command in ("pause", "resume"):
                assert await ask(command) == ExitCode.REFUSED
                assert "is over: stopped" in capsys.readouterr().err

    conduct(tmp_path, until_paused)
    conduct(tmp_path, resumed)


def test_a_paused_run_cannot_be_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def script(coordinator: Coordinator) -> None:
        async with operator(coordinator) as ask:
            assert await ask("pause") == ExitCode.DONE
            assert await ask("start") == ExitCode.REFUSED
            assert "is paused: `ssfl resume` it, then start it" in capsys.readouterr().err

    conduct(tmp_path, script)


def test_a_run_that_has_begun_is_not_started_again(
    tmp_path: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await Steps(coordinator, manifest).training()
        async with operator(coordinator) as ask:
            assert await ask("start", "--json") == ExitCode.DONE
            document = json.loads(capsys.readouterr().out)
            assert document == {"num_clients": 2, "was_started": True}
            assert await ask("start") == ExitCode.DONE
            assert "had already started with 2 clients" in capsys.readouterr().out
            assert await ask("pause") == ExitCode.DONE
            assert await ask("start") == ExitCode.REFUSED
            assert "is paused: `ssfl resume` continues it" in capsys.readouterr().err

    conduct(tmp_path, script)


def test_a_site_is_removed_and_readmitted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await coordinator.run.post(events.Joined(C1, "t", 10, "", "cpu"))
        async with operator(coordinator) as ask:
            for flags, said in (
                (["c1", "--readmit"], "c1 was not removed; the next client that joins under"),
                (["eve", "--readmit"], "eve was not removed: nothing to do (it had not joined"),
                (["eve"], "eve is removed and will be refused (it had not joined this run)"),
                (["eve"], "eve was already removed"),
                (["eve", "--readmit"], "eve may join again"),
            ):
                assert await ask("remove", *flags) == ExitCode.DONE
                assert said in capsys.readouterr().out
            assert await ask("remove", "eve", "--json") == ExitCode.DONE
            assert json.loads(capsys.readouterr().out) == {
                "site": "eve", "removed": True, "was_member": False, "was_removed": False,
            }  # fmt: skip
            assert await ask("remove", "a/b") == ExitCode.USAGE
            assert "'a/b' cannot be a client id" in capsys.readouterr().err

    conduct(tmp_path, script)


def test_status_as_json_has_numbers_and_hex(
    tmp_path: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await Steps(coordinator, manifest).training()
        async with operator(coordinator) as ask:
            assert await ask("refresh-mask") == ExitCode.DONE
            assert await ask("status") == ExitCode.DONE
            assert "the mask will be refreshed" in capsys.readouterr().out
            assert await ask("stop") == ExitCode.DONE
            capsys.readouterr()
            assert await ask("status", "--json") == ExitCode.DONE
            document = json.loads(capsys.readouterr().out)
            assert [one["num_samples"] for one in document["clients"]] == [10, 10]
            assert document["num_values"] == manifest.size
            assert document["model_digest"] == coordinator.run.state.base_digest
            assert (
                document["metrics"] == {} and "accuracy" not in document and "stall" not in document
            )
            assert document["refresh_asked"] is False, "it is over"

    conduct(tmp_path, script)


def test_a_command_reports_a_full_disk_and_takes_effect_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_client, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(disk_full, "LOOK_EVERY_S", 0.01)

    def hook(name: str) -> None:
        if name == "journal.append":
            trigger("full", name)

    async def script(coordinator: Coordinator) -> None:
        async with operator(coordinator) as ask:
            install_hook(hook)
            try:
                assert await ask("pause") == ExitCode.NOT_YET
            finally:
                install_hook(None)
            said = capsys.readouterr().err
            assert "the coordinator answers, but has not done it within 0.5 s" in said
            assert "(it waits for room on the disk of --state-dir, which has " in said
            while not coordinator.run.state.paused:
                await asyncio.sleep(0.01)

    conduct(tmp_path, script)


def test_a_command_to_another_port_reports_the_wrong_port(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with grpc_server() as address:
        assert tools.main(["status", "--admin", address]) == ExitCode.USAGE
    assert f"{address} is not an admin port; it may be the port for" in capsys.readouterr().err


def test_a_command_unknown_to_an_older_coordinator_reports_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdminService, "PauseRun", admin_pb2_grpc.AdminServiceServicer.PauseRun)

    async def script(coordinator: Coordinator) -> None:
        async with operator(coordinator, interceptors=()) as ask:
            assert await ask("pause") == ExitCode.REFUSED
            assert "has an earlier version" in capsys.readouterr().err

    conduct(tmp_path, script)


def test_the_clients_of_a_run_are_listed(
    tmp_path: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await Steps(coordinator, manifest).training()
        await coordinator.run.post(events.Lost(C2))
        async with operator(coordinator) as ask:
            assert await ask("clients", "--json") == ExitCode.DONE
            document = json.loads(capsys.readouterr().out)
            assert [(one["client_id"], one["state"]) for one in document["clients"]] == [
                ("c2", "lost"), ("c1", "working"),
            ]  # fmt: skip
            assert document["clients"][0]["missing"], "the run cannot continue without it"
            assert await ask("clients") == ExitCode.DONE
            shown = capsys.readouterr().out
            assert shown.index("c2") < shown.index("c1")
            assert "2 clients: 1 lost, 1 working" in shown

    conduct(tmp_path, script)
