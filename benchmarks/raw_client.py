"""A client without a model: the protocol alone, so that what is measured is the coordinator.

It speaks as `ssfl-client` does (proto/ssfl/v1/coordinator.proto): Join, NextTask, grants,
chunks, receipts, the next long poll opened before the upload. What it uploads is handed in.
Each client has a TCP connection of its own.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from ssfl.codec import MAX_CHUNK_BYTES, ChunkSizer, Receiver, pieces
from ssfl.method.manifest import Manifest
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import coordinator_pb2_grpc, saliency_pb2, transfer_pb2, update_pb2

OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection per client, not one for all
    ("grpc.max_receive_message_length", 2 * MAX_CHUNK_BYTES),
    ("grpc.enable_http_proxy", 0),
]
MUST_READ = (
    transfer_pb2.ENCODING_VALUES_ONLY,
    transfer_pb2.ENCODING_DENSE,
    transfer_pb2.ENCODING_BITMASK,
    transfer_pb2.ENCODING_BITMASK_ZSTD,
)
TEST = update_pb2.Evaluation(correct=3, total=4, loss_sum=1.5)


@dataclass
class Task:
    """A task with its payloads, each checked against its digest."""

    message: pb.Task
    parts: dict[str, bytes] = field(default_factory=dict)  # "initial", "mask" or "base"

    @property
    def kind(self) -> str:
        return str(self.message.WhichOneof("work"))

    @property
    def work(self) -> Any:
        return getattr(self.message, self.kind)


class RawClient:
    """One client; `sent_bytes` counts the protobuf messages of its newest upload."""

    def __init__(
        self,
        address: str,
        client_id: str,
        num_samples: int,
        manifest: Manifest,
        encodings: Sequence[int] = MUST_READ,
    ) -> None:
        self.client_id = client_id
        self.num_samples = num_samples
        self.sent_bytes = 0
        self.received_bytes = 0  # protobuf messages of its newest task
        self._manifest = manifest
        self._encodings = encodings  # it announces; it reads no payload, and writes float32
        self._caller = pb.Caller()
        self._mask_digest = b""
        self._base_digest = b""
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._stub: Any = coordinator_pb2_grpc.CoordinatorServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def join(self) -> None:
        """Enter the run."""
        request = pb.JoinRequest(
            protocol_version=1,
            client_id=self.client_id,
            token=hashlib.sha256(self.client_id.encode()).digest()[:16],
            num_samples=self.num_samples,
            manifest_digest=self._manifest.digest,
            fingerprint="no training: numbers from a seed",
            encodings=self._encodings,  # type: ignore[arg-type]  # numbers of the enum
        )
        response = await self._stub.Join(request, wait_for_ready=True)
        self._caller = pb.Caller(
            run_id=response.run_id, client_id=self.client_id, session=response.session
        )

    async def initialize(self, initial_digest: bytes) -> None:
        """Answer INITIALIZE with a manifest whose weights follow from the seed."""
        header = pb.InitialModel(manifest=self._manifest.json, initial_digest=initial_digest)
        request = pb.SendInitialRequest(caller=self._caller, header=header)
        await self._upload(self._stub.SendInitial, request, memoryview(b""))

    def ask(self, initial_digest: bytes, finished_step: int = 0) -> Any:
        """Open the long poll."""
        request = pb.NextTaskRequest(
            caller=self._caller,
            finished_step=finished_step,
            initial_digest=initial_digest,
            mask_digest=self._mask_digest,
            base_digest=self._base_digest,
        )
        return self._stub.NextTask(request)

    async def ask_and_wait(self, initial_digest: bytes, finished_step: int = 0) -> Any:
        """Open the long poll where nothing is to do yet; return once the coordinator says so."""
        poll = self.ask(initial_digest, finished_step)
        answer = await poll.read()
        if answer is grpc.aio.EOF or answer.WhichOneof("part") != "waiting":
            raise RuntimeError(f"{self.client_id}: a task where none was expected")
        return poll

    async def receive(self, poll: Any) -> Task:
        """Return the task of a long poll, whole; heartbeats are passed over."""
        task: Task | None = None
        buffer, receiver = bytearray(), Receiver(0)
        self.received_bytes = 0
        while (response := await poll.read()) is not grpc.aio.EOF:
            part = response.WhichOneof("part")
            self.received_bytes += response.ByteSize() if part != "waiting" else 0
            if part == "task":
                task = Task(response.task)
                total = sum(payload.num_bytes for _, payload in _payloads(task))
                buffer, receiver = bytearray(total), Receiver(total)
            elif part == "chunk":
                chunk = response.chunk
                receiver.check(chunk.offset, chunk.data, chunk.crc32)
                buffer[chunk.offset : chunk.offset + len(chunk.data)] = chunk.data
        if task is None or not receiver.complete:
            raise RuntimeError(f"{self.client_id}: the long poll ended without a whole task")
        start = 0
        for name, payload in _payloads(task):
            task.parts[name] = bytes(buffer[start : start + payload.num_bytes])
            start += payload.num_bytes
            if hashlib.sha256(task.parts[name]).digest() != payload.digest:
                raise RuntimeError(f"{self.client_id}: {name} differs from its digest")
        if task.kind != "initialize" and task.work.HasField("mask"):
            self._mask_digest = task.work.mask.mask_digest
            self._base_digest = task.work.base_digest
        return task

    async def send_scores(
        self,
        task: Task,
        payload: memoryview,
        encoding: transfer_pb2.Encoding = transfer_pb2.ENCODING_DENSE,
    ) -> None:
        """Answer SCORE."""
        report = saliency_pb2.SaliencyReport(
            manifest_digest=task.work.manifest_digest,
            initial_digest=task.work.initial_digest,
            step=task.message.step,
            num_samples=self.num_samples,
            scores=_payload(encoding, payload),
            work_s=0.1,
        )
        request = pb.ReportSaliencyRequest(caller=self._caller, header=report)
        await self._upload(self._stub.ReportSaliency, request, payload)

    async def send_update(
        self,
        task: Task,
        payload: memoryview,
        encoding: transfer_pb2.Encoding = transfer_pb2.ENCODING_VALUES_ONLY,
    ) -> None:
        """Answer TRAIN."""
        work: pb.TrainTask = task.work
        update = update_pb2.SparseUpdate(
            mask_digest=work.mask.mask_digest,
            mask_epoch=work.mask.mask_epoch,
            base_digest=work.base_digest,
            step=task.message.step,
            round_number=work.round_number,
            attempt=work.attempt,
            num_samples=self.num_samples,
            values=_payload(encoding, payload),
            base_evaluation=TEST,
            personal_evaluation=TEST,
            training_loss=0.5,
            work_s=0.1,
        )
        request = pb.SendUpdateRequest(caller=self._caller, header=update)
        await self._upload(self._stub.SendUpdate, request, payload, granted=work.upload_granted)

    async def send_evaluation(self, task: Task) -> None:
        """Answer EVALUATE."""
        request = pb.ReportEvaluationRequest(
            caller=self._caller, step=task.message.step, evaluation=TEST, work_s=0.1
        )
        _check(self.client_id, (await self._stub.ReportEvaluation(request)).outcome)

    async def leave(self) -> None:
        """Say goodbye, the final model in hand."""
        reason = pb.LEAVE_REASON_FINISHED
        await self._stub.Leave(pb.LeaveRequest(caller=self._caller, reason=reason))

    async def _upload(
        self,
        rpc: Callable[[], Any],
        header: Any,
        payload: memoryview,
        *,
        granted: bool = False,
    ) -> None:
        """Send header and chunks (from the granted offset) and check the receipt."""
        call = rpc()
        self.sent_bytes = header.ByteSize()
        await call.write(header)
        if granted:
            await self._chunks(call, header, payload, 0)
        async for response in call:
            match response.WhichOneof("part"):
                case "grant" if not granted:
                    await self._chunks(call, header, payload, response.grant.offset)
                case "receipt":
                    await call.done_writing()
                    _check(self.client_id, response.receipt.outcome)
                    return
        raise RuntimeError(f"{self.client_id}: no receipt")

    async def _chunks(self, call: Any, header: Any, payload: memoryview, offset: int) -> None:
        for start, data, crc32 in pieces([payload], offset, ChunkSizer(time.monotonic)):
            chunk = transfer_pb2.Chunk(offset=start, data=bytes(data), crc32=crc32)
            request = type(header)(chunk=chunk)
            self.sent_bytes += request.ByteSize()
            await call.write(request)


def _payloads(task: Task) -> list[tuple[str, transfer_pb2.Payload]]:
    """Return the payloads that follow a task, by name, in their order."""
    work = task.work
    if task.kind == "initialize":
        return []
    of_scoring = ("initial", "resting") if task.kind == "score" else ()
    payloads = {name: getattr(work, name) for name in of_scoring if work.HasField(name)}
    if work.mask.HasField("mask"):
        payloads["mask"] = work.mask.mask
    if work.HasField("base"):
        payloads["base"] = work.base
    order = ("initial", "mask", "base", "resting")
    return [(name, payloads[name]) for name in order if name in payloads]


def _payload(encoding: transfer_pb2.Encoding, data: memoryview) -> transfer_pb2.Payload:
    return transfer_pb2.Payload(
        encoding=encoding, num_bytes=len(data), digest=hashlib.sha256(data).digest()
    )


def _check(client_id: str, outcome: transfer_pb2.Outcome) -> None:
    if outcome != transfer_pb2.OUTCOME_ACCEPTED:
        name = transfer_pb2.Outcome.Name(outcome)
        raise RuntimeError(f"{client_id}: {name} instead of OUTCOME_ACCEPTED")
