"""The client's side of a run, readable as the algorithm.

  1. join: be told the settings, build the model, say what it looks like
  2. ask for the next task (a long poll)
  3. SCORE     score every weight on one minibatch, report
     TRAIN     test the base, train inside the mask, send the kept values
     EVALUATE  test the base, report
     FINISH    store the final model, say goodbye
  4. open the next long poll *before* uploading, so that the next round's values are pushed the
     moment they exist; go to 3

Whatever breaks, the client joins again: a finished result is kept on disk and sent before
anything else, a broken download goes on where it stopped, nothing is computed twice.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from ssfl.client.connection import UNARY_TIMEOUT_S, Patience, Watchdog
from ssfl.client.download import Download, Downloads
from ssfl.client.errors import Refused, Resync, Unavailable, reason_of, translate
from ssfl.client.local_state import Answer, LocalState
from ssfl.client.progress import Progress, StepOver
from ssfl.client.site import Site
from ssfl.client.upload import send
from ssfl.codec import CodecError, bitmask, values_only
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_files import write_model
from ssfl.method.model_state import values_digest
from ssfl.method.settings import RunSettings
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, saliency_pb2, settings_pb2, transfer_pb2, update_pb2

log = logging.getLogger("ssfl.client")

PROTOCOL_VERSION = 1
SILENCE_S = 45.0  # a waiting call hears from the coordinator every 15 s: three are missing
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a client says of itself in Join."""

    client_id: str
    num_samples: int
    fingerprint: str
    class_counts: dict[int, int]  # empty unless the site shares them


class Agent:
    """One client, from Join to the final model."""

    def __init__(
        self,
        stub: Any,
        identity: Identity,
        local: LocalState,
        patience: Patience,
        build_site: Callable[[RunSettings], Site],
        out_dir: Path,
    ) -> None:
        self._stub = stub
        self._identity = identity
        self._local = local
        self._patience = patience
        self._build_site = build_site
        self._out_dir = out_dir
        self._caller = pb.Caller()
        self._run_id = ""  # the run that the site was built for
        self._site: Site | None = None
        self._watchdog = Watchdog(SILENCE_S)
        self._downloads: Downloads | None = None
        self._mask: Mask | None = None
        self._base: Vector | None = None
        self._base_digest = b""
        self._initial_digest = b""
        self._answer: Answer | None = None
        self._granted = False  # a slot came with the task; a second try waits, to resume

    def run(self) -> Path | None:
        """Take part until the run is over; return where the final model is, if there is one."""
        while True:
            try:
                self._join()
                return self._work()
            except Unavailable as error:
                self._patience.wait(error)
            except Resync as error:
                log.info("joining again: %s", error)
                self._patience.pause()

    def leave(self, why: str) -> None:
        """Say goodbye before stopping; the coordinator then does not wait for us."""
        self._goodbye(pb.LEAVE_REASON_STOPPING, why)

    # -- 1. join

    def _join(self) -> None:
        response = self._join_call()
        while response.run_id != self._run_id:
            self._enter(response)
            response = self._join_call()
        answer = self._answer or self._local.load()
        self._answer = answer if answer and answer.run_id == self._run_id else None

    def _enter(self, response: pb.JoinResponse) -> None:
        """Build the model of a run we did not know: our first, or one begun with --fresh."""
        settings = _settings(response.settings)
        log.info("joined", extra={"run": response.run_id, "model": settings.model})
        self._run_id = response.run_id
        self._site = self._build_site(settings)
        self._watchdog = Watchdog(max(settings.no_progress_s, SILENCE_S))
        self._downloads = Downloads(self._watchdog, self._site.manifest, self._patience.reached)
        self._initial_digest = values_digest(self._site.initial)
        self._mask, self._base, self._base_digest = None, None, b""

    def _join_call(self) -> pb.JoinResponse:
        """Join with the model we built; raise Refused if the run has another one."""
        manifest = self._site.manifest if self._site else None
        try:
            return self._call_join(manifest)
        except grpc.RpcError as error:
            if manifest is None or reason_of(error) != "join_again":
                raise translate(error) from error
        try:
            response = self._call_join(None)
            if response.run_id != self._run_id:
                return response
            return self._call_join(manifest, whole=True)  # refused, naming the tensor
        except grpc.RpcError as error:
            raise translate(error) from error

    def _call_join(self, manifest: Manifest | None, *, whole: bool = False) -> pb.JoinResponse:
        request = pb.JoinRequest(
            protocol_version=PROTOCOL_VERSION,
            client_id=self._identity.client_id,
            token=self._local.token(),
            num_samples=self._identity.num_samples,
            manifest_digest=manifest.digest if manifest else b"",
            manifest=manifest.json if manifest and whole else b"",
            fingerprint=self._identity.fingerprint,
            class_counts=self._identity.class_counts,
            encodings=[
                transfer_pb2.ENCODING_VALUES_ONLY,
                transfer_pb2.ENCODING_DENSE,
                transfer_pb2.ENCODING_BITMASK,
                transfer_pb2.ENCODING_BITMASK_ZSTD,
            ],
            software=f"ssfl {version('ssfl')}",
        )
        response: pb.JoinResponse = self._stub.Join(request, timeout=UNARY_TIMEOUT_S)
        self._caller = pb.Caller(
            run_id=response.run_id,
            client_id=self._identity.client_id,
            session=response.session,
        )
        return response

    # -- 2. ask, 3. work, 4. ask again, then upload

    def _work(self) -> Path | None:
        assert self._downloads is not None
        while True:
            call = self._ask()
            try:
                self._send_answer()
                download = self._downloads.receive(call)
            finally:
                call.cancel()
            match download.task.WhichOneof("work"):
                case "initialize":
                    self._initialize()
                case "score":
                    self._score(download)
                case "train":
                    self._train(download)
                case "evaluate":
                    self._evaluate(download)
                case "finish":
                    return self._finish(download)
                case _:
                    raise Refused("the coordinator asks for work this version does not know")

    def _ask(self) -> Any:
        """Open the long poll."""
        assert self._downloads is not None
        request = pb.NextTaskRequest(
            caller=self._caller,
            finished_step=self._answer.step if self._answer else 0,
            initial_digest=self._initial_digest,
            mask_digest=self._mask.digest if self._mask else b"",
            base_digest=self._base_digest,
            **self._downloads.resume_fields(),
        )
        return self._stub.NextTask(request)

    def _send_answer(self) -> None:
        """Upload the finished result, if there is one."""
        answer = self._answer
        if answer is None:
            return
        request: Any
        if answer.kind == "scores":
            rpc = self._stub.ReportSaliency
            report = saliency_pb2.SaliencyReport.FromString(answer.header)
            request = pb.ReportSaliencyRequest(caller=self._caller, header=report)
        else:
            rpc = self._stub.SendUpdate
            update = update_pb2.SparseUpdate.FromString(answer.header)
            request = pb.SendUpdateRequest(caller=self._caller, header=update)
        granted, self._granted = self._granted, False
        try:
            outcome = send(rpc, request, answer.payload, self._watchdog, wait_for_grant=not granted)
        except Resync:
            self._drop_answer()
            raise
        log.info("%s sent", answer.kind, extra={"step": answer.step, "outcome": _word(outcome)})
        self._drop_answer()

    def _drop_answer(self) -> None:
        self._answer = None
        self._local.drop()

    def _keep_answer(
        self, kind: str, step: int, header: bytes, payload: memoryview, granted: bool
    ) -> None:
        self._answer = Answer(self._run_id, kind, step, header, payload)
        self._granted = granted
        self._local.save(self._answer)

    def _initialize(self) -> None:
        assert self._site is not None
        log.info("describing the model to the coordinator")
        manifest = self._site.manifest
        header = pb.InitialModel(manifest=manifest.json, initial_digest=self._initial_digest)
        payload = memoryview(b"")
        if not manifest.rebuildable:
            payload = values_only.encode(self._site.initial)
            header.initial.CopyFrom(_payload(transfer_pb2.ENCODING_DENSE, payload))
        request = pb.SendInitialRequest(caller=self._caller, header=header)
        send(self._stub.SendInitial, request, payload, self._watchdog)

    def _score(self, download: Download) -> None:
        assert self._site is not None
        work, step = download.task.score, download.task.step
        if work.criterion != "saliency":
            raise Refused(f"the coordinator asks for unknown scores: {work.criterion!r}")
        initial = self._site.initial
        if work.HasField("initial"):
            initial = _values(download.payload(0), self._site.manifest.size)
        if values_digest(initial) != work.initial_digest:
            raise Refused("the coordinator sent initial weights that do not match their digest")
        began_s = time.monotonic()
        with Progress(self._stub, self._caller, step):
            scores = self._site.score(initial)
        payload = values_only.encode(scores)
        report = saliency_pb2.SaliencyReport(
            manifest_digest=work.manifest_digest,
            initial_digest=work.initial_digest,
            step=step,
            num_samples=self._identity.num_samples,
            scores=_payload(transfer_pb2.ENCODING_DENSE, payload),
            work_s=time.monotonic() - began_s,
        )
        self._keep_answer("scores", step, report.SerializeToString(), payload, granted=False)

    def _train(self, download: Download) -> None:
        assert self._site is not None
        work, step = download.task.train, download.task.step
        mask, base = self._take_model(download, work)
        began_s = time.monotonic()
        try:
            with Progress(self._stub, self._caller, step) as progress:
                trained = self._site.train(mask, base, work.round_number, progress.on_step)
        except StepOver:
            log.info("round closed without us", extra={"round": work.round_number})
            return
        payload = values_only.encode(trained.values)
        update = update_pb2.SparseUpdate(
            mask_digest=work.mask.mask_digest,
            mask_epoch=work.mask.mask_epoch,
            base_digest=work.base_digest,
            step=step,
            round_number=work.round_number,
            attempt=work.attempt,
            num_samples=self._identity.num_samples,
            values=_payload(transfer_pb2.ENCODING_VALUES_ONLY, payload),
            base_evaluation=_evaluation(trained.base),
            personal_evaluation=_evaluation(trained.personal),
            training_loss=trained.training_loss,
            work_s=time.monotonic() - began_s,
        )
        log.info(
            "trained",
            extra={"round": work.round_number, "loss": round(trained.training_loss, 4)},
        )
        header = update.SerializeToString()
        self._keep_answer("values", step, header, payload, granted=work.upload_granted)

    def _evaluate(self, download: Download) -> None:
        assert self._site is not None
        work, step = download.task.evaluate, download.task.step
        mask, base = self._take_model(download, work)
        began_s = time.monotonic()
        with Progress(self._stub, self._caller, step):
            tested = self._site.evaluate(mask, base)
        request = pb.ReportEvaluationRequest(
            caller=self._caller,
            step=step,
            evaluation=_evaluation(tested),
            work_s=time.monotonic() - began_s,
        )
        try:
            self._stub.ReportEvaluation(request, timeout=UNARY_TIMEOUT_S)
        except grpc.RpcError as error:
            raise translate(error) from error

    def _finish(self, download: Download) -> Path | None:
        assert self._site is not None
        work = download.task.finish
        folder = None
        if work.stopped:
            log.warning("an operator stopped the run", extra={"rounds_done": work.rounds_done})
        if work.base_digest:
            mask, values = self._take_model(download, work)
            folder = self._out_dir / self._run_id / self._identity.client_id
            folder.mkdir(parents=True, exist_ok=True)
            write_model(folder, self._site.manifest, mask, values)
        self._goodbye(pb.LEAVE_REASON_FINISHED)
        return folder

    def _take_model(
        self, download: Download, work: pb.TrainTask | pb.EvaluateTask | pb.FinishTask
    ) -> tuple[Mask, Vector]:
        """Return mask and base of a task: what came with it, or what we hold already."""
        assert self._site is not None
        if work.mask.mask_digest != (self._mask.digest if self._mask else b""):
            self._mask = _mask(download, work.mask, self._site.manifest)
        mask = self._mask
        assert mask is not None
        if work.HasField("base"):
            number = int(work.mask.HasField("mask"))  # the mask, if it came, comes first
            count = mask.num_kept + self._site.manifest.num_unmasked
            self._base = _values(download.payload(number), count).copy()
            self._base_digest = values_digest(self._base)
        if self._base is None or self._base_digest != work.base_digest:
            self._base_digest = b""
            raise Resync("the base we hold is not the one of the task")
        return mask, self._base

    def _goodbye(self, reason: pb.LeaveReason, why: str = "") -> None:
        if not self._caller.session:
            return
        try:
            request = pb.LeaveRequest(caller=self._caller, reason=reason, detail=why[:200])
            self._stub.Leave(request, timeout=2.0)
        except grpc.RpcError as error:
            log.debug("could not say goodbye", extra={"error": str(error.code())})


def _mask(download: Download, message: mask_pb2.MaskBroadcast, manifest: Manifest) -> Mask:
    """Return the mask of a broadcast, checked against its digest."""
    if message.all_kept:
        mask = Mask.full(manifest.num_masked)
    elif not message.HasField("mask"):
        raise Resync("the coordinator believes we hold a mask that we do not")
    else:
        data = bytes(download.payload(0))
        try:
            if message.mask.encoding == transfer_pb2.ENCODING_BITMASK_ZSTD:
                data = bitmask.decompress(data, manifest.num_masked)
            mask = Mask(bitmask.checked(data, manifest.num_masked), manifest.num_masked)
        except CodecError as error:
            raise Refused(f"the coordinator sent a mask that does not fit: {error}") from error
    if mask.digest != message.mask_digest or mask.num_kept != message.num_kept:
        raise Refused("the coordinator sent a mask that does not match its digest")
    return mask


def _values(payload: memoryview, count: int) -> Vector:
    try:
        return values_only.decode(payload, count)
    except CodecError as error:
        raise Refused(f"the coordinator sent values that do not fit: {error}") from error


def _settings(message: settings_pb2.RunSettings) -> RunSettings:
    """Return the run's settings as they came in Join."""
    return RunSettings(**{one.name: getattr(message, one.name) for one in fields(RunSettings)})


def _payload(encoding: transfer_pb2.Encoding, data: memoryview) -> transfer_pb2.Payload:
    digest = hashlib.sha256(data).digest()
    return transfer_pb2.Payload(encoding=encoding, num_bytes=len(data), digest=digest)


def _evaluation(tested: Any) -> update_pb2.Evaluation:
    return update_pb2.Evaluation(
        correct=tested.correct, total=tested.total, loss_sum=tested.loss_sum
    )


def _word(outcome: transfer_pb2.Outcome) -> str:
    return transfer_pb2.Outcome.Name(outcome).removeprefix("OUTCOME_").lower()
