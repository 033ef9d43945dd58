"""The answers to SCORE, one score for each masked weight, and to TRAIN, the trained values."""

import asyncio
from collections.abc import Iterator
from typing import Any

from ssfl.method.model_state import ModelState
from ssfl.server.accounting.ledger import encoding_word
from ssfl.server.errors import InvalidRequest, StaleBase, StaleMask
from ssfl.server.run.state import Member, Step
from ssfl.server.storage.upload_files import Block, PartialUpload
from ssfl.server.uploads.decode import check_scores, score_blocks, update_blocks
from ssfl.server.uploads.step_upload import StepUpload, UploadServices, open_step
from ssfl.server.uploads.update_parts import ReadUpdate, check_parts, sections_of, whole_payload
from ssfl.server.uploads.verify import (
    ScoreCheck,
    ValueCheck,
    VerifiedUpload,
    clip_update,
    verify_parts,
)
from ssfl.strategies.contract import Work
from ssfl.strategies.registry import criterion_for
from ssfl.v1 import saliency_pb2, transfer_pb2, update_pb2


class ScoreUpload(StepUpload):
    """The scores of one client."""

    phase = "scores"

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
        report, count = {"work_s": header.work_s}, model.manifest.num_masked
        check_scores(header.scores, count, services.run.state.settings)
        check = ScoreCheck(
            member.client, model.manifest, signed=criterion_for(step.criterion).signed
        )
        upload = cls(services, member, step, header.scores, report, check, count)
        return upload.receipt_if_unwanted() or upload

    def _decoded(self, data: memoryview) -> Iterator[Block]:
        return score_blocks(data, self.payload, self._count)


class UpdateUpload(StepUpload):
    """The update of one client."""

    phase = "values"

    def __init__(
        self,
        services: UploadServices,
        member: Member,
        step: Step,
        header: update_pb2.SparseUpdate,
        base: ModelState,
    ) -> None:
        """`base` is the model that the client was sent."""
        assert base.mask is not None and base.values is not None
        check, count = ValueCheck(member.client, base.manifest, base.mask), base.values.size
        payload = whole_payload(header)
        super().__init__(services, member, step, payload, _report(header), check, count)
        self.sections = tuple(
            (section.phase, encoding_word(section.payload.encoding), section.payload.num_bytes)
            for section in sections_of(header, is_round=step.counts_as_round)
        )
        self._header = header
        self._model = base
        self._base = base.values
        self._settings = services.run.state.settings

    @classmethod
    async def admit(
        cls, services: UploadServices, member: Member, header: update_pb2.SparseUpdate
    ) -> "UpdateUpload | transfer_pb2.Receipt":
        """Check a header against the run; return the upload, or the receipt that ends it."""
        model = await services.run.current_model()
        step = open_step(services.run.state, header.step, Work.TRAIN, member)
        if step is None or model is None:
            receipt = services.late_receipt(header.step, member, whole_payload(header))
            epoch = services.run.state.mask_epoch
            counted = receipt.outcome == transfer_pb2.OUTCOME_ALREADY_ACCEPTED
            if not counted and header.mask_epoch < epoch:
                raise StaleMask(
                    f"the update was made under mask {header.mask_epoch}, the run has mask "
                    f"{epoch}: ask for the next task"
                )
            return receipt
        base = await services.models.base_of(member.client, model)
        _check_base(header, base)
        if (header.round_number, header.attempt) != (step.round_number, step.attempt):
            raise InvalidRequest("round and attempt are not those of the step")
        parts = services.models.parts(step.task, model.manifest)
        check_parts(header, parts, base, services.run.state.settings)
        upload = cls(services, member, step, header, base)
        return upload.receipt_if_unwanted() or upload

    def verify(self, part: PartialUpload) -> VerifiedUpload:
        if self.payload is not self._header.values or self._header.HasField("own_mask"):
            return self._verify_parts(part)
        found = super().verify(part)
        return clip_update(part, found, self._base, self._settings.max_update_norm)

    def _verify_parts(self, part: PartialUpload) -> VerifiedUpload:
        """Verify an update with more parts than values; store them decoded, the mask last."""
        update = ReadUpdate(self._header, self._model, self._settings, part.view())
        mask, bits = self._model.mask, b""
        if self._header.HasField("own_mask"):
            mask = update.mask()
            bits = mask.bits
        assert mask is not None
        check = ValueCheck(self.client, self._model.manifest, mask)
        return verify_parts(part, update.blocks(mask), check, bits, tuple(self._header.numbers))

    def _decoded(self, data: memoryview) -> Iterator[Block]:
        return update_blocks(data, self.payload, self._base, self._settings)


def evaluation_of(message: update_pb2.Evaluation) -> dict[str, Any]:
    """Return an evaluation in the form of the history."""
    return {
        "correct": message.correct if message.HasField("correct") else None,
        "total": message.total,
        "loss_sum": message.loss_sum,
        "metric_sums": dict(sorted(message.metric_sums.items())),
    }


def _report(header: update_pb2.SparseUpdate) -> dict[str, Any]:
    return {
        "work_s": header.work_s,
        "training_loss": header.training_loss,
        "coding_error": header.coding_error,
        "evaluation": evaluation_of(header.base_evaluation),
        "personal": evaluation_of(header.personal_evaluation),
    }


def _check_base(header: update_pb2.SparseUpdate, base: ModelState) -> None:
    """Raise a refusal unless the update started from the mask and values of `base`."""
    assert base.mask is not None
    if (header.mask_epoch, header.mask_digest) != (base.mask_epoch, base.mask.digest):
        raise StaleMask(
            f"the update was made under mask {header.mask_epoch} "
            f"({header.mask_digest[:6].hex()}…), the run has mask {base.mask_epoch} "
            f"({base.mask.digest[:6].hex()}…): ask for the task again"
        )
    if header.base_digest != base.base_digest:
        raise StaleBase("the update started from other values: ask for the task again")
