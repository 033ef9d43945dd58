"""The answer to SCORE: one score for each masked weight."""

import asyncio

from ssfl.method.model_state import ModelState
from ssfl.method.strategies.contract import Work
from ssfl.server.errors import StaleBase
from ssfl.server.run.state import Member, Step
from ssfl.server.storage.upload_files import PartialUpload
from ssfl.server.uploads.decode import check_scores, score_blocks
from ssfl.server.uploads.step_upload import StepUpload, UploadServices, open_step
from ssfl.server.uploads.verify import ScoreCheck, VerifiedUpload, verify_coded, verify_plain
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
        super().__init__(services, member, step, header.scores, {"work_s": header.work_s})
        self._count = model.manifest.num_masked
        self._check = ScoreCheck(self.client, model.manifest, signed=step.criterion == "grasp")

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

    def verify(self, part: PartialUpload) -> VerifiedUpload:
        digest, count = self.payload.digest, self._count
        if self.payload.encoding == transfer_pb2.ENCODING_DENSE:
            return verify_plain(part, digest, count, self._check)
        blocks = score_blocks(part.view(), self.payload, count)
        return verify_coded(part, digest, blocks, self._check)
