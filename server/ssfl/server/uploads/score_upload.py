"""The answer to SCORE: one score for each masked weight."""

import asyncio
from collections.abc import Iterator

from ssfl.method.model_state import ModelState
from ssfl.method.strategies.contract import Work
from ssfl.server.errors import StaleBase
from ssfl.server.run.state import Member, Step
from ssfl.server.storage.upload_files import Block
from ssfl.server.uploads.decode import check_scores, score_blocks
from ssfl.server.uploads.step_upload import StepUpload, UploadServices, open_step
from ssfl.server.uploads.verify import ScoreCheck
from ssfl.v1 import saliency_pb2, transfer_pb2


class ScoreUpload(StepUpload):
    """The scores of one client."""

    phase = "scores"

    def __init__(
        self,
        services: UploadServices,
        member: Member,
        step: Step,
        header: saliency_pb2.SaliencyReport,
        model: ModelState,
    ) -> None:
        check = ScoreCheck(member.client, model.manifest, signed=step.criterion == "grasp")
        report, count = {"work_s": header.work_s}, model.manifest.num_masked
        super().__init__(services, member, step, header.scores, report, check, count)

    @classmethod
    async def admit(
        cls, services: UploadServices, member: Member, header: saliency_pb2.SaliencyReport
    ) -> "ScoreUpload | transfer_pb2.Receipt":
        """Check a header against the run; return the upload, or the receipt that ends it."""
        model = await services.run.current_model()
        step = open_step(services.run.state, header.step, Work.SCORE, member)
        if step is None or model is None:
            return services.late_receipt(header.step, member, header.scores)
        if header.manifest_digest != model.manifest.digest:
            raise StaleBase("the scores are for another model: join again")
        if header.initial_digest != await asyncio.to_thread(lambda: model.whole_digest):
            raise StaleBase("the scores are for other weights: ask for the task again")
        check_scores(header.scores, model.manifest.num_masked, services.run.state.settings)
        upload = cls(services, member, step, header, model)
        return upload.receipt_if_unwanted() or upload

    def _decoded(self, data: memoryview) -> Iterator[Block]:
        return score_blocks(data, self.payload, self._count)
