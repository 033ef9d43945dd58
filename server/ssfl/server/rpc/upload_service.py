"""The three upload calls: decode the header, admit the upload, stream the answers."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from ssfl.server.accounting.ledger import Direction
from ssfl.server.loop.initial_upload import InitialUpload, ModelDescriptions
from ssfl.server.loop.limits import Limits
from ssfl.server.rpc import request_checks
from ssfl.server.rpc.call_context import CallContext
from ssfl.server.run.state import Member
from ssfl.server.uploads.receive import Upload, UploadReceiver, read_header
from ssfl.server.uploads.score_and_update import ScoreUpload, UpdateUpload
from ssfl.server.uploads.step_upload import UploadServices
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import coordinator_pb2_grpc, transfer_pb2


class UploadService(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Answers SendInitial, ReportSaliency and SendUpdate."""

    def __init__(self, context: CallContext, uploads: UploadReceiver, limits: Limits) -> None:
        parts = context.coordinator
        self._context = context
        self._run = parts.run
        self.uploads = uploads
        self._services = UploadServices(
            parts.run, parts.spool, parts.counters, parts.presence.task_times, context.models
        )
        self._descriptions = ModelDescriptions(parts.run, parts.spool, parts.store, limits)

    async def SendInitial(
        self, requests: AsyncIterator[pb.SendInitialRequest], context: Any
    ) -> AsyncIterator[pb.SendInitialResponse]:
        """Receive the answer to INITIALIZE."""
        request, member = await self._header(requests, InitialUpload.phase, context)
        request_checks.check_ready(member, self._run.state)
        upload = InitialUpload.admit(self._descriptions, member, request.header)
        presence = self._context.presence.heard(member.client, self._context.clock())
        presence.descriptions += 1
        try:
            if isinstance(upload, InitialUpload):
                presence.description_s = upload.allowed_s
                if upload.follows_from_seed:
                    with self._context.open_call(member), self.uploads.refused_if_full():
                        upload = await upload.commit_model()
                else:
                    upload.check_payload()
            async for response in self._responses(upload, member, requests, pb.SendInitialResponse):
                yield response
        finally:
            presence.descriptions -= 1

    async def ReportSaliency(
        self, requests: AsyncIterator[pb.ReportSaliencyRequest], context: Any
    ) -> AsyncIterator[pb.ReportSaliencyResponse]:
        """Receive the answer to SCORE."""
        request, member = await self._header(requests, ScoreUpload.phase, context)
        request_checks.check_num_samples(member.client, request.header.num_samples)
        request_checks.check_report(request.header.work_s)
        upload = await ScoreUpload.admit(self._services, member, request.header)
        async for response in self._responses(upload, member, requests, pb.ReportSaliencyResponse):
            yield response

    async def SendUpdate(
        self, requests: AsyncIterator[pb.SendUpdateRequest], context: Any
    ) -> AsyncIterator[pb.SendUpdateResponse]:
        """Receive the answer to TRAIN."""
        request, member = await self._header(requests, UpdateUpload.phase, context)
        header = request.header
        request_checks.check_num_samples(member.client, header.num_samples)
        tested = (header.base_evaluation, header.personal_evaluation)
        request_checks.check_report(
            header.work_s, header.training_loss, header.coding_error, evaluations=tested
        )
        upload = await UpdateUpload.admit(self._services, member, header)
        async for response in self._responses(upload, member, requests, pb.SendUpdateResponse):
            yield response

    async def _header(
        self, requests: AsyncIterator[Any], phase: str, context: Any
    ) -> tuple[Any, Member]:
        """Read and count the first message of an upload; return it and the member that sent it."""
        request = await read_header(requests, self._run.state.settings.no_progress_s)
        client = self._context.client_or_blank(request.caller)
        self._context.ledger.count(phase, Direction.UP, request.ByteSize(), client=client)
        return request, await self._context.member(request.caller, context.peer())

    async def _responses(
        self,
        upload: Upload | transfer_pb2.Receipt,
        member: Member,
        requests: AsyncIterator[Any],
        respond: Callable[..., Any],
    ) -> AsyncIterator[Any]:
        """Yield and count the responses to an upload; only the receipt if it already has one."""
        if isinstance(upload, transfer_pb2.Receipt):
            yield self._context.count_sent(respond(receipt=upload), member.client)
            return
        with self._context.open_call(member):
            async for response in self.uploads.receive(upload, requests, respond):
                yield self._context.count_sent(response, member.client)
