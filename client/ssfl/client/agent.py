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
updates are kept on disk until they are acknowledged, so they are sent again, not computed again. A
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
    check_strategy,
    read_settings,
    write_dense,
    write_reply,
    write_scores,
)
from ssfl.client.connection import UNARY_TIMEOUT_S, ReconnectBackoff, Watchdog
from ssfl.client.download import Download, Downloads
from ssfl.client.errors import Refused, Resync, Unavailable, reason_of, translate
from ssfl.client.held_model import HeldModel
from ssfl.client.local_state import EndedRun, LocalState, PendingUpload
from ssfl.client.local_work import Site, Vector, scoring_request
from ssfl.client.memory import residual_items, residual_of
from ssfl.client.progress import ProgressReporter, StepOver
from ssfl.client.upload import send
from ssfl.durable.failpoints import failpoint
from ssfl.method.evaluation import Evaluation
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.method.settings import RunSettings
from ssfl.program.model_io.safetensors_model import write_model
from ssfl.program.names import RUN_ID_RULE, is_run_id
from ssfl.program.printable import printable
from ssfl.program.version import ssfl_version
from ssfl.strategies.contract import ClientId, Received
from ssfl.strategies.registry import identity, strategy_for
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
        check_strategy(response.strategy, settings)
        known = Manifest.from_json(response.manifest) if response.manifest else None
        site = self.build_site(settings, known)
        name, manifest = self.identity.client_id, site.manifest
        strategy = strategy_for(settings)
        own_mask = partial(strategy.client_mask, ClientId(name), manifest)
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
            if joined is None or reason_of(error) not in ("join_again", "strategy_mismatch"):
                raise translate(error) from error
        try:
            response = self._send_join(None)
            if response.run_id != joined.run_id:
                return response
            # The refusal names the tensor, or the version of the strategy.
            return self._send_join(joined.site.manifest, whole=True)
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
            strategy=identity(self._joined.settings) if manifest and self._joined else "",
        )
        response: pb.JoinResponse = self.stub.Join(request, timeout=UNARY_TIMEOUT_S)
        if not is_run_id(response.run_id):  # it names the folder of the models
            raise Refused(
                f"the coordinator sent the run id '{printable(response.run_id[:100])}'; a run id "
                f"is {RUN_ID_RULE}: its operator must use an ssfl coordinator"
            )
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
            self._settle(download.task)
            kind = download.task.WhichOneof("work") or ""  # Downloads refuses a task without work
            if kind == "finish":
                return self._finish(download)
            handlers[kind](download)

    def _settle(self, task: pb.Task) -> None:
        """Promote or discard what the client stored for its last step."""
        counted = task.counted_step if task.HasField("counted_step") else None
        self.local.memory.settle(task.step, counted)

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
            self.local.memory.discard()
            self._drop_pending()
            raise
        failpoint("client.receipt")
        name = _name(transfer_pb2.Outcome, outcome)
        self.stats.results[name] += 1
        log.info("%s sent", pending.kind, extra={"step": pending.step, "outcome": name})
        if outcome not in (transfer_pb2.OUTCOME_ACCEPTED, transfer_pb2.OUTCOME_ALREADY_ACCEPTED):
            self.local.memory.discard()
        self._drop_pending()

    def _drop_pending(self) -> None:
        self._pending = None
        self.local.drop()
        failpoint("client.dropped")

    def _keep_pending(self, kind: str, step: int, header: Message, data: memoryview) -> None:
        message = header.SerializeToString()
        self._pending = PendingUpload(self._run.run_id, kind, step, message, data)
        self.local.save(self._pending)
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
        request = scoring_request(work, *self._run.held.model_to_score(download, work))
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
        self._keep_pending("scores", step, report, coded.data)

    def _train(self, download: Download) -> None:
        work, step, run = download.task.train, download.task.step, self._run
        received = run.held.received(download, work)
        items = self.local.memory.load(run.run_id, work.round_number)
        began_s = time.monotonic()
        try:
            with self._working("train", step) as progress:
                reply, puts = run.site.answer(received, items, progress.on_step)
        except StepOver:
            log.info("round closed before training ended", extra={"round": work.round_number})
            return
        failpoint("client.trained")
        trained = reply.trained
        self.stats.training_loss = trained.training_loss
        sent_mask = received.mask if reply.bits is None else reply.bits
        residual = residual_of({**items, **puts}, sent_mask)
        if residual is None:  # a version before this one may have left a residual
            residual = self.local.residual(run.run_id, sent_mask.digest, work.round_number)
        coded = write_reply(
            reply, received, work, run.settings, run.site.manifest, self.identity.client_id,
            residual,
        )  # fmt: skip
        puts |= residual_items(coded.residual, sent_mask)
        update = update_pb2.SparseUpdate(
            mask_digest=work.mask.mask_digest,
            mask_epoch=work.mask.mask_epoch,
            base_digest=work.base_digest,
            step=step,
            round_number=work.round_number,
            attempt=work.attempt,
            num_samples=self.identity.num_samples,
            base_evaluation=_evaluation_message(trained.base),
            personal_evaluation=_evaluation_message(trained.personal),
            training_loss=trained.training_loss,
            work_s=time.monotonic() - began_s,
            coding_error=coded.error,
        )
        update.MergeFrom(coded.header)
        log.info(
            "trained",
            extra={
                "round": work.round_number,
                "loss": round(trained.training_loss, 4),
                "values": _name(transfer_pb2.Encoding, update.values.encoding),
                "bytes": len(coded.data),
            },
        )
        if reply.bits is not None and strategy_for(run.settings).has_own_masks:
            run.held.hold_mask(reply.bits)
        self._granted = work.upload_granted
        self.local.memory.save_next(run.run_id, step, work.round_number, puts)
        self._keep_pending("values", step, update, coded.data)

    def _evaluate(self, download: Download) -> None:
        work, step = download.task.evaluate, download.task.step
        mask, base = self._run.held.mask_and_base(download, work)
        began_s = time.monotonic()
        with self._working("evaluate", step):
            tested = self._run.site.evaluate_global(mask, base)
        self._report(step, began_s, evaluation=tested.evaluation, validation=tested.validation)

    def _personalize(self, download: Download) -> None:
        work, step = download.task.personalize, download.task.step
        mask, base = self._run.held.mask_and_base(download, work)
        received = Received(mask, base, work.rounds_done)
        items = self.local.memory.load(self._run.run_id, work.rounds_done)
        began_s = time.monotonic()
        try:
            with self._working("personalize", step) as progress:
                mask, own = self._run.site.personal_model(received, items, progress.on_step)
        except StepOver:
            log.info("the run ended before the personal model was trained")
            return
        folder = self._write_model("personal", mask, own.values)
        log.info("personal model stored", extra={"folder": str(folder)})
        failpoint("client.personalized")
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
            final = self._run.held.mask_and_base(download, work)
            folder = self._write_model("", *self._run.site.deployed(*final))
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
