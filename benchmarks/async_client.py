"""An asynchronous client written from the protocol alone, for many clients in one process.

It implements Join, NextTask, grants, chunks and receipts from proto/ssfl/v1/coordinator.proto and
uses nothing of `ssfl.client`. The caller supplies what it uploads, so a benchmark measures the
coordinator. A broken download continues with the next long poll. Each client has its own TCP
connection. Its synchronous counterpart is tests/system/raw_client.py.
"""

import asyncio
import hashlib
import time
import zlib
from collections.abc import Iterator, Sequence
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
WORK_S = 0.1  # the work time that a client reports
Buffer = bytes | memoryview


class Broken(Exception):
    """A call ended early; the client must join again."""


@dataclass
class ReceivedTask:
    """A task with its payloads, each checked against its digest."""

    message: pb.Task
    parts: dict[str, bytes] = field(default_factory=dict)  # "initial", "mask", "base", "resting"

    @property
    def kind(self) -> str:
        return str(self.message.WhichOneof("work"))

    @property
    def work(self) -> Any:
        return getattr(self.message, self.kind)


@dataclass
class UploadState:
    """The state of an upload."""

    grants: list[int] = field(default_factory=list)  # granted offsets
    payload_bytes: int = 0
    message_bytes: int = 0  # protobuf messages


class _Download:
    """A task and the bytes of its payloads that have arrived."""

    def __init__(self, message: pb.Task) -> None:
        self.task = ReceivedTask(message)
        self.payloads = _payloads(self.task)
        total = sum(payload.num_bytes for _, payload in self.payloads)
        self.buffer, self.receiver = bytearray(total), Receiver(total)

    def add(self, chunk: transfer_pb2.Chunk) -> None:
        self.receiver.check(chunk.offset, chunk.data, chunk.crc32)
        self.buffer[chunk.offset : chunk.offset + len(chunk.data)] = chunk.data

    def whole(self) -> ReceivedTask:
        """Return the task with its payloads."""
        start = 0
        for name, payload in self.payloads:
            data = bytes(self.buffer[start : start + payload.num_bytes])
            start += payload.num_bytes
            if hashlib.sha256(data).digest() != payload.digest:
                raise AssertionError(f"{name} differs from its digest")
            self.task.parts[name] = data
        return self.task


class AsyncClient:
    """One client. `sent` describes its newest upload."""

    def __init__(
        self,
        address: str,
        client_id: str,
        num_samples: int,
        manifest: Manifest,
        encodings: Sequence[int] = MUST_READ,
        *,
        options: Sequence[tuple[str, int]] = (),
        chunk_bytes: int = 0,
        silence_s: float | None = None,
        unary_s: float | None = None,
    ) -> None:
        """`chunk_bytes` 0: sizes as in `ssfl-client`. Deadlines that are None do not apply."""
        self.client_id = client_id
        self.num_samples = num_samples
        self.sent = UploadState()
        self.received_bytes = 0  # protobuf messages of its newest task
        self._manifest = manifest
        self._encodings = encodings  # announced; it decodes no payload and sends float32
        self._chunk_bytes = chunk_bytes
        self._silence_s = silence_s
        self._unary_s = unary_s
        self._caller = pb.Caller()
        self._mask_digest = b""
        self._base_digest = b""
        self._download: _Download | None = None
        self._channel = grpc.aio.insecure_channel(address, options=[*OPTIONS, *options])
        self._stub: Any = coordinator_pb2_grpc.CoordinatorServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def join(self) -> None:
        """Join the run. Without a deadline for calls, wait for a coordinator."""
        request = pb.JoinRequest(
            protocol_version=1,
            client_id=self.client_id,
            token=hashlib.sha256(self.client_id.encode()).digest()[:16],
            num_samples=self.num_samples,
            manifest_digest=self._manifest.digest,
            fingerprint="no training: numbers from a seed",
            encodings=self._encodings,  # type: ignore[arg-type]  # numbers of the enum
        )
        response = await self._stub.Join(
            request, timeout=self._unary_s, wait_for_ready=self._unary_s is None
        )
        self._caller = pb.Caller(
            run_id=response.run_id, client_id=self.client_id, session=response.session
        )

    # -- tasks

    def ask(self, initial_digest: bytes = b"", finished_step: int = 0) -> Any:
        """Open the long poll; a broken download continues at its next byte."""
        download = self._download
        request = pb.NextTaskRequest(
            caller=self._caller,
            finished_step=finished_step,
            initial_digest=initial_digest,
            mask_digest=self._mask_digest,
            base_digest=self._base_digest,
            task_digest=download.task.message.task_digest if download else b"",
            offset=download.receiver.offset if download else 0,
        )
        return self._stub.NextTask(request)

    async def ask_and_wait(self, initial_digest: bytes, finished_step: int = 0) -> Any:
        """Open the long poll while there is no work; return once the coordinator has answered."""
        poll = self.ask(initial_digest, finished_step)
        answer = await poll.read()
        if answer is grpc.aio.EOF or answer.WhichOneof("part") != "waiting":
            raise RuntimeError(f"{self.client_id}: a task where none was expected")
        return poll

    async def receive(self, poll: Any) -> ReceivedTask:
        """Return the complete task of a long poll; keep the bytes of a broken one."""
        self.received_bytes = 0
        while (response := await self._read(poll)) is not grpc.aio.EOF:
            part = response.WhichOneof("part")
            self.received_bytes += response.ByteSize() if part != "waiting" else 0
            if part == "task" and not self._continues(response.task):
                self._download = _Download(response.task)
            elif part == "chunk":
                assert self._download is not None
                self._download.add(response.chunk)
        download = self._download
        if download is None or not download.receiver.complete:
            raise Broken(f"{self.client_id}: the task is incomplete: {await poll.code()}")
        self._download = None
        task = download.whole()
        if task.kind not in ("initialize", "score"):
            self._mask_digest = task.work.mask.mask_digest
            self._base_digest = task.work.base_digest
        return task

    def _continues(self, message: pb.Task) -> bool:
        download = self._download
        return (
            download is not None
            and download.task.message.task_digest == message.task_digest
            and download.receiver.offset == message.offset
        )

    async def _read(self, call: Any) -> Any:
        async with asyncio.timeout(self._silence_s):
            return await call.read()

    # -- answers

    def initial_header(self, initial_digest: bytes) -> pb.InitialModel:
        """Describe a model whose weights follow from the seed."""
        return pb.InitialModel(manifest=self._manifest.json, initial_digest=initial_digest)

    def scores_header(
        self,
        task: ReceivedTask,
        payload: Buffer,
        encoding: transfer_pb2.Encoding = transfer_pb2.ENCODING_DENSE,
    ) -> saliency_pb2.SaliencyReport:
        return saliency_pb2.SaliencyReport(
            manifest_digest=task.work.manifest_digest,
            initial_digest=task.work.initial_digest,
            step=task.message.step,
            num_samples=self.num_samples,
            scores=_payload(encoding, payload),
            work_s=WORK_S,
        )

    def update_header(
        self,
        task: ReceivedTask,
        payload: Buffer,
        encoding: transfer_pb2.Encoding = transfer_pb2.ENCODING_VALUES_ONLY,
    ) -> update_pb2.SparseUpdate:
        work: pb.TrainTask = task.work
        return update_pb2.SparseUpdate(
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
            work_s=WORK_S,
        )

    async def initialize(self, initial_digest: bytes) -> None:
        """Answer INITIALIZE; raise unless the answer is accepted."""
        self._check(await self.upload(self.initial_header(initial_digest), b""))

    async def send_scores(
        self,
        task: ReceivedTask,
        payload: Buffer,
        encoding: transfer_pb2.Encoding = transfer_pb2.ENCODING_DENSE,
    ) -> None:
        """Answer SCORE; raise unless the answer is accepted."""
        self._check(await self.upload(self.scores_header(task, payload, encoding), payload))

    async def send_update(
        self,
        task: ReceivedTask,
        payload: Buffer,
        encoding: transfer_pb2.Encoding = transfer_pb2.ENCODING_VALUES_ONLY,
    ) -> None:
        """Answer TRAIN; raise unless the answer is accepted."""
        header = self.update_header(task, payload, encoding)
        self._check(await self.upload(header, payload, granted=task.work.upload_granted))

    async def send_evaluation(self, task: ReceivedTask) -> None:
        """Answer EVALUATE; raise unless the answer is accepted."""
        self._check(await self.evaluation(task))

    async def evaluation(self, task: ReceivedTask) -> int:
        """Answer EVALUATE; return the outcome."""
        request = pb.ReportEvaluationRequest(
            caller=self._caller, step=task.message.step, evaluation=TEST, work_s=WORK_S
        )
        response = await self._stub.ReportEvaluation(request, timeout=self._unary_s)
        return int(response.outcome)

    async def leave(self) -> None:
        """Leave with the final model."""
        request = pb.LeaveRequest(caller=self._caller, reason=pb.LEAVE_REASON_FINISHED)
        await self._stub.Leave(request, timeout=self._unary_s)

    async def upload(self, header: Any, payload: Buffer, *, granted: bool = False) -> int:
        """Send a header and the chunks from the granted byte on; return the receipt's outcome.

        `granted`: the grant came with the task, so all chunks are sent at once.
        """
        self.sent = UploadState()
        rpc, message = self._rpc_of(header)
        call = rpc()
        try:
            await self._write(call, message(caller=self._caller, header=header))
            if granted:
                await self._send_chunks(call, message, payload, 0)
            while (response := await self._read(call)) is not grpc.aio.EOF:
                match response.WhichOneof("part"):
                    case "grant":
                        self.sent.grants.append(response.grant.offset)
                        if not granted:
                            await self._send_chunks(call, message, payload, response.grant.offset)
                    case "receipt":
                        async with asyncio.timeout(self._silence_s):
                            await call.code()  # the coordinator ends the call
                        return int(response.receipt.outcome)
            raise Broken(f"{self.client_id}: no receipt: {await call.code()}")
        except asyncio.InvalidStateError:  # a write into a call that is over
            raise Broken(f"{self.client_id}: the upload was cut") from None
        finally:
            call.cancel()

    def _rpc_of(self, header: Any) -> tuple[Any, Any]:
        match header:
            case pb.InitialModel():
                return self._stub.SendInitial, pb.SendInitialRequest
            case saliency_pb2.SaliencyReport():
                return self._stub.ReportSaliency, pb.ReportSaliencyRequest
        return self._stub.SendUpdate, pb.SendUpdateRequest

    async def _send_chunks(self, call: Any, message: Any, payload: Buffer, offset: int) -> None:
        for chunk in self._chunks(payload, offset):
            await self._write(call, message(chunk=chunk))
            self.sent.payload_bytes += len(chunk.data)

    def _chunks(self, payload: Buffer, offset: int) -> Iterator[transfer_pb2.Chunk]:
        if not self._chunk_bytes:
            sizer = ChunkSizer(time.monotonic)
            for start, data, crc32 in pieces([memoryview(payload)], offset, sizer):
                yield transfer_pb2.Chunk(offset=start, data=bytes(data), crc32=crc32)
            return
        for start in range(offset, len(payload), self._chunk_bytes):
            piece = bytes(payload[start : start + self._chunk_bytes])
            yield transfer_pb2.Chunk(offset=start, data=piece, crc32=zlib.crc32(piece))

    async def _write(self, call: Any, request: Any) -> None:
        self.sent.message_bytes += request.ByteSize()
        await call.write(request)

    def _check(self, outcome: int) -> None:
        if outcome != transfer_pb2.OUTCOME_ACCEPTED:
            name = transfer_pb2.Outcome.Name(outcome)
            raise RuntimeError(f"{self.client_id}: {name} instead of OUTCOME_ACCEPTED")


def _payloads(task: ReceivedTask) -> list[tuple[str, transfer_pb2.Payload]]:
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


def _payload(encoding: transfer_pb2.Encoding, data: Buffer) -> transfer_pb2.Payload:
    return transfer_pb2.Payload(
        encoding=encoding, num_bytes=len(data), digest=hashlib.sha256(data).digest()
    )
