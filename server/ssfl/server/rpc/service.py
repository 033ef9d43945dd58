"""RPC <-> events: check, post to the run, answer. Decisions are made in run/."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from ssfl.durable.failpoints import failpoint
from ssfl.program.version import ssfl_version
from ssfl.server.accounting.ledger import Direction, encoding_word
from ssfl.server.broadcast.payloads import NotBuilt
from ssfl.server.broadcast.tasks import Ready, settings_to_message, task_for
from ssfl.server.errors import InvalidRequest
from ssfl.server.history.run_log import SampleCounts
from ssfl.server.loop.limits import Joins, Limits
from ssfl.server.rpc import request_checks
from ssfl.server.rpc.call_context import CallContext
from ssfl.server.rpc.preflight import Preflight
from ssfl.server.rpc.upload_service import UploadService
from ssfl.server.run import events
from ssfl.server.run.events import Reply
from ssfl.server.run.state import Member
from ssfl.server.uploads.encoding_choice import reader_of
from ssfl.server.uploads.receive import UploadReceiver
from ssfl.server.uploads.score_and_update import evaluation_of
from ssfl.server.uploads.slots import until_beat
from ssfl.server.uploads.step_upload import open_step, outcome_of
from ssfl.strategies.contract import ClientId, Work
from ssfl.strategies.registry import identity
from ssfl.v1 import coordinator_pb2 as pb

log = logging.getLogger("ssfl.run")

HEARTBEAT_S = 15.0


class CoordinatorService(UploadService):
    """The service that clients call."""

    def __init__(
        self,
        context: CallContext,
        uploads: UploadReceiver,
        reference_coding: str = "auto",
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits or Limits()
        super().__init__(context, uploads, self._limits)
        self._counters = context.coordinator.counters
        self._clock = context.clock
        self._joins = Joins(context.clock)
        self._joining: set[ClientId] = set()  # not in the journal yet
        self._samples = SampleCounts()
        self._reference_coding = reference_coding
        self._preflight = Preflight(context, self._limits, uploads.num_slots, reference_coding)
        self._building = asyncio.Lock()

    async def Join(self, request: pb.JoinRequest, context: Any) -> pb.JoinResponse:
        run = self._run
        before = run.state.members.get(ClientId(request.client_id))
        if before:  # after our restart it counts as alive until it has had time to reconnect
            self._context.presence.get(before.client, self._clock())
        alive = self._context.presence.alive(ClientId(request.client_id), self._clock())
        proven = self._context.names_proven
        client = request_checks.check_join(request, run.state, alive=alive, name_proven=proven)
        self._limits.check_room(client, run.state, self._joining)
        num_classes = len(request.class_counts) + len(request.labels)
        self._joins.check(client, run.state, num_classes)
        knows_run = bool(request.manifest_digest)
        request_checks.check_strategy(request.strategy, run.state.settings, knows_run=knows_run)
        request_checks.check_manifest(request, run.state, run.manifest)
        event = events.Joined(
            client,
            request.token.hex(),
            request.num_samples,
            request.manifest_digest.hex(),
            request.fingerprint,
            {str(label): count for label, count in sorted(request.class_counts.items())},
            tuple(sorted(set(request.encodings))),
            tuple(sorted({*request.labels, *request.class_counts})),
            name_proven=proven,
        )
        self._joining.add(client)
        try:
            if await run.post(event) is Reply.CONFLICT:
                raise request_checks.taken(client)
        finally:
            self._joining.discard(client)
        session = self._session(client, event.token)
        self._samples.joined(client, before, run.state)
        failpoint("ack.join")
        self._context.heard(context.peer(), client)
        state, manifest = run.state, run.manifest
        if request.manifest_digest:
            reader = reader_of(state.members[client], context.peer(), self._reference_coding)
            values = reader.encoding_name(state.settings)
            log.info("client ready", extra={"client": client, "values": values})
        response = pb.JoinResponse(
            run_id=state.run_id,
            session=session,
            settings=settings_to_message(state.settings),
            manifest=manifest.json if manifest else b"",
            protocol_version=request_checks.PROTOCOL_VERSION,
            software=ssfl_version(),
            strategy=identity(state.settings),
        )
        self._context.count_unary(request, response, client)
        return response

    async def NextTask(
        self, request: pb.NextTaskRequest, context: Any
    ) -> AsyncIterator[pb.NextTaskResponse | bytes]:
        spoken = self._context.client_or_blank(request.caller)
        self._context.ledger.count("control", Direction.UP, request.ByteSize(), client=spoken)
        member = await self._context.member(request.caller, context.peer())
        run = self._run
        with self._context.open_call(member):
            changed = run.tasks_changed()
            heartbeat_s = min(HEARTBEAT_S, run.state.settings.no_progress_s / 4)
            while (ready := await self._task(member, request, context.peer())) is None:
                while True:  # heartbeats: the task is looked for again only after a change
                    waiting = pb.NextTaskResponse(waiting=pb.Waiting(reason=run.waiting_for()))
                    yield self._context.count_sent(waiting, member.client)
                    with contextlib.suppress(TimeoutError):
                        # wait_for would start a task
                        async with asyncio.timeout(until_beat(heartbeat_s, self._clock())):
                            await changed.wait()
                    self._context.check(request.caller)
                    if changed.is_set():
                        break
                changed = run.tasks_changed()
            async for response in self._send(ready, request, member):
                yield response

    async def ReportEvaluation(
        self, request: pb.ReportEvaluationRequest, context: Any
    ) -> pb.ReportEvaluationResponse:
        member = await self._context.member(request.caller, context.peer())
        others = {
            name: getattr(request, name)
            for name in ("validation", "personal")
            if request.HasField(name)
        }
        evaluations = [request.evaluation, *others.values()]
        request_checks.check_report(request.work_s, evaluations=evaluations)
        ledger, client = self._context.ledger, member.client
        ledger.count("evaluation", Direction.UP, request.ByteSize(), client=client)
        reply = Reply.STEP_CLOSED
        work = Work.PERSONALIZE if "personal" in others else Work.EVALUATE
        if open_step(self._run.state, request.step, work, member):
            began_s, now_s = self._run.state.step_began_s, self._clock()
            report = {
                "work_s": request.work_s,
                "evaluation": evaluation_of(request.evaluation),
                **self._context.presence.task_times(client, request.step, began_s, now_s),
                **{name: evaluation_of(other) for name, other in others.items()},
            }
            event = events.UploadReceived(request.step, client, "", report=report)
            reply = await self._run.post(event)
        if reply is Reply.STEP_CLOSED:
            self._counters.late += 1
        failpoint("ack.evaluation")
        response = pb.ReportEvaluationResponse(outcome=outcome_of(reply))
        ledger.count("evaluation", Direction.DOWN, response.ByteSize(), client=client)
        return response

    async def Progress(self, request: pb.ProgressRequest, context: Any) -> pb.ProgressResponse:
        member = await self._context.member(request.caller, context.peer())
        request_checks.check_progress(request.steps_done, request.steps_all)
        presence = self._context.presence.heard(member.client, self._clock())
        presence.steps_done, presence.steps_all = request.steps_done, request.steps_all
        step = self._run.state.step
        over = step is None or step.closed is not None or step.number != request.step
        response = pb.ProgressResponse(step_closed=over)
        self._context.count_unary(request, response, member.client)
        return response

    async def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveResponse:
        member = await self._context.member(request.caller, context.peer(), may_have_left=True)
        if request.reason == pb.LEAVE_REASON_UNSPECIFIED:
            raise InvalidRequest("a reason to leave is missing")
        finished = request.reason == pb.LEAVE_REASON_FINISHED
        if not finished and not member.left:
            why = request.detail[: request_checks.MAX_TEXT]
            log.warning("client leaves: %s", why, extra={"client": member.client})
        if finished and not self._run.state.finished:
            raise InvalidRequest("the run is not finished")
        await self._context.count_connections()  # before its connection ends
        left = events.Left(member.client, finished, member.session)
        if await self._run.post(left) is Reply.CONFLICT:
            raise request_checks.session_ended(member)
        failpoint("ack.leave")
        response = pb.LeaveResponse()
        self._context.count_unary(request, response, member.client)
        return response

    def Check(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        return self._preflight.answer(requests, context.peer())

    def _session(self, client: ClientId, token: str) -> int:
        """Return the session number for a client that has just joined.

        Raise ClientIdTaken if another token has the name by now: that session is not this client's.
        """
        state = self._run.state
        member = state.members[client]
        if member.token != token:
            raise request_checks.taken(client)
        return self._context.numbers.number(state.run_id, client, member.session)

    async def _task(self, member: Member, request: pb.NextTaskRequest, peer: str) -> Ready | None:
        """Return the client's task after encoding its payloads; None if the client must wait."""
        run = self._run
        while True:
            state, model = run.state, run.model
            if not state.finished:
                request_checks.check_ready(state.members[member.client], state)
            if run.is_reading:
                return None
            work = state.step.work if state.step else Work.EVALUATE
            broadcast = None
            if model:
                broadcast = await self._context.broadcast(member.client, work, model)
                if run.model is not model or run.state is not state:
                    continue  # state or model changed during the await
            reader = reader_of(state.members[member.client], peer, self._reference_coding)
            try:
                slots = self.uploads.num_slots
                return task_for(state, broadcast, member.client, request, slots, reader)
            except NotBuilt as needed:
                assert broadcast is not None
                async with self._building:
                    if not broadcast.built(needed.form):
                        await asyncio.to_thread(broadcast.build, needed.form)

    async def _send(
        self, ready: Ready, request: pb.NextTaskRequest, member: Member
    ) -> AsyncIterator[pb.NextTaskResponse | bytes]:
        """Yield the serialized task, then its payloads from the requested offset."""
        table, ledger, clock = self._context.presence, self._context.ledger, self._clock
        task = pb.Task()
        task.CopyFrom(ready.task)
        total = sum(len(part.data) for part in ready.parts)
        if request.task_digest == task.task_digest and request.offset <= total:
            task.offset = request.offset
        presence = table.heard(member.client, clock())
        if presence.asked_step != task.step:
            presence.asked_step, presence.asked_s = task.step, clock()
            presence.steps_done = presence.steps_all = 0
        elif task.offset:
            self._counters.resumes[Direction.DOWN] += 1
        elif task.step:
            presence.asked_s = clock()  # from byte 0 again: the first attempt is not send time
            self._counters.retries += 1
        header = pb.NextTaskResponse(task=task)
        ledger.count(ready.phase, Direction.DOWN, header.ByteSize(), client=member.client)
        yield header
        for part, num_bytes, message in ready.messages(task.offset):
            ledger.count(
                ready.phase_of(part), Direction.DOWN, len(message), num_bytes,
                client=member.client, encoding=encoding_word(part.payload.encoding),
            )  # fmt: skip
            yield message
            table.heard(member.client, clock())
        presence.sent_s = clock()
