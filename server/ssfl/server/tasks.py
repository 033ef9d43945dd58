"""Which task a client gets now, and the bytes that go with it.

Payloads of a model are encoded once, and chunks serialized once: every client is sent the same
buffers, so a broadcast to hundreds costs no memory for each of them.
"""

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from ssfl.codec import bitmask, values_only
from ssfl.method.exact_sum import VALUE_BOUND
from ssfl.method.model_state import ModelState
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server.aggregate import update_fraction_bits
from ssfl.server.ledger import encoding_word
from ssfl.server.state import Member, RunState, Step
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, transfer_pb2

CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Part:
    """One payload of a task: what it is for in the ledger, and its bytes."""

    phase: str
    payload: transfer_pb2.Payload
    data: memoryview


@dataclass(frozen=True, slots=True)
class Ready:
    """A task with everything that is to be sent."""

    task: pb.Task
    parts: tuple[Part, ...]
    phase: str  # of the header, in the ledger
    serialized: dict[int, bytes] = field(default_factory=dict)  # by offset, for all who get these

    def messages(self, offset: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (offset, payload bytes, serialized message) of every chunk from `offset` on.

        A part is cut at multiples of CHUNK_BYTES; a resumed download begins with a shorter chunk.
        """
        start = 0  # of the part in the whole
        for part in self.parts:
            while offset < start + len(part.data):
                begin = offset - start
                end = min(len(part.data), (begin // CHUNK_BYTES + 1) * CHUNK_BYTES)
                message = self.serialized.get(offset)
                if message is None:
                    message = _chunk(offset, bytes(part.data[begin:end]))
                    if begin % CHUNK_BYTES == 0:
                        self.serialized[offset] = message
                yield offset, end - begin, message
                offset = start + end
            start += len(part.data)

    def phase_at(self, offset: int) -> str:
        """Return what the byte at `offset` of the payloads is for, in the ledger."""
        part = self._part_at(offset)
        return part.phase if part and part.phase == "mask" else self.phase

    def encoding_at(self, offset: int) -> str:
        """Return how the byte at `offset` of the payloads is encoded, in the ledger."""
        part = self._part_at(offset)
        return encoding_word(part.payload.encoding) if part else ""

    def _part_at(self, offset: int) -> Part | None:
        end = 0
        for part in self.parts:
            end += len(part.data)
            if offset < end:
                return part
        return None


class Broadcast:
    """The payloads of one model, each made when it is first needed."""

    def __init__(self, model: ModelState) -> None:
        self.model = model
        self._mask: Part | None = None
        self._base: Part | None = None
        self._initial: Part | None = None
        self._serialized: dict[tuple[str, ...], dict[int, bytes]] = {}

    def serialized(self, parts: tuple[Part, ...]) -> dict[int, bytes]:
        """Return the chunks of these parts that were serialized before, by offset."""
        return self._serialized.setdefault(tuple(part.phase for part in parts), {})

    @property
    def initial(self) -> Part:
        if self._initial is None:
            data = values_only.encode(self.model.initial)
            self._initial = _part("initial", transfer_pb2.ENCODING_DENSE, data)
        return self._initial

    @property
    def base(self) -> Part:
        if self._base is None:
            assert self.model.values is not None
            data = values_only.encode(self.model.values)
            self._base = _part("values", transfer_pb2.ENCODING_VALUES_ONLY, data)
        return self._base

    @property
    def mask(self) -> Part:
        if self._mask is None:
            assert self.model.mask is not None
            bits = self.model.mask.bits
            frame = bitmask.compress(bits)
            if frame is None:
                self._mask = _part("mask", transfer_pb2.ENCODING_BITMASK, memoryview(bits))
            else:
                self._mask = _part("mask", transfer_pb2.ENCODING_BITMASK_ZSTD, memoryview(frame))
        return self._mask


def _chunk(offset: int, data: bytes) -> bytes:
    chunk = transfer_pb2.Chunk(offset=offset, data=data, crc32=zlib.crc32(data))
    return pb.NextTaskResponse(chunk=chunk).SerializeToString()


def _part(phase: str, encoding: transfer_pb2.Encoding, data: memoryview) -> Part:
    payload = transfer_pb2.Payload(
        encoding=encoding, num_bytes=len(data), digest=hashlib.sha256(data).digest()
    )
    return Part(phase, payload, data)


def initializer(state: RunState) -> Member | None:
    """Return the client that is to describe the model: the first that can and is not lost."""
    able = [m for m in state.members.values() if m.manifest_digest and not m.left]
    present = [m for m in able if m.client not in state.lost]
    return min(present, key=lambda m: m.session, default=None)


def task_for(
    state: RunState,
    broadcast: Broadcast | None,
    client: ClientId,
    request: pb.NextTaskRequest,
    upload_slots: int,
) -> Ready | None:
    """Return what this client is to do now; None: wait."""
    if state.finished:
        return _finish(state, broadcast, request)
    if not state.manifest_digest:
        chosen = initializer(state)
        if chosen is None or chosen.client != client:
            return None
        return _ready(pb.Task(initialize=pb.InitializeTask()), (), "control")
    step = state.step
    if step is None or step.closed is not None or broadcast is None:
        return None
    if client not in step.pending or request.finished_step == step.number:
        return None
    match step.work:
        case Work.SCORE:
            return _score(step, broadcast, request)
        case Work.TRAIN:
            return _train(step, broadcast, request, upload_slots)
        case Work.EVALUATE:
            mask, parts = _model_parts(broadcast, request)
            work = pb.EvaluateTask(rounds_done=state.rounds_done, mask=mask)
            _set_base(work, broadcast, parts)
            return _ready(pb.Task(step=step.number, evaluate=work), parts, "evaluation", broadcast)


def _score(step: Step, broadcast: Broadcast, request: pb.NextTaskRequest) -> Ready:
    model = broadcast.model
    work = pb.ScoreTask(
        criterion=step.criterion,
        manifest_digest=model.manifest.digest,
        initial_digest=model.initial_digest,
    )
    parts: tuple[Part, ...] = ()
    if request.initial_digest != model.initial_digest:
        parts = (broadcast.initial,)
        work.initial.CopyFrom(broadcast.initial.payload)
    return _ready(pb.Task(step=step.number, score=work), parts, "initial", broadcast)


def _train(
    step: Step, broadcast: Broadcast, request: pb.NextTaskRequest, upload_slots: int
) -> Ready:
    mask, parts = _model_parts(broadcast, request)
    work = pb.TrainTask(
        round_number=step.round_number,
        attempt=step.attempt,
        mask=mask,
        upload_granted=len(step.cohort) <= upload_slots,
        fraction_bits=update_fraction_bits(step),
        value_bound=VALUE_BOUND,
    )
    _set_base(work, broadcast, parts)
    return _ready(pb.Task(step=step.number, train=work), parts, "values", broadcast)


def _finish(
    state: RunState, broadcast: Broadcast | None, request: pb.NextTaskRequest
) -> Ready | None:
    work = pb.FinishTask(rounds_done=state.rounds_done, stopped=state.stopped)
    if broadcast is None or broadcast.model.values is None:
        return _ready(pb.Task(finish=work), (), "control")
    mask, parts = _model_parts(broadcast, request)
    work.mask.CopyFrom(mask)
    _set_base(work, broadcast, parts)
    return _ready(pb.Task(step=state.last_step + 1, finish=work), parts, "values", broadcast)


def _model_parts(
    broadcast: Broadcast, request: pb.NextTaskRequest
) -> tuple[mask_pb2.MaskBroadcast, tuple[Part, ...]]:
    """Return the mask message, and the payloads of mask and base that the client lacks."""
    model = broadcast.model
    assert model.mask is not None
    all_kept = model.mask.num_kept == model.mask.size
    message = mask_pb2.MaskBroadcast(
        mask_digest=model.mask.digest,
        mask_epoch=model.mask_epoch,
        num_kept=model.mask.num_kept,
        all_kept=all_kept,
    )
    parts: list[Part] = []
    if not all_kept and request.mask_digest != model.mask.digest:
        parts.append(broadcast.mask)
        message.mask.CopyFrom(broadcast.mask.payload)
    if request.base_digest != model.base_digest:
        parts.append(broadcast.base)
    return message, tuple(parts)


def _set_base(
    work: pb.TrainTask | pb.EvaluateTask | pb.FinishTask,
    broadcast: Broadcast,
    parts: tuple[Part, ...],
) -> None:
    work.base_digest = broadcast.model.base_digest
    if broadcast.base in parts:
        work.base.CopyFrom(broadcast.base.payload)


def _ready(
    task: pb.Task, parts: tuple[Part, ...], phase: str, broadcast: Broadcast | None = None
) -> Ready:
    task.task_digest = hashlib.sha256(task.SerializeToString(deterministic=True)).digest()[:16]
    return Ready(task, parts, phase, broadcast.serialized(parts) if broadcast else {})
