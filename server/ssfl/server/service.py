"""RPC <-> events: check, post to the run, answer. The decisions are in run.py."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ssfl.codec import ChunkSizer, pieces, values_only
from ssfl.method.errors import DensityError
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState, values_digest
from ssfl.method.strategies import strategy_for
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server import checks, events
from ssfl.server.conductor import Conductor
from ssfl.server.errors import (
    InvalidRequest,
    ManifestMismatch,
    ModelUnusable,
    StaleBase,
    UpdateConflict,
)
from ssfl.server.events import Reply
from ssfl.server.ledger import Direction
from ssfl.server.run import waiting_for
from ssfl.server.sessions import Sessions
from ssfl.server.settings_message import settings_to_message
from ssfl.server.spool import check_digest
from ssfl.server.state import Member, Step
from ssfl.server.tasks import Broadcast, Ready, task_for
from ssfl.server.uploads import Expected, Uploads, check_payload, first
from ssfl.server.verify import verify_scores, verify_values
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import coordinator_pb2_grpc, transfer_pb2, update_pb2

HEARTBEAT_S = 15.0
_OUTCOMES = {
    Reply.ACCEPTED: transfer_pb2.OUTCOME_ACCEPTED,
    Reply.ALREADY_ACCEPTED: transfer_pb2.OUTCOME_ALREADY_ACCEPTED,
    Reply.STEP_CLOSED: transfer_pb2.OUTCOME_STEP_CLOSED,
}


class CoordinatorService(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """The service every client talks to."""

    def __init__(self, conductor: Conductor, sessions: Sessions, uploads: Uploads) -> None:
        self._conductor = conductor
        self._sessions = sessions
        self._uploads = uploads
        self._ledger = conductor.ledger
        self._broadcast: Broadcast | None = None

    async def Join(self, request: pb.JoinRequest, _context: Any) -> pb.JoinResponse:
        conductor = self._conductor
        now_s = conductor.clock()
        alive = self._sessions.alive(ClientId(request.client_id), now_s)
        client = checks.check_join(request, conductor.state, alive=alive)
        manifest = conductor.model.manifest if conductor.model else None
        checks.check_manifest(request, conductor.state, manifest)
        event = events.Joined(
            client, request.token.hex(), request.num_samples, request.manifest_digest.hex(),
            request.fingerprint,
        )  # fmt: skip
        await conductor.post(event)
        self._sessions.heard(client, conductor.clock())
        state, model = conductor.state, conductor.model
        response = pb.JoinResponse(
            run_id=state.run_id,
            session=state.members[client].session,
            settings=settings_to_message(state.settings),
            manifest=model.manifest.json if model else b"",
            protocol_version=checks.PROTOCOL_VERSION,
            software=version("ssfl"),
        )
        self._control(request, response)
        return response

    async def NextTask(
        self, request: pb.NextTaskRequest, _context: Any
    ) -> AsyncIterator[pb.NextTaskResponse]:
        self._ledger.count("control", Direction.UP, request.ByteSize())
        member = await self._member(request.caller)
        with self._sessions.call(member.client, self._conductor.clock):
            while (ready := self._task(member, request)) is None:
                reason = waiting_for(self._conductor.state, self._conductor.clock())
                yield self._down(pb.NextTaskResponse(waiting=pb.Waiting(reason=reason)))
                await self._conductor.changed(HEARTBEAT_S)
                checks.check_caller(request.caller, self._conductor.state)
            async for response in self._send(ready, request, member):
                yield response

    async def SendInitial(
        self, requests: AsyncIterator[pb.SendInitialRequest], _context: Any
    ) -> AsyncIterator[pb.SendInitialResponse]:
        request = await self._header(requests)
        member = await self._member(request.caller)
        header = request.header
        manifest = Manifest.from_json(header.manifest)
        self._ledger.count("initial", Direction.UP, request.ByteSize())

        async def accept(part: Path | None) -> transfer_pb2.Receipt:
            model = await asyncio.to_thread(self._build_model, manifest, header, part)
            event = events.Initialized(
                member.client, manifest.digest.hex(), model.initial_digest.hex(),
                model.mask_epoch, model.mask.digest.hex() if model.mask else "",
                model.mask.num_kept if model.mask else 0, model.base_digest.hex(),
            )  # fmt: skip
            return self._receipt(await self._conductor.post(event, model))

        with self._sessions.call(member.client, self._conductor.clock):
            if manifest.rebuildable:
                yield pb.SendInitialResponse(receipt=await accept(None))
                return
            num_bytes = values_only.encoded_bytes(manifest.size)
            check_payload(header.initial, transfer_pb2.ENCODING_DENSE, num_bytes)
            expected = Expected(member.client, 0, header.initial, "initial")
            async for response in self._uploads.receive(
                expected, requests, pb.SendInitialResponse, accept
            ):
                yield self._down(response)

    async def ReportSaliency(
        self, requests: AsyncIterator[pb.ReportSaliencyRequest], _context: Any
    ) -> AsyncIterator[pb.ReportSaliencyResponse]:
        request = await self._header(requests)
        member = await self._member(request.caller)
        header = request.header
        self._ledger.count("scores", Direction.UP, request.ByteSize())
        step = self._step(header.step, Work.SCORE, member, header.num_samples)
        if step is None:
            yield self._down(pb.ReportSaliencyResponse(receipt=self._receipt(Reply.STEP_CLOSED)))
            return
        model = self._model()
        if header.manifest_digest != model.manifest.digest:
            raise StaleBase("the scores are of another model: join again")
        if header.initial_digest != model.initial_digest:
            raise StaleBase("the scores are of other initial weights: ask for the task again")
        num_bytes = values_only.encoded_bytes(model.manifest.num_masked)
        check_payload(header.scores, transfer_pb2.ENCODING_DENSE, num_bytes)

        def verify(part: Path) -> float:
            check_digest(part, header.scores.digest)
            return verify_scores(part, model.manifest)

        report = {"work_s": header.work_s}
        async for response in self._receive(
            member, step, requests, header.scores, pb.ReportSaliencyResponse, verify, report
        ):
            yield response

    async def SendUpdate(
        self, requests: AsyncIterator[pb.SendUpdateRequest], _context: Any
    ) -> AsyncIterator[pb.SendUpdateResponse]:
        request = await self._header(requests)
        member = await self._member(request.caller)
        header = request.header
        self._ledger.count("values", Direction.UP, request.ByteSize())
        step = self._step(header.step, Work.TRAIN, member, header.num_samples)
        if step is None:
            yield self._down(pb.SendUpdateResponse(receipt=self._receipt(Reply.STEP_CLOSED)))
            return
        model = self._model()
        mask, values = model.mask, model.values
        assert mask is not None and values is not None
        if (header.mask_epoch, header.mask_digest) != (model.mask_epoch, mask.digest):
            raise StaleBase("the update was made under another mask: ask for the task again")
        if header.base_digest != model.base_digest:
            raise StaleBase("the update started from other values: ask for the task again")
        if (header.round_number, header.attempt) != (step.round_number, step.attempt):
            raise InvalidRequest("round and attempt are not those of the step")
        num_bytes = values_only.encoded_bytes(values.size)
        check_payload(header.values, transfer_pb2.ENCODING_VALUES_ONLY, num_bytes)

        def verify(part: Path) -> float:
            check_digest(part, header.values.digest)
            return verify_values(part, values.size, model.manifest, mask)

        report = {
            "work_s": header.work_s,
            "training_loss": header.training_loss,
            "evaluation": _evaluation(header.base_evaluation),
            "personal": _evaluation(header.personal_evaluation),
        }
        async for response in self._receive(
            member, step, requests, header.values, pb.SendUpdateResponse, verify, report
        ):
            yield response

    async def ReportEvaluation(
        self, request: pb.ReportEvaluationRequest, _context: Any
    ) -> pb.ReportEvaluationResponse:
        member = await self._member(request.caller)
        report = {
            "work_s": request.work_s,
            "evaluation": _evaluation(request.evaluation),
            **self._timing(member, request.step),
        }
        event = events.UploadReceived(request.step, member.client, "", report=report)
        reply = await self._conductor.post(event)
        response = pb.ReportEvaluationResponse(outcome=self._receipt(reply).outcome)
        self._ledger.count("evaluation", Direction.UP, request.ByteSize())
        self._ledger.count("evaluation", Direction.DOWN, response.ByteSize())
        return response

    async def Progress(self, request: pb.ProgressRequest, _context: Any) -> pb.ProgressResponse:
        member = await self._member(request.caller)
        presence = self._sessions.heard(member.client, self._conductor.clock())
        presence.steps_done, presence.steps_all = request.steps_done, request.steps_all
        step = self._conductor.state.step
        over = step is None or step.closed is not None or step.number != request.step
        response = pb.ProgressResponse(step_closed=over)
        self._control(request, response)
        return response

    async def Leave(self, request: pb.LeaveRequest, _context: Any) -> pb.LeaveResponse:
        member = await self._member(request.caller)
        if request.reason == pb.LEAVE_REASON_UNSPECIFIED:
            raise InvalidRequest("a reason to leave is missing")
        finished = request.reason == pb.LEAVE_REASON_FINISHED
        if finished and not self._conductor.state.finished:
            raise InvalidRequest("the run is not finished")
        await self._conductor.post(events.Left(member.client, finished))
        response = pb.LeaveResponse()
        self._control(request, response)
        return response

    # -- shared by the calls above

    async def _member(self, caller: pb.Caller) -> Member:
        """Return who speaks, noting the sign of life."""
        member = checks.check_caller(caller, self._conductor.state)
        self._sessions.heard(member.client, self._conductor.clock())
        if member.client in self._conductor.state.lost:
            await self._conductor.post(events.Returned(member.client))
        return member

    async def _header(self, requests: AsyncIterator[Any]) -> Any:
        return await first(requests, self._conductor.state.settings.no_progress_s)

    def _model(self) -> ModelState:
        assert self._conductor.model is not None
        return self._conductor.model

    def _task(self, member: Member, request: pb.NextTaskRequest) -> Ready | None:
        conductor = self._conductor
        if not conductor.state.finished:
            checks.check_ready(conductor.state.members[member.client], conductor.state)
        if conductor.model and (
            self._broadcast is None or self._broadcast.model is not conductor.model
        ):
            self._broadcast = Broadcast(conductor.model)
        return task_for(
            conductor.state, self._broadcast, member.client, request, self._uploads.slots
        )

    async def _send(
        self, ready: Ready, request: pb.NextTaskRequest, member: Member
    ) -> AsyncIterator[pb.NextTaskResponse]:
        task = pb.Task()
        task.CopyFrom(ready.task)
        total = sum(len(part.data) for part in ready.parts)
        if request.task_digest == task.task_digest and request.offset <= total:
            task.offset = request.offset
        presence = self._sessions.heard(member.client, self._conductor.clock())
        if presence.asked_step != task.step:
            presence.asked_step, presence.asked_s = task.step, self._conductor.clock()
            presence.steps_done = presence.steps_all = 0
        header = pb.NextTaskResponse(task=task)
        self._ledger.count(ready.phase, Direction.DOWN, header.ByteSize())
        yield header
        ends, end = [], 0
        for part in ready.parts:
            end += len(part.data)
            ends.append((end, part.phase))
        buffers = [part.data for part in ready.parts]
        for offset, data, crc32 in pieces(buffers, task.offset, ChunkSizer(time.monotonic)):
            chunk = transfer_pb2.Chunk(offset=offset, data=bytes(data), crc32=crc32)
            response = pb.NextTaskResponse(chunk=chunk)
            phase = next(name for stop, name in ends if offset < stop)
            if ready.phase == "evaluation" and phase == "values":
                phase = "evaluation"
            self._ledger.count(phase, Direction.DOWN, response.ByteSize(), len(data))
            yield response
            self._sessions.heard(member.client, self._conductor.clock())

    def _step(self, number: int, work: Work, member: Member, num_samples: int) -> Step | None:
        """Return the open step an upload is for; None if it has closed."""
        step = self._conductor.state.step
        if step is None or step.number != number or step.work is not work:
            return None
        if member.client not in step.cohort:
            raise InvalidRequest(f"{member.client} was not asked in this step")
        if num_samples != step.cohort[member.client]:
            raise InvalidRequest(
                f"num_samples is {num_samples}, in Join it was {step.cohort[member.client]}"
            )
        return step

    async def _receive(
        self,
        member: Member,
        step: Step,
        requests: AsyncIterator[Any],
        payload: transfer_pb2.Payload,
        respond: Callable[..., Any],
        verify: Callable[[Path], float],
        report: dict[str, Any],
    ) -> AsyncIterator[Any]:
        before = step.uploads.get(member.client)
        if before is not None:
            same = before.digest == payload.digest.hex()
            reply = Reply.ALREADY_ACCEPTED if same else Reply.CONFLICT
            yield self._down(respond(receipt=self._receipt(reply)))
            return

        async def accept(part: Path) -> transfer_pb2.Receipt:
            largest = await asyncio.to_thread(verify, part)
            await asyncio.to_thread(self._conductor.spool.keep, part, step.number, member.client)
            event = events.UploadReceived(
                step.number, member.client, payload.digest.hex(), largest,
                {**report, **self._timing(member, step.number)},
            )  # fmt: skip
            return self._receipt(await self._conductor.post(event))

        phase = "scores" if step.work is Work.SCORE else "values"
        expected = Expected(member.client, step.number, payload, phase)
        with self._sessions.call(member.client, self._conductor.clock):
            async for response in self._uploads.receive(expected, requests, respond, accept):
                yield self._down(response)

    def _timing(self, member: Member, step: int) -> dict[str, float]:
        """Return when the task went out and when the answer was whole, from the step's start."""
        now_s = self._conductor.clock()
        began_s = self._conductor.state.step_began_s
        presence = self._sessions.get(member.client, now_s)
        asked_s = presence.asked_s if presence.asked_step == step else began_s
        return {"asked_s": max(0.0, asked_s - began_s), "received_s": now_s - began_s}

    def _build_model(
        self, manifest: Manifest, header: pb.InitialModel, part: Path | None
    ) -> ModelState:
        """Verify a client's description of the model and store it."""
        settings = self._conductor.state.settings
        if part is None:
            initial = initial_vector(manifest, settings.seed)
        else:
            check_digest(part, header.initial.digest)
            initial = values_only.decode(part.read_bytes(), manifest.size)
        if values_digest(initial) != header.initial_digest:
            raise ManifestMismatch(
                "the initial weights rebuilt from the seed differ from the client's: "
                "its task must send them (rule 'sent')"
            )
        try:
            model = strategy_for(settings).begin(manifest, initial)
        except DensityError as error:
            raise ModelUnusable(f"the run's settings do not fit this model: {error}") from error
        self._conductor.store.save_initial(manifest, initial)
        return model

    def _receipt(self, reply: Reply) -> transfer_pb2.Receipt:
        if reply is Reply.CONFLICT:
            raise UpdateConflict("other bytes of this client were accepted in this step")
        return transfer_pb2.Receipt(outcome=_OUTCOMES[reply])

    def _down(self, response: Any) -> Any:
        self._ledger.count("control", Direction.DOWN, response.ByteSize())
        return response

    def _control(self, request: Any, response: Any) -> None:
        self._ledger.count("control", Direction.UP, request.ByteSize())
        self._ledger.count("control", Direction.DOWN, response.ByteSize())


def _evaluation(message: update_pb2.Evaluation) -> dict[str, float]:
    return {
        "correct": message.correct,
        "total": message.total,
        "loss_sum": message.loss_sum,
    }
