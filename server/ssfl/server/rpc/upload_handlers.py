"""The three uploads: initial model, scores, update. Header checked, payload received, verified."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ssfl.codec import values_only
from ssfl.durable.failpoints import failpoint
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, values_digest
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server.accounting.ledger import Direction, encoding_word
from ssfl.server.broadcast.tasks import initializer
from ssfl.server.errors import (
    InvalidRequest,
    JoinAgain,
    ManifestMismatch,
    StaleBase,
    StaleMask,
)
from ssfl.server.loop.first_model import begin_model, initialized
from ssfl.server.loop.limits import Limits
from ssfl.server.rpc import request_checks
from ssfl.server.rpc.call_context import CallContext, evaluation_of, receipt_of
from ssfl.server.rpc.status_codes import reason_of
from ssfl.server.run import events
from ssfl.server.run.events import Reply
from ssfl.server.run.machine import late_reply
from ssfl.server.run.state import Member, Step
from ssfl.server.run.weights import clipped
from ssfl.server.storage.disk_full import refused_if_full
from ssfl.server.storage.spool import check_digest, file_digest
from ssfl.server.uploads.decode import (
    Verified,
    check_payload,
    check_scores,
    check_update,
    plain_scores,
    plain_update,
    shortened_update,
    verified,
)
from ssfl.server.uploads.receive import Expected, Sent, UploadReceiver, first
from ssfl.server.uploads.verify import verify_scores, verify_values
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2, update_pb2


class UploadHandlers:
    """Takes uploads in."""

    def __init__(
        self, context: CallContext, uploads: UploadReceiver, limits: Limits | None = None
    ) -> None:
        self._context = context
        self._limits = limits or Limits()
        self._describing = asyncio.Lock()  # of two models, only one is in memory
        self._run_loop = context.run_loop
        self._uploads = uploads
        self._counting: dict[ClientId, asyncio.Future[Reply]] = {}  # one of each client

    async def initial(
        self, requests: AsyncIterator[pb.SendInitialRequest], peer: str = ""
    ) -> AsyncIterator[pb.SendInitialResponse]:
        """Take the answer to INITIALIZE."""
        request = await self._header(requests, "initial")
        member = await self._context.member(request.caller, peer)
        header = request.header
        manifest = Manifest.from_json(header.manifest)
        self._limits.check_model(manifest)
        if manifest.digest.hex() != member.manifest_digest:
            raise InvalidRequest("the manifest is not the one whose digest came in Join")
        request_checks.check_ready(member, self._run_loop.state)
        if receipt := self._known():
            yield self._context.count_down(pb.SendInitialResponse(receipt=receipt), member.client)
            return

        async def accept(part: Path | None, _sent: Sent | None = None) -> transfer_pb2.Receipt:
            async with self._describing:
                if receipt := self._known():
                    return receipt
                model = await asyncio.to_thread(
                    self._build_model, member.client, manifest, header, part
                )
            reply = await self._run_loop.post(initialized(member.client, model), model)
            failpoint("ack.initial")
            if reply is Reply.CONFLICT:  # another client was quicker, with another model
                raise JoinAgain("the run's model is known now: join again to compare it with yours")
            return receipt_of(reply)

        with self._context.sessions.call(member.client, self._run_loop.clock):
            if manifest.rebuildable:
                with refused_if_full():
                    receipt = await accept(None)
                yield self._context.count_down(
                    pb.SendInitialResponse(receipt=receipt), member.client
                )
                return
            num_bytes = values_only.encoded_bytes(manifest.size)
            allowed = {transfer_pb2.ENCODING_DENSE: (num_bytes, num_bytes)}
            check_payload(header.initial, allowed)
            asked = initializer(self._run_loop.state)
            if asked is None or asked.client != member.client:
                raise JoinAgain("another client was asked to describe the model: join again")
            self._run_loop.spool.drop_clients_but(member.client, 0)  # asked before, and gone
            expected = Expected(member.client, 0, header.initial, "initial", self._known)
            responses = self._uploads.receive(expected, requests, pb.SendInitialResponse, accept)
            async for response in responses:
                yield self._context.count_down(response, member.client)

    async def scores(
        self, requests: AsyncIterator[pb.ReportSaliencyRequest], peer: str = ""
    ) -> AsyncIterator[pb.ReportSaliencyResponse]:
        """Take the answer to SCORE."""
        request = await self._header(requests, "scores")
        member = await self._context.member(request.caller, peer)
        header = request.header
        request_checks.check_report(header.work_s)
        model = await self._run_loop.current_model()
        step = self._step(header.step, Work.SCORE, member, header.num_samples)
        if step is None or model is None:
            receipt = self._too_late(header.step, member, header.scores)
            yield self._context.count_down(
                pb.ReportSaliencyResponse(receipt=receipt), member.client
            )
            return
        if header.manifest_digest != model.manifest.digest:
            raise StaleBase("the scores are of another model: join again")
        if header.initial_digest != await asyncio.to_thread(lambda: model.whole_digest):
            raise StaleBase("the scores are of other weights: ask for the task again")
        settings = self._run_loop.state.settings
        check_scores(header.scores, model.manifest.num_masked, settings)
        signed = step.criterion == "grasp"

        def verify(part: Path) -> Verified:
            check_digest(part, header.scores.digest)
            plain = plain_scores(part, header.scores, model.manifest.num_masked)
            return verified(
                part,
                plain,
                lambda p: verify_scores(p, member.client, model.manifest, signed=signed),
            )

        over = partial(self._over, step, member, header.scores)
        expected = Expected(member.client, step.number, header.scores, "scores", over)
        responses = self._receive(
            member, step, expected, requests, pb.ReportSaliencyResponse, verify,
            {"work_s": header.work_s},
        )  # fmt: skip
        async for response in responses:
            yield response

    async def update(
        self, requests: AsyncIterator[pb.SendUpdateRequest], peer: str = ""
    ) -> AsyncIterator[pb.SendUpdateResponse]:
        """Take the answer to TRAIN."""
        request = await self._header(requests, "values")
        member = await self._context.member(request.caller, peer)
        header = request.header
        tested = (header.base_evaluation, header.personal_evaluation)
        request_checks.check_report(
            header.work_s, header.training_loss, header.coding_error, evaluations=tested
        )
        model = await self._run_loop.current_model()
        step = self._step(header.step, Work.TRAIN, member, header.num_samples)
        if step is None or model is None:
            receipt = self._too_late(header.step, member, header.values)
            self._refuse_old_mask(header, receipt)
            yield self._context.count_down(pb.SendUpdateResponse(receipt=receipt), member.client)
            return
        model = (await self._context.broadcast(member.client, Work.TRAIN, model)).model
        mask, values = model.mask, model.values
        assert mask is not None and values is not None
        if (header.mask_epoch, header.mask_digest) != (model.mask_epoch, mask.digest):
            raise StaleMask(
                f"the update was made under mask {header.mask_epoch} "
                f"({header.mask_digest[:6].hex()}…), the run has mask {model.mask_epoch} "
                f"({mask.digest[:6].hex()}…): ask for the task again"
            )
        if header.base_digest != model.base_digest:
            raise StaleBase("the update started from other values: ask for the task again")
        if (header.round_number, header.attempt) != (step.round_number, step.attempt):
            raise InvalidRequest("round and attempt are not those of the step")
        settings = self._run_loop.state.settings
        check_update(header.values, values.size, model.base_digest, settings)

        def verify(part: Path) -> Verified:
            check_digest(part, header.values.digest)
            plain = plain_update(part, header.values, values, settings)
            sound = verified(
                part,
                plain,
                lambda p: verify_values(p, member.client, values.size, model.manifest, mask),
            )
            return shortened_update(part, sound, values, settings.max_update_norm)

        report = {
            "work_s": header.work_s,
            "training_loss": header.training_loss,
            "coding_error": header.coding_error,
            "evaluation": evaluation_of(header.base_evaluation),
            "personal": evaluation_of(header.personal_evaluation),
        }
        over = partial(self._over, step, member, header.values)
        expected = Expected(member.client, step.number, header.values, "values", over)
        responses = self._receive(
            member, step, expected, requests, pb.SendUpdateResponse, verify, report
        )
        async for response in responses:
            yield response

    async def _header(self, requests: AsyncIterator[Any], phase: str) -> Any:
        request = await first(requests, self._run_loop.state.settings.no_progress_s)
        spoken = self._context.client_or_blank(request.caller)
        self._context.ledger.count(phase, Direction.UP, request.ByteSize(), client=spoken)
        return request

    def _step(self, number: int, work: Work, member: Member, num_samples: int) -> Step | None:
        step = self._context.open_step(number, work, member)
        if step is None:
            return None
        weight = clipped(num_samples, self._run_loop.state.settings)
        if weight != step.cohort[member.client]:
            raise InvalidRequest(
                f"num_samples is {num_samples}, in Join it was {step.cohort[member.client]}"
            )
        return step

    async def _receive(
        self,
        member: Member,
        step: Step,
        expected: Expected,
        requests: AsyncIterator[Any],
        respond: Callable[..., Any],
        verify: Callable[[Path], Verified],
        report: dict[str, Any],
    ) -> AsyncIterator[Any]:
        if receipt := expected.over():
            yield self._context.count_down(respond(receipt=receipt), member.client)
            return

        async def accept(part: Path, sent: Sent) -> transfer_pb2.Receipt:
            full_report = {
                **report,
                "encoding": encoding_word(expected.payload.encoding),
                "upload_bytes": sent.num_bytes,
                "upload_s": sent.seconds,
                **self._context.timing(member, step.number),
            }
            event = events.UploadReceived(
                step.number, member.client, expected.payload.digest.hex(), report=full_report
            )
            if earlier := self._counting.get(member.client):
                await asyncio.wait({earlier})  # of a call that was cut off: one at a time
                if receipt := expected.over():
                    return receipt
            counting = asyncio.ensure_future(self._count(part, verify, event))
            self._counting[member.client] = counting
            counting.add_done_callback(partial(self._counted, member.client))
            try:
                return receipt_of(await asyncio.shield(counting))  # also if the wire breaks now
            except asyncio.CancelledError:
                counting.add_done_callback(partial(self._unheard, member.client))
                raise

        with self._context.sessions.call(member.client, self._run_loop.clock):
            async for response in self._uploads.receive(expected, requests, respond, accept):
                yield self._context.count_down(response, member.client)

    async def _count(
        self,
        part: Path,
        verify: Callable[[Path], Verified],
        event: events.UploadReceived,
    ) -> Reply:
        """Verify a whole upload, keep it and tell the run: both or, after a crash, neither."""
        found = await asyncio.to_thread(verify, part)
        spool = self._run_loop.spool
        stored = (await asyncio.to_thread(file_digest, found.plain)).hex()
        await asyncio.to_thread(spool.keep, part, found.plain)
        report = {**event.report, **found.report}
        counted = replace(event, largest=found.largest, report=report, stored=stored)
        reply = await self._run_loop.post(counted)
        if reply is Reply.STEP_CLOSED:
            self._run_loop.counters.late += 1
        if reply in (Reply.CONFLICT, Reply.STEP_CLOSED):  # it does not count: make room
            spool.forget(event.step, event.client, bytes.fromhex(event.digest))
        failpoint("ack.upload")
        return reply

    def _counted(self, client: ClientId, counting: asyncio.Future[Reply]) -> None:
        if self._counting.get(client) is counting:
            del self._counting[client]
        if not counting.cancelled():
            counting.exception()  # told to the sender, if it is still there

    def _unheard(self, client: ClientId, counting: asyncio.Future[Reply]) -> None:
        """Count a refusal that the sender did not wait for."""
        error = None if counting.cancelled() else counting.exception()
        if isinstance(error, Exception) and (reason := reason_of(error)) != "internal":
            self._run_loop.refusals.count(client, reason, str(error))

    def _over(
        self, step: Step, member: Member, payload: transfer_pb2.Payload
    ) -> transfer_pb2.Receipt | None:
        """Return the answer to an upload that is no longer wanted; None while it is."""
        now = self._context.open_step(step.number, step.work, member)
        if now is None:
            return self._too_late(step.number, member, payload)
        before = now.uploads.get(member.client)
        if before is None:
            return None
        same = before.digest == payload.digest.hex()
        return receipt_of(Reply.ALREADY_ACCEPTED if same else Reply.CONFLICT)

    def _too_late(
        self, step: int, member: Member, payload: transfer_pb2.Payload
    ) -> transfer_pb2.Receipt:
        """Return the answer to an upload of a step that is over: it may have counted."""
        reply = late_reply(self._run_loop.state, step, member.client, payload.digest.hex())
        if reply is Reply.STEP_CLOSED:
            self._run_loop.counters.late += 1
        return receipt_of(reply)

    def _refuse_old_mask(
        self, header: update_pb2.SparseUpdate, receipt: transfer_pb2.Receipt
    ) -> None:
        """Raise StaleMask for a late update that was made under a mask which is no longer."""
        epoch = self._run_loop.state.mask_epoch
        counted = receipt.outcome == transfer_pb2.OUTCOME_ALREADY_ACCEPTED
        if not counted and header.mask_epoch < epoch:
            raise StaleMask(
                f"the update was made under mask {header.mask_epoch}, the run has mask {epoch}: "
                "ask for the next task"
            )

    def _known(self) -> transfer_pb2.Receipt | None:
        known = self._run_loop.state.manifest_digest
        return receipt_of(Reply.ALREADY_ACCEPTED) if known else None

    def _build_model(
        self, client: ClientId, manifest: Manifest, header: pb.InitialModel, part: Path | None
    ) -> ModelState:
        """Verify a client's description of the model and store it."""
        settings = self._run_loop.state.settings
        if part is None:
            initial = initial_vector(manifest, settings.seed)
        else:
            check_digest(part, header.initial.digest)
            full = Mask.full(manifest.num_masked)
            verify_values(part, client, manifest.size, manifest, full)
            initial = values_only.decode(part.read_bytes(), manifest.size)
        if values_digest(initial) != header.initial_digest:
            raise ManifestMismatch(
                "the initial weights rebuilt from the seed differ from the client's: "
                "its task must send them (rule 'sent')"
            )
        model = begin_model(settings, manifest, initial)
        self._run_loop.store.save_initial(manifest, initial)
        if part is not None:
            part.unlink()
        return self._run_loop.store.lean(model)
