"""The client's side of a run.

  1. Join: receive the settings, build the model, join again with its digest.
  2. Ask for the next task (a long poll).
  3. INITIALIZE   describe the model; upload its weights if they do not follow from the seed
     SCORE        score every masked weight on one or more minibatches; upload the scores
     TRAIN        test the base, train inside the mask; upload the kept values
     EVALUATE     test the base; report the result
     PERSONALIZE  train the final model on this site's data, store it; report both results
     FINISH       store the final model; leave
  4. Open the next long poll *before* uploading, so that the coordinator can push the next round's
     values at once. Go to 3.

After a lost connection, or if the coordinator asks for it, the client joins again. Scores and
updates are kept on disk until they are acknowledged: they are sent first and not computed again. A
broken download resumes where it stopped.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from ssfl.client.client_stats import ClientStats
from ssfl.client.coding import (
    ENCODINGS,
    EncodedPayload,
    read_settings,
    write_dense,
    write_scores,
    write_update,
)
from ssfl.client.connection import UNARY_TIMEOUT_S, ReconnectBackoff, Watchdog
from ssfl.client.download import Download, Downloads
from ssfl.client.errors import Resync, Unavailable, reason_of, translate
from ssfl.client.held_model import HeldModel
from ssfl.client.local_state import EndedRun, LocalState, PendingUpload
from ssfl.client.local_work import ScoringRequest, Site, Vector
from ssfl.client.progress import ProgressReporter, StepOver
from ssfl.client.upload import send
from ssfl.durable.failpoints import failpoint
from ssfl.learning.evaluate import Evaluation
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


@dataclass(frozen=True, slots=True)
class Identity:
    """What a client sends about itself in Join."""

    client_id: str
    num_samples: int
    fingerprint: str
    class_counts: dict[int, int]  # empty unless the site shares them
    labels: tuple[int, ...] = ()  # classes of the shard; empty unless the site shares them


@dataclass(frozen=True, eq=False)
class JoinedRun:
    """A run, and what this client has built for it."""

    run_id: str
    settings: RunSettings
    site: Site
    held: HeldModel
    downloads: Downloads


@dataclass
class Agent:
    """One client, from Join to the final model."""

    stub: Any
    identity: Identity
    local: LocalState
    backoff: ReconnectBackoff
    build_site: Callable[[RunSettings, Manifest | None], Site]
    out_dir: Path
    stats: ClientStats = field(default_factory=ClientStats)
    _caller: pb.Caller = field(default_factory=pb.Caller, init=False)
    _joined: JoinedRun | None = field(default=None, init=False)
    _pending: PendingUpload | None = field(default=None, init=False)
    # The task came with an upload slot for the first attempt; a second attempt waits for a grant.
    _granted: bool = field(default=False, init=False)

    def run(self) -> Path | None:
        """Take part until the run is over; return the folder of the final model, if any."""
        while True:
            try:
                self._join()
                return self._work()
            except Unavailable as error:
                if self.backoff.failed_for(ENDED_RETRY_S) and (ended := self.local.ended()):
                    log.info(
                        "the run is over for this client and the coordinator does not answer: "
                        "nothing is left to do",
                        extra={"run": ended.run_id},
                    )
                    return ended.folder
                self.backoff.wait(error)
            except Resync as error:
                log.info("joining again: %s", error)
                self.backoff.pause()

    def leave(self, why: str = "", reason: pb.LeaveReason = pb.LEAVE_REASON_STOPPING) -> None:
        """Leave the run, so that the coordinator does not wait for this client."""
        if not self._caller.session:
            return
        try:
            request = pb.LeaveRequest(caller=self._caller, reason=reason, detail=why[:200])
            self.stub.Leave(request, timeout=2.0)
        except grpc.RpcError as error:
            log.debug("the Leave call failed", extra={"error": str(error.code())})

    # -- 1. join

    @property
    def _run(self) -> JoinedRun:
        assert self._joined is not None
        return self._joined

    def _join(self) -> None:
        response = self._join_with_model()
        while not self._joined or response.run_id != self._joined.run_id:
            self._joined = self._enter(response)
            response = self._join_with_model()
        pending = self._pending or self.local.load()
        self._pending = pending if pending and pending.run_id == response.run_id else None
        self.stats.joined()

    def _enter(self, response: pb.JoinResponse) -> JoinedRun:
        """Build the model of a run that is new to this client."""
        settings = read_settings(response.settings)
        log.info("joined", extra={"run": response.run_id})
        if (ended := self.local.ended()) and ended.run_id != response.run_id:
            self.local.forget_ended()
        known = Manifest.from_json(response.manifest) if response.manifest else None
        site = self.build_site(settings, known)
        name, manifest = self.identity.client_id, site.manifest
        # The mask of this client in a run where every client has its own.
        own_mask = partial(client_random_mask, manifest, settings.sparsity, settings.seed, name)
        held = HeldModel(manifest, site.initial, own_mask)
        watchdog = Watchdog(settings.no_progress_s)
        downloads = Downloads(watchdog, manifest, self.backoff.reached, stats=self.stats)
        return JoinedRun(response.run_id, settings, site, held, downloads)

    def _join_with_model(self) -> pb.JoinResponse:
        """Join with the site's model, once it is built; raise Refused if the run has another."""
        joined = self._joined
        try:
            return self._send_join(joined.site.manifest if joined else None)
        except grpc.RpcError as error:
            if joined is None or reason_of(error) != "join_again":
                raise translate(error) from error
        try:
            response = self._send_join(None)
            if response.run_id != joined.run_id:
                return response
            return self._send_join(joined.site.manifest, whole=True)  # the refusal names the tensor
        except grpc.RpcError as error:
            raise translate(error) from error

    def _send_join(self, manifest: Manifest | None, *, whole: bool = False) -> pb.JoinResponse:
        request = pb.JoinRequest(
            protocol_version=PROTOCOL_VERSION,
            client_id=self.identity.client_id,
            token=self.local.token(),
            num_samples=self.identity.num_samples,
            manifest_digest=manifest.digest if manifest else b"",
            manifest=manifest.json if manifest and whole else b"",
            fingerprint=self.identity.fingerprint,
            class_counts=self.identity.class_counts,
            encodings=ENCODINGS,
            labels=self.identity.labels,
            software=f"ssfl {ssfl_version()}",
        )
        response: pb.JoinResponse = self.stub.Join(request, timeout=UNARY_TIMEOUT_S)
        self._caller = pb.Caller(
            run_id=response.run_id, client_id=self.identity.client_id, session=response.session
        )
        return response

    # -- 2. ask, 3. work, 4. ask again, then upload

    def _work(self) -> Path | None:
        handlers = {
            "initialize": self._initialize,
            "score": self._score,
            "train": self._train,
            "evaluate": self._evaluate,
            "personalize": self._personalize,
        }
        while True:
            call = self._ask()
            try:
                self._send_pending()
                download = self._run.downloads.receive(call)
            finally:
                call.cancel()
            kind = download.task.WhichOneof("work") or ""  # Downloads refuses a task without work
            if kind == "finish":
                return self._finish(download)
            handlers[kind](download)

    def _ask(self) -> Any:
        request = pb.NextTaskRequest(
            caller=self._caller,
            finished_step=self._pending.step if self._pending else 0,
            **self._run.held.held_digests(),
            **self._run.downloads.resume_fields(),
        )
        return self.stub.NextTask(request)

    def _send_pending(self) -> None:
        """Send the pending upload; server/rpc/upload_service.py answers."""
        pending = self._pending
        if pending is None:
            return
        request: Any
        if pending.kind == "scores":
            rpc = self.stub.ReportSaliency
            report = saliency_pb2.SaliencyReport.FromString(pending.header)
            request = pb.ReportSaliencyRequest(caller=self._caller, header=report)
        else:
            rpc = self.stub.SendUpdate
            update = update_pb2.SparseUpdate.FromString(pending.header)
            request = pb.SendUpdateRequest(caller=self._caller, header=update)
        granted, self._granted = self._granted, False
        try:
            outcome = send(
                rpc, request, pending.payload, self._run.downloads.watchdog,
                wait_for_grant=not granted, reached=self.backoff.reached, stats=self.stats,
            )  # fmt: skip
        except Resync:
            self._drop_pending()
            raise
        failpoint("client.receipt")
        name = _name(transfer_pb2.Outcome, outcome)
        self.stats.results[name] += 1
        log.info("%s sent", pending.kind, extra={"step": pending.step, "outcome": name})
        if outcome in (transfer_pb2.OUTCOME_ACCEPTED, transfer_pb2.OUTCOME_ALREADY_ACCEPTED):
            self.local.commit_residual()
        self._drop_pending()

    def _drop_pending(self) -> None:
        self._pending = None
        self.local.drop()
        failpoint("client.dropped")

    def _keep_pending(
        self, kind: str, step: int, header: Message, coded: EncodedPayload, round_number: int = 0
    ) -> None:
        data = header.SerializeToString()
        self._pending = PendingUpload(self._run.run_id, kind, step, data, coded.data)
        self.local.save(self._pending, self._run.held.mask_digest, round_number, coded.residual)
        failpoint("client.saved")

    def _initialize(self, _download: Download) -> None:
        log.info("describing the model to the coordinator")
        site = self._run.site
        digest = values_digest(site.initial)
        header = pb.InitialModel(manifest=site.manifest.json, initial_digest=digest)
        payload = memoryview(b"")
        if not site.manifest.rebuildable:
            coded = write_dense(site.initial)
            payload = coded.data
            header.initial.CopyFrom(coded.payload)
        request = pb.SendInitialRequest(caller=self._caller, header=header)
        send(self.stub.SendInitial, request, payload, self._run.downloads.watchdog)

    def _score(self, download: Download) -> None:
        work, step = download.task.score, download.task.step
        request = ScoringRequest.of(work, *self._run.held.model_to_score(download, work))
        began_s = time.monotonic()
        with self._working("score", step):
            scores = self._run.site.score(request)
        failpoint("client.scored")
        coded = write_scores(scores, work, self._run.settings, self.identity.client_id)
        report = saliency_pb2.SaliencyReport(
            manifest_digest=work.manifest_digest,
            initial_digest=work.initial_digest,
            step=step,
            num_samples=self.identity.num_samples,
            scores=coded.payload,
            work_s=time.monotonic() - began_s,
        )
        self._granted = False
        self._keep_pending("scores", step, report, coded)

    def _train(self, download: Download) -> None:
        work, step = download.task.train, download.task.step
        mask, base = self._run.held.mask_and_base(download, work)
        began_s = time.monotonic()
        try:
            with self._working("train", step) as progress:
                trained = self._run.site.train(mask, base, work.round_number, progress.on_step)
        except StepOver:
            log.info("round closed before training ended", extra={"round": work.round_number})
            return
        failpoint("client.trained")
        self.stats.training_loss = trained.training_loss
        residual = self.local.residual(self._run.run_id, mask.digest, work.round_number)
        coded = write_update(
            trained.values, base, work, self._run.settings, self.identity.client_id, residual
        )
        update = update_pb2.SparseUpdate(
            mask_digest=work.mask.mask_digest,
            mask_epoch=work.mask.mask_epoch,
            base_digest=work.base_digest,
            step=step,
            round_number=work.round_number,
            attempt=work.attempt,
            num_samples=self.identity.num_samples,
            values=coded.payload,
            base_evaluation=_evaluation_message(trained.base),
            personal_evaluation=_evaluation_message(trained.personal),
            training_loss=trained.training_loss,
            work_s=time.monotonic() - began_s,
            coding_error=coded.error,
        )
        log.info(
            "trained",
            extra={
                "round": work.round_number,
                "loss": round(trained.training_loss, 4),
                "values": _name(transfer_pb2.Encoding, coded.payload.encoding),
                "bytes": len(coded.data),
            },
        )
        self._granted = work.upload_granted
        self._keep_pending("values", step, update, coded, work.round_number)

    def _evaluate(self, download: Download) -> None:
        work, step = download.task.evaluate, download.task.step
        mask, base = self._run.held.mask_and_base(download, work)
        began_s = time.monotonic()
        with self._working("evaluate", step):
            tested = self._run.site.evaluate(mask, base)
        self._report(step, began_s, evaluation=tested.evaluation, validation=tested.validation)

    def _personalize(self, download: Download) -> None:
        work, step = download.task.personalize, download.task.step
        mask, base = self._run.held.mask_and_base(download, work)
        began_s = time.monotonic()
        try:
            with self._working("personalize", step) as progress:
                own = self._run.site.personalize(mask, base, work.rounds_done, progress.on_step)
        except StepOver:
            log.info("the run ended before the personal model was trained")
            return
        folder = self._write_model("personal", mask, own.values)
        log.info("personal model stored", extra={"folder": str(folder)})
        self._report(step, began_s, evaluation=own.base, personal=own.personal)

    @contextmanager
    def _working(self, work: str, step: int) -> Iterator[ProgressReporter]:
        """Report progress during the work and measure its duration."""
        reporter = ProgressReporter(self.stub, self._caller, step, self.stats)
        with self.stats.work(work), reporter:
            yield reporter

    def _report(self, step: int, began_s: float, **tested: Evaluation | None) -> None:
        request = pb.ReportEvaluationRequest(
            caller=self._caller,
            step=step,
            work_s=time.monotonic() - began_s,
            **{name: _evaluation_message(one) for name, one in tested.items() if one},
        )
        try:
            self.stub.ReportEvaluation(request, timeout=UNARY_TIMEOUT_S)
        except grpc.RpcError as error:
            raise translate(error) from error

    def _finish(self, download: Download) -> Path | None:
        work = download.task.finish
        folder = None
        if work.stopped:
            log.warning("an operator stopped the run", extra={"rounds_done": work.rounds_done})
        if work.base_digest:
            folder = self._write_model("", *self._run.held.mask_and_base(download, work))
        self.local.save_ended(EndedRun(self._run.run_id, folder))
        self.leave(reason=pb.LEAVE_REASON_FINISHED)
        failpoint("client.goodbye")
        return folder

    def _write_model(self, subfolder: str, mask: Mask, values: Vector) -> Path:
        folder = self.out_dir / self._run.run_id / self.identity.client_id / subfolder
        folder.mkdir(parents=True, exist_ok=True)
        write_model(folder, self._run.site.manifest, mask, values)
        return folder


def _evaluation_message(evaluation: Evaluation) -> update_pb2.Evaluation:
    return update_pb2.Evaluation(**asdict(evaluation))


def _name(enum: Any, value: int) -> str:
    """Return the name of an enum value in lower case, without the prefix of its enum."""
    return str(enum.Name(value)).removeprefix(f"{enum.DESCRIPTOR.name.upper()}_").lower()
