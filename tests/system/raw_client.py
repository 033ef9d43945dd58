"""A synchronous client written from the protocol alone: stubs and numpy, no torch.

It uses nothing of `ssfl.client`. The asynchronous client is benchmarks/async_client.py.

Its answers are simple enough to compute a federation's result by hand: the model starts as ones
and zeros, scores are whole numbers, and training adds the client's `delta` to every value. All of
it is exact in float32, so the expected model is known to the bit (`expected_values`).
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import coordinator_pb2_grpc, saliency_pb2, transfer_pb2, update_pb2

TIMEOUT_S = 60.0
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # its own connection, as in a process of its own
    # Reconnect as soon as the coordinator is back.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 20_000),  # limit of one connection attempt
    # On a slow machine the window could grow until it holds a whole unread response.
    ("grpc.http2.bdp_probe", 0),
]
Vector = npt.NDArray[np.float32]

# name, shape, role, initialization
TENSORS: tuple[tuple[str, tuple[int, ...], str, str], ...] = (
    ("first.weight", (20, 30), "masked", "ones"),
    ("first.bias", (20,), "dense", "zeros"),
    ("second.weight", (10, 20), "masked", "ones"),
    ("second.bias", (10,), "dense", "zeros"),
)
MASKED, UNMASKED = 800, 30
KEPT = 200  # at sparsity 0.75
RUN = ("--clients=2", "--rounds=2", "--sparsity=0.75", "--evaluate-every=0")


def manifest_of(tensors: Sequence[tuple[str, tuple[int, ...], str, str]] = TENSORS) -> bytes:
    """Return a canonical manifest, written without ssfl."""
    document = {
        "format": 1,
        "model": {"name": "by hand"},
        "tensors": [
            {
                "name": name,
                "shape": list(shape),
                "dtype": "float32",
                "role": role,
                "init": {"rule": rule, "scale": "0x0.0p+0"},
            }
            for name, shape, role, rule in tensors
        ],
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


INITIAL: Vector = np.r_[np.ones(MASKED), np.zeros(UNMASKED)].astype(np.float32)


def payload_of(data: bytes, encoding: transfer_pb2.Encoding) -> transfer_pb2.Payload:
    """Return the announcement of a payload."""
    return transfer_pb2.Payload(encoding=encoding, num_bytes=len(data), digest=sha256(data))


def chunks_of(data: bytes, size: int = 256, start: int = 0) -> list[transfer_pb2.Chunk]:
    """Split a payload into chunks."""
    return [
        transfer_pb2.Chunk(
            offset=at, data=data[at : at + size], crc32=zlib.crc32(data[at : at + size])
        )
        for at in range(start, len(data), size)
    ]


@dataclass(frozen=True)
class Received:
    """A task and its payload bytes."""

    task: pb.Task
    data: bytes

    @property
    def kind(self) -> str:
        return str(self.task.WhichOneof("work"))


class RawClient:
    """One client; the caller can change every field that it sends."""

    def __init__(
        self,
        address: str,
        client_id: str,
        *,
        num_samples: int = 10,
        delta: float = 0.5,
        manifest: bytes = b"",
        scores: Callable[[], Vector] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        if credentials:
            self._channel = grpc.secure_channel(address, credentials, options=_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self.stub: Any = coordinator_pb2_grpc.CoordinatorServiceStub(self._channel)
        self.client_id = client_id
        self.num_samples = num_samples
        self.delta = np.float32(delta)
        self.manifest = manifest or manifest_of()
        self.token = sha256(client_id.encode())[:16]
        self.scores = scores or self.default_scores
        self.caller = pb.Caller()
        self.final: Vector | None = None
        self.mask_digest = b""  # of the final model
        self.tested: dict[str, Any] = {"correct": 1, "total": 2, "loss_sum": 1.0}

    def close(self) -> None:
        self._channel.close()

    def default_scores(self) -> Vector:
        """Return whole numbers that differ between clients."""
        return (np.arange(MASKED) * self.num_samples % 97).astype(np.float32)

    # -- calls

    def join(self, **changes: Any) -> pb.JoinResponse:
        """Join the run; later calls use the new session."""
        fields: dict[str, Any] = {
            "protocol_version": 1,
            "client_id": self.client_id,
            "token": self.token,
            "num_samples": self.num_samples,
            "manifest_digest": sha256(self.manifest),
            "manifest": self.manifest,
            "encodings": [1, 2, 3, 4],
            "software": "by hand",
        }
        timeout_s = changes.pop("timeout_s", TIMEOUT_S)
        response: pb.JoinResponse = self.stub.Join(
            pb.JoinRequest(**(fields | changes)), timeout=timeout_s
        )
        self.caller = pb.Caller(
            run_id=response.run_id, client_id=self.client_id, session=response.session
        )
        return response

    def next_task(self, **fields: Any) -> Received:
        """Wait for a task and return it with its payload."""
        request = pb.NextTaskRequest(caller=fields.pop("caller", self.caller), **fields)
        task, data = None, b""
        for response in self.stub.NextTask(request, timeout=TIMEOUT_S):
            match response.WhichOneof("part"):
                case "task":
                    task = response.task
                case "chunk":
                    assert task is not None
                    assert response.chunk.offset == task.offset + len(data)
                    assert response.chunk.crc32 == zlib.crc32(response.chunk.data)
                    data += response.chunk.data
        assert task is not None
        return Received(task, data)

    def initial_header(self, **changes: Any) -> pb.InitialModel:
        fields: dict[str, Any] = {
            "manifest": self.manifest,
            "initial_digest": sha256(INITIAL.tobytes()),
        }
        return pb.InitialModel(**(fields | changes))

    def scores_header(self, got: Received, data: bytes, **changes: Any) -> Any:
        work = got.task.score
        fields: dict[str, Any] = {
            "manifest_digest": work.manifest_digest,
            "initial_digest": work.initial_digest,
            "step": got.task.step,
            "num_samples": self.num_samples,
            "scores": payload_of(data, transfer_pb2.ENCODING_DENSE),
        }
        return saliency_pb2.SaliencyReport(**(fields | changes))

    def update_header(self, got: Received, data: bytes, **changes: Any) -> Any:
        work = got.task.train
        fields: dict[str, Any] = {
            "mask_digest": work.mask.mask_digest,
            "mask_epoch": work.mask.mask_epoch,
            "base_digest": work.base_digest,
            "step": got.task.step,
            "round_number": work.round_number,
            "attempt": work.attempt,
            "num_samples": self.num_samples,
            "values": payload_of(data, transfer_pb2.ENCODING_VALUES_ONLY),
            "training_loss": 1.0,
        }
        return update_pb2.SparseUpdate(**(fields | changes))

    def upload(self, header: Any, chunks: Iterable[transfer_pb2.Chunk], **changes: Any) -> Any:
        """Send a header and chunks without waiting for a grant; return the responses."""
        rpc, message = self._rpc_of(header)
        first = message(caller=changes.get("caller", self.caller), header=header)
        requests = [first, *(message(chunk=chunk) for chunk in chunks)]
        return list(rpc(iter(requests), timeout=TIMEOUT_S))

    def open_upload(self, header: Any, rest: Iterator[transfer_pb2.Chunk]) -> Any:
        """Start an upload and return the open call; chunks are sent as `rest` yields them."""
        rpc, message = self._rpc_of(header)

        def requests() -> Iterator[Any]:
            yield message(caller=self.caller, header=header)
            for chunk in rest:
                yield message(chunk=chunk)

        return rpc(requests(), timeout=TIMEOUT_S)

    def _rpc_of(self, header: Any) -> tuple[Any, Any]:
        match header:
            case pb.InitialModel():
                return self.stub.SendInitial, pb.SendInitialRequest
            case saliency_pb2.SaliencyReport():
                return self.stub.ReportSaliency, pb.ReportSaliencyRequest
        return self.stub.SendUpdate, pb.SendUpdateRequest

    # -- honest answers

    def trained(self, got: Received) -> bytes:
        """Return the honest update for a TRAIN task; the task must carry the base."""
        base = np.frombuffer(got.data[-got.task.train.base.num_bytes :], dtype="<f4")
        return bytes((base + self.delta).astype("<f4").tobytes())

    def answer(self, got: Received) -> int:
        """Answer a task honestly; return the outcome, or 0 if there is none."""
        match got.kind:
            case "initialize":
                answers = self.upload(self.initial_header(), [])
            case "score":
                data = self.scores().tobytes()
                answers = self.upload(self.scores_header(got, data), chunks_of(data))
            case "train":
                data = self.trained(got)
                answers = self.upload(self.update_header(got, data), chunks_of(data))
            case "evaluate":
                request = pb.ReportEvaluationRequest(
                    caller=self.caller,
                    step=got.task.step,
                    evaluation=update_pb2.Evaluation(**self.tested),
                )
                return int(self.stub.ReportEvaluation(request, timeout=TIMEOUT_S).outcome)
            case "finish":
                work = got.task.finish
                self.mask_digest = work.mask.mask_digest
                self.final = np.frombuffer(got.data[-work.base.num_bytes :], dtype="<f4")
                self.leave(pb.LEAVE_REASON_FINISHED)
                return 0
        return int(answers[-1].receipt.outcome)

    def leave(self, reason: pb.LeaveReason) -> None:
        self.stub.Leave(pb.LeaveRequest(caller=self.caller, reason=reason), timeout=TIMEOUT_S)

    def take_part(self) -> Vector:
        """Answer all tasks honestly until the end and return the final values."""
        while self.final is None:
            self.answer(self.next_task())
        return self.final


def take_part_with_rejoins(client: RawClient) -> Vector:
    """Take part to the end; join again whenever the coordinator is unreachable."""
    while client.final is None:
        try:
            client.join()
            client.take_part()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
    return client.final


def take_part_together(*clients: RawClient) -> list[Vector]:
    """Let all clients take part in parallel; return the final values of each."""
    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(RawClient.take_part, clients))


def expected_mask(clients: Sequence[RawClient]) -> bytes:
    """Return the expected mask digest: the KEPT largest mean scores, ties to the lowest index."""
    total = sum(client.num_samples * client.scores().astype(np.int64) for client in clients)
    order = np.lexsort((np.arange(MASKED), -np.asarray(total)))
    mask = np.zeros(MASKED, dtype=np.bool_)
    mask[order[:KEPT]] = True
    packed = np.packbits(mask, bitorder="little").tobytes()
    return sha256(MASKED.to_bytes(8, "little") + packed)


def expected_values(clients: Sequence[RawClient], rounds: int = 2) -> Vector:
    """Return the expected final values: the start plus, per round, the weighted mean delta."""
    samples = sum(client.num_samples for client in clients)
    step = sum(client.num_samples * float(client.delta) for client in clients) / samples
    start: Vector = np.r_[np.ones(KEPT), np.zeros(UNMASKED)].astype(np.float32)
    return start + np.float32(rounds * step)
