"""The Admin service: status, history, start, pause, resume, refresh, remove, stop."""

import asyncio
import time
from typing import Any

from ssfl.server.accounting.memory import peak_memory_bytes
from ssfl.server.errors import IsPaused, NoMask, RunOver, TooFewClients
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.report.outputs import history_document, run_folder
from ssfl.server.rpc import request_checks
from ssfl.server.run import events
from ssfl.server.run.events import Reply
from ssfl.server.run.quorum import final_model_delivered
from ssfl.server.run.refresh import no_round_left
from ssfl.server.run.state import RunState
from ssfl.server.run.waiting import client_state, seconds_left
from ssfl.strategies.contract import ClientId
from ssfl.strategies.registry import strategy_for
from ssfl.v1 import admin_pb2 as pb
from ssfl.v1 import admin_pb2_grpc


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """The service for operators of the federation."""

    def __init__(self, coordinator: Coordinator, out_dir: str) -> None:
        self._parts = coordinator
        self._run = coordinator.run
        self._out_dir = out_dir

    async def GetStatus(self, _request: pb.GetStatusRequest, _context: Any) -> pb.GetStatusResponse:
        run, history = self._run, self._parts.history
        state, manifest = run.state, run.manifest
        return pb.GetStatusResponse(
            run_id=state.run_id,
            phase=state.phase.value,
            waiting_for=run.waiting_for(),
            rounds_done=state.rounds_done,
            rounds_all=state.settings.rounds,
            mask_epoch=state.mask_epoch,
            num_kept=state.num_kept,
            num_masked=manifest.num_masked if manifest else 0,
            num_values=manifest.size if manifest else 0,
            clients=[self._client(client) for client in sorted(state.members)],
            accuracy=history.newest.get("pooled"),
            loss=history.newest.get("loss"),
            metrics=history.newest.get("metrics"),
            seconds_left=seconds_left(state, history.seconds_per_round),
            ledger=[pb.LedgerEntry(**row) for row in self._parts.ledger.rows()],
            peak_memory_bytes=peak_memory_bytes(),
            model_digest=bytes.fromhex(state.base_digest) if state.finished else b"",
            out_dir=run_folder(self._out_dir, state.run_id),
            delivered=run.model_written.is_set() and final_model_delivered(run.state),
            stall=self._stall(),
            refusals=[pb.Refusals(**row) for row in self._parts.refusals.rows()],
            paused=state.paused,
            refresh_asked=state.refresh_asked and not state.finished,
        )

    async def GetHistory(
        self, _request: pb.GetHistoryRequest, _context: Any
    ) -> pb.GetHistoryResponse:
        await self._run.current_model()
        document = await asyncio.to_thread(history_document(self._parts))
        return pb.GetHistoryResponse(history_json=document.decode())

    async def StartRun(self, _request: pb.StartRunRequest, _context: Any) -> pb.StartRunResponse:
        self._check_not_over()
        was_started = bool(self._run.state.founders)
        reply = await self._run.post(events.Signal.START)
        state = self._run.state
        if reply is Reply.PAUSED:
            then = "continues it" if state.founders else "it, then start it"
            raise IsPaused(f"run {state.run_id} is paused: `ssfl resume` {then}")
        if reply is Reply.TOO_FEW_CLIENTS:
            settings = state.settings
            need = f"at least {settings.min_clients} are needed (--min-clients)"
            if settings.reproducible:
                need = f"a reproducible run needs all {settings.clients} (--clients)"
            raise TooFewClients(f"{len(state.ready)} clients have joined, {need}")
        return pb.StartRunResponse(num_clients=len(state.founders), was_started=was_started)

    async def PauseRun(self, _request: pb.PauseRunRequest, _context: Any) -> pb.PauseRunResponse:
        self._check_not_over()
        was_paused = self._run.state.paused
        await self._run.post(events.PauseAsked(time.time()))
        self._check_not_over()  # it may have ended before the pause took effect
        rounds_done = self._run.state.rounds_done
        return pb.PauseRunResponse(was_paused=was_paused, rounds_done=rounds_done)

    async def ResumeRun(self, _request: pb.ResumeRunRequest, _context: Any) -> pb.ResumeRunResponse:
        self._check_not_over()
        was_paused = self._run.state.paused
        await self._run.post(events.Signal.RESUME)
        return pb.ResumeRunResponse(was_paused=was_paused)

    async def StopRun(self, _request: pb.StopRunRequest, _context: Any) -> pb.StopRunResponse:
        self._check_not_over()
        await self._run.post(events.Signal.STOP)
        return pb.StopRunResponse()

    async def RefreshMask(
        self, _request: pb.RefreshMaskRequest, _context: Any
    ) -> pb.RefreshMaskResponse:
        self._check_not_over()
        state = self._run.state
        if await self._run.post(events.Signal.REFRESH) is Reply.NO_MASK:
            raise NoMask(why_no_mask(state))
        return pb.RefreshMaskResponse(mask_epoch=state.mask_epoch, rounds_done=state.rounds_done)

    async def RemoveClient(
        self, request: pb.RemoveClientRequest, _context: Any
    ) -> pb.RemoveClientResponse:
        client = ClientId(request.client_id)
        request_checks.check_client_id(client)
        before = self._run.state
        await self._run.post(events.RemoveAsked(client, request.readmit))
        return pb.RemoveClientResponse(
            was_member=client in before.members, was_removed=client in before.removed
        )

    def _stall(self) -> pb.Stall | None:
        state, now_s = self._run.state, self._parts.clock()
        if state.stall is None:
            return None
        return pb.Stall(
            reason=state.stall.reason,
            missing=[self._client(client) for client in state.stall.missing],
            unblock=state.stall.unblock,
            seconds=now_s - state.stall.since_s,
        )

    def _check_not_over(self) -> None:
        state = self._run.state
        if state.finished:
            raise RunOver(f"run {state.run_id} is over: {state.phase.value}")

    def _client(self, client: ClientId) -> pb.ClientStatus:
        state, now_s = self._run.state, self._parts.clock()
        presence = self._parts.presence.get(client, now_s)
        return pb.ClientStatus(
            client_id=client,
            num_samples=state.members[client].num_samples,
            state=client_state(state, client),
            last_seen_s=self._parts.presence.silent_s(client, now_s),
            steps_done=presence.steps_done,
            steps_all=presence.steps_all,
        )


def why_no_mask(state: RunState) -> str:
    """Return the reason why there is no mask to refresh."""
    if why := strategy_for(state.settings).why_fixed:
        return f"{why}: there is no mask to refresh"
    if no_round_left(state):
        return "the last round has begun or is done: no round would use a new mask"
    return "no mask has been agreed yet: wait for the first one, then ask again"
