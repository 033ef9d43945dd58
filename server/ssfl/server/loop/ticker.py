"""The periodic tick, for deadlines and the start countdown.

The ticker also reports lost clients and suspensions of this process, checks that this process still
owns the run, and logs what the run waits for.
"""

import asyncio
import logging

from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.run import events
from ssfl.server.run.state import Phase, RunState, initializer

log = logging.getLogger("ssfl.coordinator")

TICK_S = 0.5
CHECK_OWNER_EVERY_S = 10.0  # interval of the check that this process still owns the run
MAX_TICK_GAP_S = 5.0  # if the sleep of TICK_S takes longer, this process was suspended
LOG_WAITING_EVERY_S = 10.0  # while clients gather; three times as long in a started run
LOG_STALL_EVERY_S = 60.0


async def tick(coordinator: Coordinator) -> None:
    """Post ticks to the run until cancelled."""
    run, presence, clock = coordinator.run, coordinator.presence, coordinator.clock
    waiting_log, owner_checked_s = _WaitingLog(coordinator), clock()
    description = _DescriptionWait(coordinator)
    while True:
        before_s = clock()
        await asyncio.sleep(TICK_S)
        now_s = clock()
        gap_s = now_s - before_s
        if gap_s > MAX_TICK_GAP_S:
            log.warning("this process was suspended", extra={"seconds": round(gap_s, 1)})
            presence.excuse(gap_s, now_s)
            description.excuse(gap_s)
            await run.post(events.ProcessSuspended(gap_s))
        if now_s - owner_checked_s >= CHECK_OWNER_EVERY_S:
            owner_checked_s = now_s
            await run.check_ours()
        await report_lost_and_returned(coordinator)
        await description.update(now_s)
        await run.post(events.Signal.TICK)
        waiting_log.update(now_s)


async def report_lost_and_returned(coordinator: Coordinator) -> None:
    """Post an event for each client that was lost or has returned since the last call."""
    run, presence, now_s = coordinator.run, coordinator.presence, coordinator.clock()
    state = run.state
    for client, member in state.members.items():
        presence.get(client, now_s)  # a client from before a restart counts as seen now
        alive = presence.alive(client, now_s)
        if client in state.lost and alive:
            await run.post(events.Returned(client))
        done = member.left or member.has_final_model or client in state.removed
        if not done and not alive and client not in state.lost:
            silent_s = round(presence.silent_s(client, now_s))
            log.warning("client lost", extra={"client": client, "silent_s": silent_s})
            coordinator.counters.lost += 1
            await run.post(events.Lost(client))


class _DescriptionWait:
    """Passes over a client that was asked to describe the model and does not.

    It has `no_progress_s` from the moment it is asked, or from the end of its last attempt. All its
    attempts together have `no_progress_s` and the time that a description of this size may take.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._run = coordinator.run
        self._presence = coordinator.presence
        self._asked = ""
        self._asked_s = self._since_s = 0.0

    def excuse(self, seconds: float) -> None:
        """Do not count `seconds` in which this process was suspended."""
        self._asked_s += seconds
        self._since_s += seconds

    async def update(self, now_s: float) -> None:
        """Post an event if the time of the client that is asked is over."""
        state = self._run.state
        asked = None if state.manifest_digest or state.finished else initializer(state)
        if asked is None:
            self._asked = ""
            return
        presence = self._presence.get(asked.client, now_s)
        if asked.client != self._asked:
            self._asked, self._asked_s, self._since_s = asked.client, now_s, now_s
        elif presence.descriptions:
            self._since_s = now_s
        limit_s = state.settings.no_progress_s
        is_slow = now_s - self._asked_s >= limit_s + presence.description_s
        if is_slow or now_s - self._since_s >= limit_s:
            self._asked_s = self._since_s = now_s
            await self._run.post(events.DescriptionOverdue(asked.client))
            after = initializer(self._run.state)
            if after and after.client != asked.client:
                extra = {"client": asked.client, "asked_now": after.client}
                log.warning("client does not describe the model: another is asked", extra=extra)


class _WaitingLog:
    """Logs what the run waits for, at a limited rate and only if it has changed.

    A stall is logged at once and repeated every LOG_STALL_EVERY_S.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._run = coordinator.run
        self._presence = coordinator.presence
        self._logged, self._logged_s = "", -LOG_WAITING_EVERY_S
        self._stalled = False

    def update(self, now_s: float) -> None:
        state, waiting = self._run.state, self._run.waiting_for()
        if state.stall:
            if not self._stalled or now_s - self._logged_s >= LOG_STALL_EVERY_S:
                self._log_stall(state, now_s)
            return
        if self._stalled:
            self._stalled = False
            if not state.paused:
                log.info("the run continues", extra={"phase": state.phase.value})
        gathering = state.phase is Phase.GATHERING
        interval_s = LOG_WAITING_EVERY_S if gathering else 3 * LOG_WAITING_EVERY_S
        if waiting and waiting != self._logged and now_s - self._logged_s >= interval_s:
            log.info("waiting for %s", waiting)
            self._logged, self._logged_s = waiting, now_s

    def _log_stall(self, state: RunState, now_s: float) -> None:
        assert state.stall is not None
        missing = ", ".join(
            f"{client} (last seen {self._presence.silent_s(client, now_s):.0f} s ago)"
            for client in state.stall.missing[:10]
        )
        log.warning(
            "WAITING for %s",
            self._run.waiting_for(),
            extra={
                "missing": missing or "no known client",
                "for_s": round(now_s - state.stall.since_s),
            },
        )
        self._stalled, self._logged_s = True, now_s
