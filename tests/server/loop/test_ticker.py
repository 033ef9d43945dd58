"""The ticker: lost clients, returned clients, and suspensions of the coordinator process."""

import asyncio
import logging
from pathlib import Path

import pytest

from server.run_loop_harness import C1, C2, begin, conduct
from ssfl.method.manifest import Manifest
from ssfl.server.loop import ticker as module
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.loop.presence import LOST_AFTER_S
from ssfl.server.loop.ticker import _DescriptionWait, _WaitingLog, report_lost_and_returned, tick
from ssfl.server.run import events
from ssfl.server.run.state import Phase


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def until(coordinator: Coordinator, phase: Phase) -> None:
    while coordinator.run.state.phase is not phase:
        await asyncio.sleep(0)


def test_a_silent_client_is_lost_until_it_is_heard_from_again(
    tmp_path: Path, manifest: Manifest
) -> None:
    clock = Clock()

    async def script(coordinator: Coordinator) -> None:
        presence = coordinator.presence
        await begin(coordinator, manifest)
        for client in (C1, C2):
            presence.heard(client, clock())
        clock.now_s += LOST_AFTER_S
        presence.heard(C2, clock())
        await report_lost_and_returned(coordinator)
        assert coordinator.run.state.lost == {C1}
        await until(coordinator, Phase.WAITING)
        presence.heard(C1, clock())
        await report_lost_and_returned(coordinator)
        assert coordinator.run.state.lost == frozenset()
        await until(coordinator, Phase.SCORE)

    conduct(tmp_path, script, clock=clock)


def test_no_client_is_lost_because_the_process_was_suspended(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.0)

    clock = Clock()

    async def script(coordinator: Coordinator) -> None:
        presence = coordinator.presence
        await begin(coordinator, manifest)
        for client in (C1, C2):
            presence.heard(client, clock())
        began_s = coordinator.run.state.step_began_s
        ticking = asyncio.ensure_future(tick(coordinator))
        await asyncio.sleep(0)
        clock.now_s += 10_000.0
        while coordinator.run.state.step_began_s == began_s:
            await asyncio.sleep(0)
        assert coordinator.run.state.step_began_s == began_s + 10_000.0
        await asyncio.sleep(0)
        assert not coordinator.run.state.lost
        ticking.cancel()

    conduct(tmp_path, script, clock=clock)


def test_a_stalled_run_logs_its_missing_clients_at_once(
    tmp_path: Path,
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.0)
    caplog.set_level(logging.INFO)

    clock = Clock()

    async def script(coordinator: Coordinator) -> None:
        presence = coordinator.presence
        await begin(coordinator, manifest)
        presence.heard(C1, clock())
        presence.heard(C2, clock())
        ticking = asyncio.ensure_future(tick(coordinator))
        for _ in range(10):
            clock.now_s += 4.0
            presence.heard(C1, clock())
            await asyncio.sleep(0.001)
        await until(coordinator, Phase.WAITING)
        while "WAITING" not in caplog.text:
            await asyncio.sleep(0)
        presence.heard(C2, clock())
        await until(coordinator, Phase.SCORE)
        while "the run continues" not in caplog.text:
            await asyncio.sleep(0)
        ticking.cancel()

    conduct(tmp_path, script, clock=clock)
    record = next(one for one in caplog.records if "WAITING" in one.getMessage())
    assert "score: 1 of at least 2 reports can come (missing: c2 (lost))" in record.getMessage()
    assert "c2 (last seen" in record.missing  # type: ignore[attr-defined]


def test_a_stalled_run_that_is_paused_does_not_continue(
    tmp_path: Path, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        await coordinator.run.post(events.Lost(C2))
        waiting_log = _WaitingLog(coordinator)
        waiting_log.update(1000.0)
        await coordinator.run.post(events.PauseAsked(1.7e9))
        assert coordinator.run.state.stall is None
        waiting_log.update(1100.0)
        await coordinator.run.post(events.Signal.RESUME)
        waiting_log.update(1200.0)

    conduct(tmp_path, script)
    said = [one.getMessage()[:7] for one in caplog.records if one.name == "ssfl.coordinator"]
    assert said == ["WAITING", "waiting", "WAITING"]
    assert "the run continues" not in caplog.text


def test_a_client_that_does_not_describe_the_model_is_passed_over(
    tmp_path: Path, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()

    async def script(coordinator: Coordinator) -> None:
        run, presence = coordinator.run, coordinator.presence
        limit_s, digest = run.state.settings.no_progress_s, manifest.digest.hex()
        wait = _DescriptionWait(coordinator)

        async def passed_over(after_s: float) -> tuple[str, ...]:
            clock.now_s += after_s
            await wait.update(clock())
            return run.state.passed_over

        for client in (C1, C2):
            await run.post(events.Joined(client, "t", 10, digest, "cpu"))
        assert await passed_over(0.0) == ()
        presence.get(C1, clock()).descriptions = 1
        presence.get(C1, clock()).description_s = 9 * limit_s
        assert await passed_over(2 * limit_s) == (), "its upload is under way"
        presence.get(C1, clock()).descriptions = 0
        assert await passed_over(limit_s - 1.0) == ()
        wait.excuse(5.0)  # this process was suspended
        assert await passed_over(5.0) == ()
        assert await passed_over(1.0) == (C1,)
        assert caplog.messages == ["client does not describe the model: another is asked"]
        assert await passed_over(0.0) == (C1,)
        assert await passed_over(limit_s) == (C1, C2), "the next client has its own time"
        await begin(coordinator, manifest)
        assert await passed_over(2 * limit_s) == (C1, C2), "the model is known"

    conduct(tmp_path, script, clock=clock)


def test_a_client_that_describes_the_model_too_slowly_is_passed_over(
    tmp_path: Path, manifest: Manifest
) -> None:
    """Repeated calls do not extend its time; a client that is asked again has all of it again."""
    clock = Clock()

    async def script(coordinator: Coordinator) -> None:
        run, presence = coordinator.run, coordinator.presence
        limit_s, digest = run.state.settings.no_progress_s, manifest.digest.hex()
        wait = _DescriptionWait(coordinator)

        async def passed_over(after_s: float) -> tuple[str, ...]:
            clock.now_s += after_s
            await wait.update(clock())
            return run.state.passed_over

        for client in (C1, C2):
            await run.post(events.Joined(client, "t", 10, digest, "cpu"))
        assert await passed_over(0.0) == ()
        slow = presence.get(C1, clock())
        slow.descriptions, slow.description_s = 1, 100.0
        assert await passed_over(limit_s) == ()
        slow.descriptions = 0
        assert await passed_over(limit_s / 2) == ()
        slow.descriptions = 1
        assert await passed_over(100.0 - limit_s / 2 - 1.0) == ()
        wait.excuse(5.0)  # this process was suspended
        assert await passed_over(5.0) == ()
        assert await passed_over(1.0) == (C1,), "its call is still open"
        assert await passed_over(0.0) == (C1,)
        assert await passed_over(limit_s) == (C1, C2)
        assert await passed_over(0.0) == (C1, C2)
        assert await passed_over(limit_s) == (C1, C2), "its call is still open, and has its time"
        assert await passed_over(100.0) == (C2, C1)

    conduct(tmp_path, script, clock=clock)
