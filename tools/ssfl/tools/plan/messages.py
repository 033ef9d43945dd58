"""Sizes of the messages of a run, taken from messages built for it.

Digests, numbers and names are as long as those of a run. Unknown lengths are guesses, such as a
site's name and its number of samples. Together they are a few bytes per message.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ssfl.client.coding import ENCODINGS
from ssfl.codec import ChunkSizer
from ssfl.method.exact_sum import VALUE_BOUND, fraction_bits
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.program.version import ssfl_version
from ssfl.server.broadcast.tasks import CHUNK_BYTES, settings_to_message
from ssfl.server.rpc.request_checks import PROTOCOL_VERSION
from ssfl.server.rpc.session_numbers import LARGEST
from ssfl.server.uploads.encoding_choice import LOSSY
from ssfl.strategies.mask_source import ENOUGH_BATCHES
from ssfl.tools.plan.sizes import CodedSize
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, saliency_pb2, transfer_pb2, update_pb2

DIGEST = b"\xff" * 32
TASK_DIGEST = b"\xff" * 16
RUN_ID = "20260101-000000-abcdef"
CLIENT_ID = "shard_00"
FINGERPRINT = "torch 2.13.0+cpu, AVX2, 1 thread, numpy 2.4.1"
SECONDS = 1.5  # any double that is not 0
_DENSE = transfer_pb2.ENCODING_DENSE
_CALLER = pb.Caller(run_id=RUN_ID, client_id=CLIENT_ID, session=LARGEST)
_ACCEPTED = transfer_pb2.Receipt(outcome=transfer_pb2.OUTCOME_ACCEPTED)
NAMES_SHOWN = 5  # in the reason of a `waiting`


def download_bytes(payload_bytes: int) -> int:
    """Return the message bytes of a payload's chunks to a client."""
    return sum(
        _chunk_bytes(pb.NextTaskResponse, _varint_bytes(at), min(CHUNK_BYTES, payload_bytes - at))
        for at in range(0, payload_bytes, CHUNK_BYTES)
    )


def upload_bytes(payload_bytes: int, bits_per_s: float | None, request: Callable[..., Any]) -> int:
    """Return the message bytes of a payload's chunks to the coordinator at this speed."""
    now_s = 0.0
    sizer = ChunkSizer(lambda: now_s)
    total = offset = 0
    while offset < payload_bytes:
        size = min(sizer.size, payload_bytes - offset)
        total += _chunk_bytes(request, _varint_bytes(offset), size)
        offset += size
        now_s += 8 * size / bits_per_s if bits_per_s else 0.0
        sizer.record_sent(size)
    return total


@lru_cache(maxsize=4096)
def _chunk_bytes(message: Callable[..., Any], offset_bytes: int, size: int) -> int:
    """Return the size of a chunk's message, given the encoded size of its offset."""
    offset = 1 << 7 * (offset_bytes - 1) if offset_bytes else 0
    chunk = transfer_pb2.Chunk(offset=offset, data=bytes(size), crc32=1)
    return int(message(chunk=chunk).ByteSize())


def _varint_bytes(number: int) -> int:
    return (number.bit_length() + 6) // 7


@dataclass(frozen=True)
class Messages:
    """The headers and small messages of one run."""

    manifest: Manifest
    settings: RunSettings
    num_kept: int
    num_samples: int  # at a site
    num_tested: int

    def join_request(self, *, built: bool) -> int:
        return pb.JoinRequest(
            protocol_version=PROTOCOL_VERSION,
            client_id=CLIENT_ID,
            token=DIGEST[:16],
            num_samples=self.num_samples,
            manifest_digest=DIGEST if built else b"",
            fingerprint=FINGERPRINT,
            encodings=ENCODINGS,
            software=f"ssfl {ssfl_version()}",
        ).ByteSize()

    def join_response(self, *, described: bool) -> int:
        return pb.JoinResponse(
            run_id=RUN_ID,
            session=LARGEST,
            settings=settings_to_message(self.settings),
            manifest=self.manifest.json if described else b"",
            protocol_version=PROTOCOL_VERSION,
            software=ssfl_version(),
        ).ByteSize()

    def ask(self, *, finished_step: int, mask: bool, base: bool) -> int:
        return pb.NextTaskRequest(
            caller=_CALLER,
            finished_step=finished_step,
            initial_digest=DIGEST,
            mask_digest=DIGEST if mask else b"",
            base_digest=DIGEST if base else b"",
        ).ByteSize()

    def waiting(self, reason: str) -> int:
        return pb.NextTaskResponse(waiting=pb.Waiting(reason=reason)).ByteSize()

    def waiting_for_cohort(self, work: str, cohort: int) -> int:
        names = ", ".join([CLIENT_ID] * min(NAMES_SHOWN, cohort))
        more = f" and {cohort - NAMES_SHOWN} more" if cohort > NAMES_SHOWN else ""
        return self.waiting(f"{work} of {names}{more}")

    def initialize_task(self) -> int:
        return _task(0, initialize=pb.InitializeTask())

    def initial_model(self, payload_bytes: int) -> int:
        header = pb.InitialModel(manifest=self.manifest.json, initial_digest=DIGEST)
        if payload_bytes:
            header.initial.CopyFrom(_payload(_DENSE, payload_bytes))
        return pb.SendInitialRequest(caller=_CALLER, header=header).ByteSize()

    def score_task(self, step: int, scores: CodedSize, num_decisive: int, *, refresh: bool) -> int:
        """Return the size of a SCORE task; one for a refresh names the model to score."""
        work = pb.ScoreTask(
            criterion="saliency",
            manifest_digest=DIGEST,
            initial_digest=DIGEST,
            num_batches=self.settings.scoring_batches
            or math.ceil(ENOUGH_BATCHES / max(1, self.settings.clients)),
            num_kept=self.num_kept,
        )
        if refresh:
            work.scoring_epoch = 1
            work.mask.CopyFrom(self._mask(0))
            work.base_digest = DIGEST
            work.resting_digest = DIGEST
        if scores.encoding != _DENSE:
            work.report_encoding = scores.encoding
            work.num_coded = num_decisive
        return _task(step, score=work)

    def score_report(self, step: int, scores: CodedSize, payload_bytes: int) -> int:
        report = saliency_pb2.SaliencyReport(
            manifest_digest=DIGEST,
            initial_digest=DIGEST,
            step=step,
            num_samples=self.num_samples,
            scores=_payload(scores.encoding, payload_bytes),
            work_s=SECONDS,
        )
        return pb.ReportSaliencyRequest(caller=_CALLER, header=report).ByteSize()

    def train_task(
        self,
        step: int,
        round_number: int,
        cohort: int,
        update: CodedSize,
        *,
        granted: bool,
        mask: int = 0,
        base: transfer_pb2.Payload | None = None,
    ) -> int:
        """Return the size of a TRAIN task; `mask` is its payload's size, 0 if already held."""
        work = pb.TrainTask(
            round_number=round_number,
            mask=self._mask(mask),
            base_digest=DIGEST,
            upload_granted=granted,
            fraction_bits=fraction_bits(VALUE_BOUND, cohort * self.num_samples),
            value_bound=VALUE_BOUND,
            update_encoding=update.encoding,
            base=base,
        )
        return _task(step, train=work)

    def update(self, step: int, round_number: int, coded: CodedSize, payload_bytes: int) -> int:
        update = update_pb2.SparseUpdate(
            mask_digest=DIGEST,
            mask_epoch=1,
            base_digest=DIGEST,
            step=step,
            round_number=round_number,
            num_samples=self.num_samples,
            values=payload_of(coded, payload_bytes),
            base_evaluation=self._evaluation(),
            personal_evaluation=self._evaluation(),
            training_loss=SECONDS,
            work_s=SECONDS,
            coding_error=SECONDS if coded.encoding in LOSSY.values() else 0,
        )
        return pb.SendUpdateRequest(caller=_CALLER, header=update).ByteSize()

    def evaluate_task(self, step: int, rounds_done: int, base: transfer_pb2.Payload) -> int:
        work = pb.EvaluateTask(
            rounds_done=rounds_done, mask=self._mask(0), base_digest=DIGEST, base=base
        )
        return _task(step, evaluate=work)

    def personalize_task(self, step: int) -> int:
        return _task(step, personalize=pb.PersonalizeTask(**self._final_model))

    def finish_task(self, step: int) -> int:
        return _task(step, finish=pb.FinishTask(**self._final_model))

    @property
    def _final_model(self) -> dict[str, Any]:
        rounds = self.settings.rounds
        return {"rounds_done": rounds, "mask": self._mask(0), "base_digest": DIGEST}

    def evaluation_report(self, step: int, *, is_personal: bool = False) -> int:
        return pb.ReportEvaluationRequest(
            caller=_CALLER,
            step=step,
            evaluation=self._evaluation(),
            personal=self._evaluation() if is_personal else None,
            work_s=SECONDS,
        ).ByteSize()

    def evaluation_answer(self) -> int:
        return pb.ReportEvaluationResponse(outcome=transfer_pb2.OUTCOME_ACCEPTED).ByteSize()

    def upload_answers(self) -> int:
        """Return the size of a grant and a receipt."""
        grant = pb.SendUpdateResponse(grant=transfer_pb2.Grant())
        return grant.ByteSize() + pb.SendUpdateResponse(receipt=_ACCEPTED).ByteSize()

    def receipt(self) -> int:
        return pb.SendInitialResponse(receipt=_ACCEPTED).ByteSize()

    def leave(self) -> int:
        request = pb.LeaveRequest(caller=_CALLER, reason=pb.LEAVE_REASON_FINISHED)
        return request.ByteSize() + pb.LeaveResponse().ByteSize()

    def _mask(self, payload_bytes: int) -> mask_pb2.MaskBroadcast:
        all_kept = self.num_kept == self.manifest.num_masked
        message = mask_pb2.MaskBroadcast(
            mask_digest=DIGEST, mask_epoch=1, num_kept=self.num_kept, all_kept=all_kept
        )
        if payload_bytes:
            message.mask.CopyFrom(_payload(transfer_pb2.ENCODING_BITMASK_SORTED, payload_bytes))
        return message

    def _evaluation(self) -> update_pb2.Evaluation:
        tested = self.num_tested
        return update_pb2.Evaluation(correct=tested // 2, total=tested, loss_sum=SECONDS)


def payload_of(coded: CodedSize, num_bytes: int) -> transfer_pb2.Payload:
    """Return the announcement of coded values of `num_bytes`."""
    payload = _payload(coded.encoding, num_bytes)
    if coded.has_reference:
        payload.reference_digest = DIGEST
    return payload


def _payload(encoding: transfer_pb2.Encoding, num_bytes: int) -> transfer_pb2.Payload:
    return transfer_pb2.Payload(encoding=encoding, num_bytes=num_bytes, digest=DIGEST)


def _task(step: int, **work: Any) -> int:
    task = pb.Task(task_digest=TASK_DIGEST, step=step, **work)
    return pb.NextTaskResponse(task=task).ByteSize()
