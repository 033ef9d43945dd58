"""Simulated clients that follow the protocol and keep the same data on disk as real clients.

They use the payload code and the memory of the real client. Their work is arithmetic (site.py).
"""

import asyncio
import hashlib
import random
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from simulation.checker import Checker, Made
from simulation.model import correct_of, initial_values, manifest_json, scores_of
from simulation.network import Call, Failed
from simulation.site import (
    MEMORY,
    Answer,
    Site,
    honest_reply,
    payload_of,
    places_of,
    request_of,
    update_header,
)
from ssfl.client.coding import write_dense, write_reply
from ssfl.client.connection import Watchdog
from ssfl.client.download import Download, Downloads
from ssfl.client.errors import Resync, Unavailable, translate
from ssfl.client.held_model import HeldModel
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.strategies.registry import identity, strategy_for
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import saliency_pb2, transfer_pb2, update_pb2

Vector = npt.NDArray[np.float32]
SILENCE_S, UNARY_S, PROGRESS_S = 45.0, 30.0, 10.0
CHUNK_BYTES = 64
ACCEPTED = (transfer_pb2.OUTCOME_ACCEPTED, transfer_pb2.OUTCOME_ALREADY_ACCEPTED)


class Around(Protocol):
    """The part of the world that an agent uses."""

    rng: random.Random
    checker: Checker
    settings: RunSettings
    initial_is_sent: bool

    def call(self, client: str, host: str, method: str) -> Call: ...
    def say(self, who: str, what: str) -> None: ...
    def work_s(self) -> float: ...
    def session_count(self, client: str, number: int) -> int: ...


class Agent:
    """One process of a client."""

    def __init__(self, site: Site, world: Around) -> None:
        self.site = site
        self.is_uploading = False
        self.caller = pb.Caller()
        self.asked: pb.Task | None = None  # the newest TRAIN task
        # Faults to inject before the next TRAIN task (faults.py).
        self.before_training: Callable[[], Awaitable[None]] | None = None
        self.world = world
        self._checker = world.checker
        self._run_id = ""
        self._pause_s = 0.5
        self._manifest = Manifest.from_json(manifest_json(sent=world.initial_is_sent))
        self._initial = initial_values(sent=world.initial_is_sent)
        self._held = HeldModel(self._manifest, self._initial, _no_own_mask)
        self._downloads = Downloads(Watchdog(SILENCE_S), self._manifest)
        self._granted = False
        self._keeps = strategy_for(world.settings).has_client_half  # something between steps

    async def run(self) -> None:
        """Take part until the final model is received."""
        while True:
            try:
                await self._join()
                await self._work()
                return
            except Unavailable:
                await asyncio.sleep(self.world.rng.uniform(0.1, self._pause_s))
                self._pause_s = min(2 * self._pause_s, 30.0)
            except Resync as error:
                self.world.say(self.site.name, f"joins again: {error}")
                await asyncio.sleep(self.world.rng.uniform(0.1, 0.5))

    # -- calls

    async def _unary(self, method: str, request: Any) -> Any:
        call = self._call(method)
        call.send(request)
        try:
            return await call.receive(UNARY_S)
        except Failed as error:
            raise translate(error) from error
        finally:
            call.cancel()

    def _call(self, method: str) -> Call:
        return self.world.call(self.site.name, self.site.host, method)

    async def upload(self, method: str, header: Any, payload: bytes, *, granted: bool) -> int:
        """Send a result; return its outcome."""
        call = self._call(method)
        call.send(header)
        try:
            if granted:
                await self._send_chunks(call, type(header), payload, 0)
            while response := await call.receive(SILENCE_S):
                match response.WhichOneof("part"):
                    case "grant" if not granted:
                        await self._send_chunks(call, type(header), payload, response.grant.offset)
                    case "receipt":
                        return int(response.receipt.outcome)
        except Failed as error:
            raise translate(error) from error
        finally:
            call.cancel()
        raise Unavailable("no receipt")

    async def _send_chunks(self, call: Call, message: Any, payload: bytes, offset: int) -> None:
        for start in range(offset, len(payload), CHUNK_BYTES):
            data = payload[start : start + CHUNK_BYTES]
            chunk = transfer_pb2.Chunk(offset=start, data=data, crc32=zlib.crc32(data))
            call.send(message(chunk=chunk))
            await asyncio.sleep(self.world.rng.uniform(0.0, 0.01))

    # -- join

    async def _join(self) -> None:
        response = await self._join_call(b"" if not self._run_id else self._manifest.digest)
        if response.run_id != self._run_id:
            if self._run_id:
                raise AssertionError("the run's name changed")
            self._run_id = response.run_id
            response = await self._join_call(self._manifest.digest)
        count = self.world.session_count(self.site.name, response.session)
        self.world.say(self.site.name, f"joined, session {count}")

    async def _join_call(self, manifest_digest: bytes) -> pb.JoinResponse:
        request = pb.JoinRequest(
            protocol_version=1,
            client_id=self.site.name,
            token=self.site.token,
            num_samples=self.site.num_samples,
            manifest_digest=manifest_digest,
            encodings=self.site.encodings,
            strategy=identity(self.world.settings) if manifest_digest else "",
        )
        response: pb.JoinResponse = await self._unary("Join", request)
        count = self.world.session_count(self.site.name, response.session)
        self._checker.joined(self.site.name, count)
        self.caller = pb.Caller(
            run_id=response.run_id, client_id=self.site.name, session=response.session
        )
        self.site.callers.append(self.caller)
        return response

    # -- work

    async def _work(self) -> None:
        while True:
            call = self._call("NextTask")
            call.send(self._question())
            try:
                await self._send_answer()
                download = await self._receive(call)
            finally:
                call.cancel()
            self._pause_s = 0.5
            self._settle(download.task)
            kind = str(download.task.WhichOneof("work"))
            self.world.say(self.site.name, f"is asked to {kind}, step {download.task.step}")
            if kind == "finish":
                await self._finish(download)
                return
            await getattr(self, f"_{kind}")(download)

    def _settle(self, task: pb.Task) -> None:
        if self._keeps:
            assert task.HasField("counted_step") or task.WhichOneof("work") == "initialize"
            self.site.memory.settle(task.step, task.counted_step)

    def _recall(self, step: int, round_number: int) -> Vector:
        """Return what the client keeps, for a step."""
        kept = self.site.memory.load(self._run_id, round_number).get(MEMORY)
        assert not isinstance(kept, Mask)
        self._checker.remembers(self.site.name, step, kept)
        return np.zeros(self._manifest.size, dtype=np.float32) if kept is None else kept

    def _question(self) -> pb.NextTaskRequest:
        return pb.NextTaskRequest(
            caller=self.caller,
            finished_step=self.site.answer.step if self.site.answer else 0,
            **self._held.held_digests(),
            **self._downloads.resume_fields(),
        )

    async def _receive(self, call: Call) -> Download:
        """Return a task with its payloads, as the real client's Downloads.receive does."""
        downloads = self._downloads
        try:
            while (response := await call.receive(SILENCE_S)) is not None:
                match response.WhichOneof("part"):
                    case "task":
                        downloads._begin(response.task)
                    case "chunk":
                        downloads._chunk(response.chunk)
        except Failed as error:
            raise translate(error) from error
        download, downloads.current = downloads.current, None
        if download is None or not download.receiver.complete:
            downloads.current = download
            raise Unavailable("the stream ended before the task was whole")
        for payload, part in zip(download.payloads, download.parts(), strict=True):
            assert hashlib.sha256(part).digest() == payload.digest, (
                "the coordinator sent a damaged payload"
            )
        return download

    async def _send_answer(self) -> None:
        answer = self.site.answer
        if answer is None:
            return
        method, request = request_of(answer, self.caller)
        granted, self._granted = self._granted, False
        self.is_uploading = True
        try:
            outcome = await self.upload(method, request, answer.payload, granted=granted)
        except Resync:
            self.site.memory.discard()
            self.site.answer = None
            raise
        finally:
            self.is_uploading = False
        word = transfer_pb2.Outcome.Name(outcome)
        self.world.say(self.site.name, f"has a receipt for step {answer.step}: {word}")
        if outcome in ACCEPTED:
            self._checker.acknowledged(self.site.name, answer.step, answer.digest, word)
        else:
            self.site.memory.discard()
        self.site.sent.append(answer)
        self.site.answer = None

    async def _busy(self, step: int) -> bool:
        """Work for a while with heartbeats; return True if the step is still open."""
        left_s = self.world.work_s()
        while left_s > 0:
            await asyncio.sleep(min(left_s, PROGRESS_S))
            left_s -= PROGRESS_S
            if left_s > 0:
                try:
                    request = pb.ProgressRequest(caller=self.caller, step=step, steps_all=10)
                    response = await self._unary("Progress", request)
                except (Unavailable, Resync):
                    continue
                if response.step_closed:
                    return False
        return True

    async def _initialize(self, _download: Download) -> None:
        header = pb.InitialModel(
            manifest=self._manifest.json,
            initial_digest=hashlib.sha256(self._initial.tobytes()).digest(),
        )
        payload = b""
        if not self._manifest.rebuildable:
            coded = write_dense(self._initial)
            payload = bytes(coded.data)
            header.initial.CopyFrom(coded.payload)
        request = pb.SendInitialRequest(caller=self.caller, header=header)
        await self.upload("SendInitial", request, payload, granted=False)
        self._checker.described()

    async def _score(self, download: Download) -> None:
        work, step = download.task.score, download.task.step
        whole, mask = self._held.model_to_score(download, work)
        digest = work.initial_digest.hex()
        self._told(step, "score", (mask.digest.hex() if mask else "", digest))
        if not await self._busy(step):
            return
        scores = scores_of(self.site.name, digest)
        assert scores.size == whole.size - self._manifest.num_unmasked
        data = scores.astype("<f4").tobytes()
        report = saliency_pb2.SaliencyReport(
            manifest_digest=work.manifest_digest,
            initial_digest=work.initial_digest,
            step=step,
            num_samples=self.site.num_samples,
            scores=payload_of(data, transfer_pb2.ENCODING_DENSE),
        )
        self._keep(
            Answer("scores", step, report.SerializeToString(), data),
            Made(self.site.name, "score", digest, 0, scores),
        )

    async def _train(self, download: Download) -> None:
        work, step = download.task.train, download.task.step
        received = self._held.received(download, work)
        mask, digest = received.mask, work.base_digest.hex()
        self._told(step, "train", (mask.digest.hex(), digest))
        self.asked = download.task
        if self.before_training is not None:
            confused, self.before_training = self.before_training, None
            await confused()
        if not await self._busy(step):
            return
        before = self._recall(step, work.round_number) if self._keeps else None
        reply, memory = honest_reply(self.site.name, received, digest, before)
        coded = write_reply(
            reply, received, work, self.world.settings, self._manifest, self.site.name, None
        )
        header = update_header(work, step, self.site.num_samples)
        header.MergeFrom(coded.header)
        answer = Answer("values", step, header.SerializeToString(), bytes(coded.data))
        if memory is not None:
            self.site.memory.save_next(self._run_id, step, work.round_number, {MEMORY: memory})
        kept = tuple(places_of(reply.bits)) if reply.bits else None
        values = reply.trained.values
        self._keep(
            answer,
            Made(self.site.name, "train", digest, work.round_number, values, True, kept, memory),
        )
        self._granted = work.upload_granted

    def _keep(self, answer: Answer, made: Made) -> None:
        """Store a finished result until it is acknowledged."""
        self._checker.made[self.site.name, answer.digest] = made
        self.site.answer = answer

    async def _evaluate(self, download: Download) -> None:
        work, step = download.task.evaluate, download.task.step
        await self._test(download, "evaluate", work, step)

    async def _personalize(self, download: Download) -> None:
        work, step = download.task.personalize, download.task.step
        await self._test(download, "personalize", work, step)

    async def _test(self, download: Download, kind: str, work: Any, step: int) -> None:
        mask, base = self._held.mask_and_base(download, work)
        digest = work.base_digest.hex()
        self._told(step, kind, (mask.digest.hex(), digest))
        assert base.size
        if self._keeps and kind == "personalize":
            self._recall(step, work.rounds_done)
        if not await self._busy(step):
            return
        correct = correct_of(self.site.name, digest)
        tested = update_pb2.Evaluation(correct=correct, total=10, loss_sum=10.0 - correct)
        request = pb.ReportEvaluationRequest(
            caller=self.caller,
            step=step,
            evaluation=tested,
            personal=tested if kind == "personalize" else None,
        )
        response = await self._unary("ReportEvaluation", request)
        if response.outcome in ACCEPTED:
            self._checker.acknowledged(self.site.name, step, "", "evaluation")

    def _told(self, step: int, work: str, digests: tuple[str, str]) -> None:
        self._checker.asked(self.site.name, step, work, digests)

    async def _finish(self, download: Download) -> None:
        work = download.task.finish
        if work.mask.mask_epoch:
            _, values = self._held.mask_and_base(download, work)
            self._checker.finished(self.site.name, values)
        self.site.has_final_model = True
        await self.leave(pb.LEAVE_REASON_FINISHED)

    async def leave(self, reason: Any) -> None:
        """Leave, without requiring an answer."""
        try:
            await self._unary("Leave", pb.LeaveRequest(caller=self.caller, reason=reason))
        except Unavailable:
            return
        self._checker.left(self.site.name)


def _no_own_mask() -> Mask:
    raise AssertionError("no client has a mask of its own here")
