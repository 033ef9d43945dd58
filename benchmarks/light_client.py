"""Many clients in one process, without torch, that go through whatever happens.

A light client does what `ssfl-client` does when something breaks: it joins again, asks for the
rest of a download, keeps a finished answer and sends it, from the granted byte on, before anything
else. Its answers are made of whole numbers and quarters, so every sum of them is exact: whatever
happens to a federation of such clients, it ends with the model of the undisturbed one.

What a client saw is in its `story`: grants, receipts and joins, by step.
"""

import asyncio
import hashlib
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
from benchmarks.raw_client import MUST_READ, OPTIONS, TEST
from benchmarks.workload import digest

from ssfl.codec import Receiver
from ssfl.method.manifest import Manifest
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import coordinator_pb2_grpc, saliency_pb2, transfer_pb2, update_pb2

Vector = npt.NDArray[np.float32]
PAUSE_S = 0.05  # before joining again
SILENCE_S = 60.0  # a long poll hears of the coordinator every 15 s
UNARY_S = 20.0
# So long after it has the final model, a client begins to say goodbye once more: a coordinator that
# has noted it, and died before it answered, may end without hearing it again.
GOODBYE_S = 5.0
_TRY_AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DATA_LOSS,
)
_RESYNC = ("unknown_client", "join_again", "stale_base", "stale_mask")
# What grpc.aio itself, not the coordinator, says of a write into a wire that is cut just then. The
# coordinator's own internal errors have a reason and other words, and are raised.
_CUT_WHILE_WRITING = "Internal error from Core"
# The last: payloads of a renewed mask need it. The base is never coded for a client on loopback
# that does not say it holds the initial weights.
ENCODINGS = (*MUST_READ, transfer_pb2.ENCODING_REFERENCE)
_RECONNECT = [  # be back as soon as a coordinator is
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
]


class Broken(Exception):
    """The call ended before its answer was whole: join again."""


@dataclass
class Answer:
    """A finished upload, kept until there is a receipt."""

    step: int
    header: Any
    payload: bytes
    granted: bool  # a slot came with the task: the first try does not wait for a grant


@dataclass
class Download:
    """A task on its way in."""

    task: pb.Task
    buffer: bytearray
    receiver: Receiver


@dataclass(frozen=True)
class Told:
    """Something a client saw."""

    what: str  # join, grant, receipt, task
    step: int = 0
    number: int = 0  # the granted offset, the outcome


@dataclass
class LightClient:
    """One client; `number` decides its answers."""

    address: str
    number: int
    manifest: Manifest
    initial: Vector
    chunk_bytes: int = 1 << 16
    story: list[Told] = field(default_factory=list)
    sent_bytes: dict[int, int] = field(default_factory=dict)  # payload bytes by step
    final_digest: bytes = b""

    def __post_init__(self) -> None:
        self.client_id = f"client_{self.number:03d}"
        self.num_samples = 1 + self.number % 7
        self._caller = pb.Caller()
        self._answer: Answer | None = None
        self._download: Download | None = None
        self._base = b""
        self._mask_digest = b""
        self._patient_until_s = 0.0

    async def take_part(self) -> None:
        """Be in the run until its end, whatever happens."""
        async with grpc.aio.insecure_channel(self.address, options=OPTIONS + _RECONNECT) as channel:
            stub: Any = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
            while True:
                try:
                    await self._join(stub)
                    await self._work(stub)
                    return
                except (grpc.RpcError, Broken, TimeoutError) as error:
                    self._take_in(error)
                    if self.final_digest and time.monotonic() > self._patient_until_s:
                        return
                    await asyncio.sleep(PAUSE_S)

    def tells(self, what: str) -> list[Told]:
        """Return what the client saw of one kind."""
        return [told for told in self.story if told.what == what]

    def _take_in(self, error: Exception) -> None:
        """Go on after what the agent goes on after; raise the rest."""
        if isinstance(error, grpc.RpcError) and error.code() not in _TRY_AGAIN:
            reason = dict(error.trailing_metadata() or ()).get("ssfl-reason", "")
            if not reason and error.details() == _CUT_WHILE_WRITING:
                return
            if reason not in _RESYNC:
                raise error
            self._answer = None

    async def _join(self, stub: Any) -> None:
        request = pb.JoinRequest(
            protocol_version=1,
            client_id=self.client_id,
            token=hashlib.sha256(self.client_id.encode()).digest()[:16],
            num_samples=self.num_samples,
            manifest_digest=self.manifest.digest,
            fingerprint="whole numbers",
            encodings=ENCODINGS,
        )
        response = await stub.Join(request, timeout=UNARY_S)
        self._caller = pb.Caller(
            run_id=response.run_id, client_id=self.client_id, session=response.session
        )
        self.story.append(Told("join"))

    async def _work(self, stub: Any) -> None:
        while True:
            poll = stub.NextTask(self._question())  # before the upload, as the agent does
            try:
                await self._send_answer(stub)
                task, parts = await self._receive(poll)
            finally:
                poll.cancel()
            kind = str(task.WhichOneof("work"))
            self.story.append(Told(kind, task.step))
            if kind in ("train", "evaluate", "finish"):
                self._take_model(getattr(task, kind), parts)
            match kind:
                case "initialize":
                    await self._initialize(stub)
                case "score":
                    self._score(task)
                case "train":
                    self._train(task)
                case "evaluate":
                    await self._evaluate(stub, task)
                case "finish":
                    await self._finish(stub)
                    return
                case _:
                    raise AssertionError(f"an unexpected task: {kind}")

    def _question(self) -> pb.NextTaskRequest:
        download = self._download
        return pb.NextTaskRequest(
            caller=self._caller,
            finished_step=self._answer.step if self._answer else 0,
            mask_digest=self._mask_digest,
            base_digest=hashlib.sha256(self._base).digest() if self._base else b"",
            task_digest=download.task.task_digest if download else b"",
            offset=download.receiver.offset if download else 0,
        )

    async def _receive(self, poll: Any) -> tuple[pb.Task, dict[str, bytes]]:
        """Return the task of a long poll with its payloads; a broken one is kept."""
        while True:
            async with asyncio.timeout(SILENCE_S):
                response = await poll.read()
            if response is grpc.aio.EOF:
                break
            match response.WhichOneof("part"):
                case "task":
                    self._begin(response.task)
                case "chunk":
                    self._chunk(response.chunk)
        download = self._download
        if download is None or not download.receiver.complete:
            raise Broken(f"the task was not whole: {await poll.code()}")
        self._download = None
        parts, start = {}, 0
        for name, payload in payloads_of(download.task):
            parts[name] = bytes(download.buffer[start : start + payload.num_bytes])
            start += payload.num_bytes
            if hashlib.sha256(parts[name]).digest() != payload.digest:
                raise AssertionError(f"{self.client_id}: {name} differs from its digest")
        return download.task, parts

    def _begin(self, task: pb.Task) -> None:
        before = self._download
        same = before is not None and before.task.task_digest == task.task_digest
        if before and same and task.offset == before.receiver.offset:
            return
        total = sum(payload.num_bytes for _, payload in payloads_of(task))
        self._download = Download(task, bytearray(total), Receiver(total))

    def _chunk(self, chunk: transfer_pb2.Chunk) -> None:
        assert self._download is not None
        self._download.receiver.check(chunk.offset, chunk.data, chunk.crc32)
        self._download.buffer[chunk.offset : chunk.offset + len(chunk.data)] = chunk.data

    def _take_model(self, work: Any, parts: dict[str, bytes]) -> None:
        self._base = parts.get("base", self._base)
        self._mask_digest = work.mask.mask_digest
        if hashlib.sha256(self._base).digest() != work.base_digest:
            raise AssertionError(f"{self.client_id}: another base than the task names")

    async def _initialize(self, stub: Any) -> None:
        header = pb.InitialModel(manifest=self.manifest.json, initial_digest=digest(self.initial))
        request = pb.SendInitialRequest(caller=self._caller, header=header)
        await self._upload(stub.SendInitial, request, Answer(0, header, b"", granted=False))

    def _score(self, task: pb.Task) -> None:
        """Whole numbers that differ from client to client and from mask to mask."""
        work = task.score
        places = np.arange(self.manifest.num_masked)
        scores = places * (self.number + 3 + 11 * work.scoring_epoch) % 997
        data = scores.astype("<f4").tobytes()
        header = saliency_pb2.SaliencyReport(
            manifest_digest=work.manifest_digest,
            initial_digest=work.initial_digest,
            step=task.step,
            num_samples=self.num_samples,
            scores=_payload(transfer_pb2.ENCODING_DENSE, data),
        )
        self._answer = Answer(task.step, header, data, granted=False)

    def _train(self, task: pb.Task) -> None:
        """Add quarters that differ from client to client and from round to round."""
        work = task.train
        base = np.frombuffer(self._base, dtype="<f4")
        delta = np.float32(0.25 * ((7 * self.number + 13 * work.round_number) % 17 - 8))
        data = (base + delta).astype("<f4").tobytes()
        header = update_pb2.SparseUpdate(
            mask_digest=work.mask.mask_digest,
            mask_epoch=work.mask.mask_epoch,
            base_digest=work.base_digest,
            step=task.step,
            round_number=work.round_number,
            attempt=work.attempt,
            num_samples=self.num_samples,
            values=_payload(transfer_pb2.ENCODING_VALUES_ONLY, data),
            base_evaluation=TEST,
            personal_evaluation=TEST,
            training_loss=0.5,
        )
        self._answer = Answer(task.step, header, data, granted=work.upload_granted)

    async def _evaluate(self, stub: Any, task: pb.Task) -> None:
        request = pb.ReportEvaluationRequest(caller=self._caller, step=task.step, evaluation=TEST)
        await stub.ReportEvaluation(request, timeout=UNARY_S)

    async def _finish(self, stub: Any) -> None:
        if not self.final_digest:
            self.final_digest = hashlib.sha256(self._base).digest()
            self._patient_until_s = time.monotonic() + GOODBYE_S
        reason = pb.LEAVE_REASON_FINISHED
        await stub.Leave(pb.LeaveRequest(caller=self._caller, reason=reason), timeout=UNARY_S)

    async def _send_answer(self, stub: Any) -> None:
        answer = self._answer
        if answer is None:
            return
        request: Any
        if isinstance(answer.header, saliency_pb2.SaliencyReport):
            request = pb.ReportSaliencyRequest(caller=self._caller, header=answer.header)
            rpc = stub.ReportSaliency
        else:
            request = pb.SendUpdateRequest(caller=self._caller, header=answer.header)
            rpc = stub.SendUpdate
        await self._upload(rpc, request, answer)
        self._answer = None

    async def _upload(self, rpc: Any, request: Any, answer: Answer) -> None:
        """Send header and chunks, from the granted byte on; note the receipt."""
        granted, answer.granted = answer.granted, False  # a second try waits, to go on
        call = rpc()
        try:
            await call.write(request)
            if granted:
                await self._chunks(call, request, answer, 0)
            while True:
                async with asyncio.timeout(SILENCE_S):
                    response = await call.read()
                if response is grpc.aio.EOF:
                    raise Broken(f"no receipt: {await call.code()}")
                match response.WhichOneof("part"):
                    case "grant":
                        self.story.append(Told("grant", answer.step, response.grant.offset))
                        if not granted:
                            await self._chunks(call, request, answer, response.grant.offset)
                    case "receipt":
                        told = Told("receipt", answer.step, response.receipt.outcome)
                        self.story.append(told)
                        async with asyncio.timeout(SILENCE_S):
                            await call.code()  # the coordinator ends the call, as for anybody
                        return
        except asyncio.InvalidStateError:  # of a write into a call that is over
            raise Broken("the upload was cut") from None
        finally:
            call.cancel()

    async def _chunks(self, call: Any, request: Any, answer: Answer, offset: int) -> None:
        for chunk in _cut(answer.payload, offset, self.chunk_bytes):
            await call.write(type(request)(chunk=chunk))
            so_far = self.sent_bytes.get(answer.step, 0)
            self.sent_bytes[answer.step] = so_far + len(chunk.data)


def payloads_of(task: pb.Task) -> list[tuple[str, transfer_pb2.Payload]]:
    """Return the payloads that follow a task, by name, in their order."""
    kind = str(task.WhichOneof("work"))
    work = getattr(task, kind)
    if kind == "initialize":
        return []
    found = [("mask", work.mask.mask)] if work.mask.HasField("mask") else []
    found += [("base", work.base)] if work.HasField("base") else []
    if kind == "score":
        first = [("initial", work.initial)] if work.HasField("initial") else []
        last = [("resting", work.resting)] if work.HasField("resting") else []
        found = first + found + last
    return found


def _payload(encoding: transfer_pb2.Encoding, data: bytes) -> transfer_pb2.Payload:
    return transfer_pb2.Payload(
        encoding=encoding, num_bytes=len(data), digest=hashlib.sha256(data).digest()
    )


def _cut(data: bytes, offset: int, size: int) -> Iterator[transfer_pb2.Chunk]:
    for start in range(offset, len(data), size):
        piece = data[start : start + size]
        yield transfer_pb2.Chunk(offset=start, data=piece, crc32=zlib.crc32(piece))
