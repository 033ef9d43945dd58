"""The client's side of a run.

  1. Join: receive the settings, build the model, join again with its digest.
  2. Ask for the next task (a long poll).
  3. SCORE        score every masked weight on one or more minibatches; upload the scores
     TRAIN        test the base, train inside the mask; upload the kept values
     EVALUATE     test the base; report the result
     PERSONALIZE  train the final model on this site's data, store it; report both results
     FINISH       store the final model; leave
  4. Open the next long poll *before* uploading, so that the coordinator can push the next round's
     values at once. Go to 3.

After any failure the client joins again. A finished result is kept on disk and sent first, a broken
download resumes where it stopped, and nothing is computed twice.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from ssfl.client.client_stats import ClientStats
from ssfl.client.coding import (
    ENCODINGS,
    EncodedPayload,
    write_initial,
    write_scores,
    write_update,
)
from ssfl.client.connection import UNARY_TIMEOUT_S, ReconnectBackoff, Watchdog
from ssfl.client.download import Download, Downloads
from ssfl.client.errors import Refused, Resync, Unavailable, reason_of, translate
from ssfl.client.held_model import HeldModel
from ssfl.client.local_state import EndedRun, LocalState, PendingUpload
from ssfl.client.local_work import Site
from ssfl.client.messages import enum_name, evaluation_message, scoring_request
from ssfl.client.progress import ProgressReporter, StepOver
from ssfl.client.run_settings import read_settings
from ssfl.client.upload import send
from ssfl.durable.failpoints import failpoint
from ssfl.method.controls import client_random_mask
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.method.settings import RunSettings
from ssfl.program.model_io.safetensors_model import write_model
from ssfl.program.version import ssfl_version
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import saliency_pb2, transfer_pb2, update_pb2

log = logging.getLogger("ssfl.client")

PROTOCOL_VERSION = 1
ENDED_RETRY_S = 20.0  # after a crash at the end of a run: try the coordinator for this long
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a client sends about itself in Join."""

    client_id: str
    num_samples: int
    fingerprint: str
    class_counts: dict[int, int]  # empty unless the site shares them
    labels: tuple[int, ...] = ()  # classes of the shard; empty unless the site shares them


class Agent:
    """One client, from Join to the final model."""

    def __init__(
        self,
        stub: Any,
        identity: Identity,
        local: LocalState,
        backoff: ReconnectBackoff,
        build_site: Callable[[RunSettings, Manifest | None], Site],
        out_dir: Path,
        stats: ClientStats | None = None,
    ) -> None:
        self._stub = stub
        self._identity = identity
        self._local = local
        self._backoff = backoff
        self._build_site = build_site
        self._out_dir = out_dir
        self._stats = stats or ClientStats()
        self._caller = pb.Caller()
        self._run_id = ""  # the run that the site was built for
        self._site: Site | None = None
        self._settings = RunSettings()
        self._watchdog = Watchdog(self._settings.no_progress_s)
        self._downloads: Downloads | None = None
        self._held: HeldModel | None = None
        self._pending: PendingUpload | None = None
        self._granted = False  # the task came with a slot; a second try waits for a grant

    def run(self) -> Path | None:
        """Take part until the run is over; return the folder of the final model, if any."""
        while True:
            try:
                self._join()
                return self._work()
            except Unavailable as error:
                if self._backoff.failed_for(ENDED_RETRY_S) and (ended := self._local.ended()):
                    log.info(
                        "the run is over for this client and the coordinator does not answer: "
                        "nothing is left to do",
                        extra={"run": ended.run_id},
                    )
                    return ended.folder
                self._backoff.wait(error)
            except Resync as error:
                log.info("joining again: %s", error)
                self._backoff.pause()

    def leave(self, why: str) -> None:
        """Leave the run, so that the coordinator does not wait for this client."""
        self._call_leave(pb.LEAVE_REASON_STOPPING, why)

    # -- 1. join

    def _join(self) -> None:
        response = self._join_call()
        while response.run_id != self._run_id:
            self._enter(response)
            response = self._join_call()
        pending = self._pending or self._local.load()
        self._pending = pending if pending and pending.run_id == self._run_id else None
        self._stats.joined()

    def _enter(self, response: pb.JoinResponse) -> None:
        """Build the model of a run that is new to this client."""
        settings = read_settings(response.settings)
        log.info("joined", extra={"run": response.run_id})
        self._run_id = response.run_id
        if (ended := self._local.ended()) and ended.run_id != response.run_id:
            self._local.forget_ended()
        known = Manifest.from_json(response.manifest) if response.manifest else None
        self._site = self._build_site(settings, known)
        self._watchdog = Watchdog(settings.no_progress_s)
        self._downloads = Downloads(
            self._watchdog, self._site.manifest, self._backoff.reached, stats=self._stats
        )
        self._settings = settings
        self._held = HeldModel(self._site.manifest, self._site.initial, self._own_mask)

    def _join_call(self) -> pb.JoinResponse:
        """Join with the site's model; raise Refused if the run has another model."""
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
            return self._call_join(manifest, whole=True)  # the refusal names the tensor
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
            encodings=ENCODINGS,
            labels=self._identity.labels,
            software=f"ssfl {ssfl_version()}",
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
                self._send_pending()
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
                case "personalize":
                    self._personalize(download)
                case "finish":
                    return self._finish(download)
                case _:
                    raise Refused("the coordinator asks for work that this version does not know")

    def _ask(self) -> Any:
        """Open the long poll."""
        assert self._downloads is not None and self._held is not None
        request = pb.NextTaskRequest(
            caller=self._caller,
            finished_step=self._pending.step if self._pending else 0,
            **self._held.held_digests(),
            **self._downloads.resume_fields(),
        )
        return self._stub.NextTask(request)

    def _send_pending(self) -> None:
        """Upload the pending result, if any."""
        pending = self._pending
        if pending is None:
            return
        request: Any
        if pending.kind == "scores":
            rpc = self._stub.ReportSaliency
            report = saliency_pb2.SaliencyReport.FromString(pending.header)
            request = pb.ReportSaliencyRequest(caller=self._caller, header=report)
        else:
            rpc = self._stub.SendUpdate
            update = update_pb2.SparseUpdate.FromString(pending.header)
            request = pb.SendUpdateRequest(caller=self._caller, header=update)
        granted, self._granted = self._granted, False
        try:
            outcome = send(
                rpc, request, pending.payload, self._watchdog,
                wait_for_grant=not granted, reached=self._backoff.reached, stats=self._stats,
            )  # fmt: skip
        except Resync:
            self._drop_pending()
            raise
        failpoint("client.receipt")
        name = enum_name(outcome)
        self._stats.results[name] += 1
        log.info("%s sent", pending.kind, extra={"step": pending.step, "outcome": name})
        if outcome in (transfer_pb2.OUTCOME_ACCEPTED, transfer_pb2.OUTCOME_ALREADY_ACCEPTED):
            self._local.commit_residual()
        self._drop_pending()

    def _drop_pending(self) -> None:
        self._pending = None
        self._local.drop()
        failpoint("client.dropped")

    def _keep_pending(
        self,
        kind: str,
        step: int,
        header: bytes,
        coded: EncodedPayload,
        round_number: int = 0,
        *,
        granted: bool = False,
    ) -> None:
        self._pending = PendingUpload(self._run_id, kind, step, header, coded.data)
        self._granted = granted
        mask_digest = self._held.mask_digest if self._held else b""
        self._local.save(self._pending, mask_digest, round_number, coded.residual)
        failpoint("client.saved")

    def _initialize(self) -> None:
        assert self._site is not None
        log.info("describing the model to the coordinator")
        manifest, digest = self._site.manifest, values_digest(self._site.initial)
        header = pb.InitialModel(manifest=manifest.json, initial_digest=digest)
        payload = memoryview(b"")
        if not manifest.rebuildable:
            coded = write_initial(self._site.initial)
            payload = coded.data
            header.initial.CopyFrom(coded.payload)
        request = pb.SendInitialRequest(caller=self._caller, header=header)
        send(self._stub.SendInitial, request, payload, self._watchdog)

    def _score(self, download: Download) -> None:
        assert self._site is not None and self._held is not None
        work, step = download.task.score, download.task.step
        request = scoring_request(work, *self._held.model_to_score(download, work))
        began_s = time.monotonic()
        with self._working("score", step):
            scores = self._site.score(request)
        failpoint("client.scored")
        coded = write_scores(scores, work, self._settings, self._identity.client_id)
        report = saliency_pb2.SaliencyReport(
            manifest_digest=work.manifest_digest,
            initial_digest=work.initial_digest,
            step=step,
            num_samples=self._identity.num_samples,
            scores=coded.payload,
            work_s=time.monotonic() - began_s,
        )
        self._keep_pending("scores", step, report.SerializeToString(), coded)

    def _train(self, download: Download) -> None:
        assert self._site is not None and self._held is not None
        work, step = download.task.train, download.task.step
        mask, base = self._held.mask_and_base(download, work)
        began_s = time.monotonic()
        try:
            with self._working("train", step) as progress:
                trained = self._site.train(mask, base, work.round_number, progress.on_step)
        except StepOver:
            log.info("round closed before training ended", extra={"round": work.round_number})
            return
        failpoint("client.trained")
        self._stats.training_loss = trained.training_loss
        residual = self._local.residual(self._run_id, mask.digest, work.round_number)
        coded = write_update(
            trained.values, base, work, self._settings, self._identity.client_id, residual
        )
        update = update_pb2.SparseUpdate(
            mask_digest=work.mask.mask_digest,
            mask_epoch=work.mask.mask_epoch,
            base_digest=work.base_digest,
            step=step,
            round_number=work.round_number,
            attempt=work.attempt,
            num_samples=self._identity.num_samples,
            values=coded.payload,
            base_evaluation=evaluation_message(trained.base),
            personal_evaluation=evaluation_message(trained.personal),
            training_loss=trained.training_loss,
            work_s=time.monotonic() - began_s,
            coding_error=coded.error,
        )
        log.info(
            "trained",
            extra={
                "round": work.round_number,
                "loss": round(trained.training_loss, 4),
                "values": enum_name(coded.payload.encoding, transfer_pb2.Encoding),
                "bytes": len(coded.data),
            },
        )
        header = update.SerializeToString()
        granted, number = work.upload_granted, work.round_number
        self._keep_pending("values", step, header, coded, number, granted=granted)

    def _evaluate(self, download: Download) -> None:
        assert self._site is not None and self._held is not None
        work, step = download.task.evaluate, download.task.step
        mask, base = self._held.mask_and_base(download, work)
        began_s = time.monotonic()
        with self._working("evaluate", step):
            tested = self._site.evaluate(mask, base)
        validation = tested.validation
        self._report(
            pb.ReportEvaluationRequest(
                caller=self._caller,
                step=step,
                evaluation=evaluation_message(tested.evaluation),
                validation=evaluation_message(validation) if validation else None,
                work_s=time.monotonic() - began_s,
            )
        )

    def _personalize(self, download: Download) -> None:
        assert self._site is not None and self._held is not None
        work, step = download.task.personalize, download.task.step
        mask, base = self._held.mask_and_base(download, work)
        began_s = time.monotonic()
        try:
            with self._working("personalize", step) as progress:
                own = self._site.personalize(mask, base, work.rounds_done, progress.on_step)
        except StepOver:
            log.info("the run ended before the personal model was trained")
            return
        folder = self._folder() / "personal"
        folder.mkdir(parents=True, exist_ok=True)
        write_model(folder, self._site.manifest, mask, own.values)
        log.info("personal model stored", extra={"folder": str(folder)})
        self._report(
            pb.ReportEvaluationRequest(
                caller=self._caller,
                step=step,
                evaluation=evaluation_message(own.evaluation),
                personal=evaluation_message(own.personal),
                work_s=time.monotonic() - began_s,
            )
        )

    @contextmanager
    def _working(self, work: str, step: int) -> Iterator[ProgressReporter]:
        """Report progress during the work and measure its duration."""
        reporter = ProgressReporter(self._stub, self._caller, step, self._stats)
        with self._stats.work(work), reporter:
            yield reporter

    def _report(self, request: pb.ReportEvaluationRequest) -> None:
        try:
            self._stub.ReportEvaluation(request, timeout=UNARY_TIMEOUT_S)
        except grpc.RpcError as error:
            raise translate(error) from error

    def _finish(self, download: Download) -> Path | None:
        assert self._site is not None and self._held is not None
        work = download.task.finish
        folder = None
        if work.stopped:
            log.warning("an operator stopped the run", extra={"rounds_done": work.rounds_done})
        if work.base_digest:
            mask, values = self._held.mask_and_base(download, work)
            folder = self._folder()
            folder.mkdir(parents=True, exist_ok=True)
            write_model(folder, self._site.manifest, mask, values)
        self._local.save_ended(EndedRun(self._run_id, folder))
        self._call_leave(pb.LEAVE_REASON_FINISHED)
        failpoint("client.goodbye")
        return folder

    def _folder(self) -> Path:
        return self._out_dir / self._run_id / self._identity.client_id

    def _own_mask(self) -> Mask:
        """Return the mask of this client in a run where every client has its own."""
        assert self._site is not None
        settings, name = self._settings, self._identity.client_id
        return client_random_mask(self._site.manifest, settings.sparsity, settings.seed, name)

    def _call_leave(self, reason: pb.LeaveReason, why: str = "") -> None:
        if not self._caller.session:
            return
        try:
            request = pb.LeaveRequest(caller=self._caller, reason=reason, detail=why[:200])
            self._stub.Leave(request, timeout=2.0)
        except grpc.RpcError as error:
            log.debug("the Leave call failed", extra={"error": str(error.code())})
