"""The current task of a client and its payloads.

Payloads of a model are encoded once (payloads.py) and chunks are serialized once. All clients are
sent the same buffers, so memory does not grow with the number of clients.
"""

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from ssfl.method.exact_sum import VALUE_BOUND
from ssfl.method.image_settings import NONE
from ssfl.method.settings import RunSettings
from ssfl.server.accounting.ledger import MASK, ROUND_MASKS
from ssfl.server.aggregate.step_sum import update_fraction_bits
from ssfl.server.broadcast.payloads import Broadcast, Form, Part
from ssfl.server.run.state import RunState, Step, initializer
from ssfl.server.uploads.encoding_choice import Reader
from ssfl.strategies.contract import ClientId, Work
from ssfl.strategies.registry import IMAGES, strategy_for
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, settings_pb2, transfer_pb2

CHUNK_BYTES = 1 << 16  # gRPC holds one copy per client that is being sent a chunk


def settings_to_message(settings: RunSettings) -> settings_pb2.RunSettings:
    """Return the run settings as they are sent in Join, with the same field names."""
    values = asdict(settings)
    for name in IMAGES:  # absent unless it is set, as in runs of earlier versions
        if values[name] == NONE:
            del values[name]
    return settings_pb2.RunSettings(**values)


@dataclass(frozen=True, slots=True)
class Ready:
    """A task with its payloads."""

    task: pb.Task
    parts: tuple[Part, ...]
    phase: str  # ledger phase of the header
    mask_phase: str = MASK
    serialized: dict[int, bytes] = field(default_factory=dict)  # by offset, shared by all clients

    def messages(self, offset: int) -> Iterator[tuple[Part, int, bytes]]:
        """Yield (part, payload bytes, serialized message) of every chunk from `offset`.

        A part is cut at multiples of CHUNK_BYTES; a resumed download begins with a shorter chunk.
        """
        start = 0  # offset of the part in the task
        for part in self.parts:
            while offset < start + len(part.data):
                begin = offset - start
                end = min(len(part.data), (begin // CHUNK_BYTES + 1) * CHUNK_BYTES)
                message = self.serialized.get(offset)
                if message is None:
                    message = _chunk(offset, bytes(part.data[begin:end]))
                    if begin % CHUNK_BYTES == 0:
                        self.serialized[offset] = message
                yield part, end - begin, message
                offset = start + end
            start += len(part.data)

    def phase_of(self, part: Part) -> str:
        """Return the ledger phase of the bytes of a part."""
        if part.phase == MASK:
            return self.mask_phase
        return part.phase if self.phase == "initial" else self.phase


def _chunk(offset: int, data: bytes) -> bytes:
    chunk = transfer_pb2.Chunk(offset=offset, data=data, crc32=zlib.crc32(data))
    return pb.NextTaskResponse(chunk=chunk).SerializeToString()


def task_for(
    state: RunState,
    broadcast: Broadcast | None,
    client: ClientId,
    request: pb.NextTaskRequest,
    upload_slots: int,
    reader: Reader,
) -> Ready | None:
    """Return the client's task, or None if it must wait. Raise NotBuilt for a missing payload."""
    if state.finished:
        return _finish(state, broadcast, client, request, reader)
    if not state.manifest_digest:
        chosen = initializer(state)
        if chosen is None or chosen.client != client:
            return None
        return _ready(pb.Task(initialize=pb.InitializeTask()), (), "control")
    step = state.step
    if step is None or step.closed is not None or broadcast is None:
        return None
    if not step.awaits(client) or request.finished_step == step.number:
        return None
    match step.work:
        case Work.SCORE:
            score, parts = _score(state, step, broadcast, request, reader)
            task = pb.Task(step=step.number, score=score)
            return _ready(_with_counted(task, state, client), parts, "initial", broadcast, state)
        case Work.TRAIN:
            train = pb.TrainTask(
                round_number=step.round_number,
                attempt=step.attempt,
                upload_granted=len(step.cohort) <= upload_slots,
                fraction_bits=update_fraction_bits(step),
                value_bound=VALUE_BOUND,
                update_encoding=reader.update_encoding(state.settings),
                task=step.task,
            )
            parts = _set_model(train, broadcast, request, reader)
            for name, part in broadcast.vector_parts().items():
                train.vectors.append(transfer_pb2.NamedVector(name=name, values=part.payload))
                parts += (part,)
            task = pb.Task(step=step.number, train=train)
            return _ready(_with_counted(task, state, client), parts, "values", broadcast, state)
        case Work.EVALUATE:
            test = pb.EvaluateTask(rounds_done=state.rounds_done)
            parts = _set_model(test, broadcast, request, reader)
            task = pb.Task(step=step.number, evaluate=test)
            return _ready(_with_counted(task, state, client), parts, "evaluation", broadcast, state)
        case Work.PERSONALIZE:
            own = pb.PersonalizeTask(rounds_done=state.rounds_done)
            parts = _set_model(own, broadcast, request, reader)
            task = pb.Task(step=step.number, personalize=own)
            return _ready(_with_counted(task, state, client), parts, "values", broadcast, state)


def _with_counted(task: pb.Task, state: RunState, client: ClientId) -> pb.Task:
    """Add the client's newest step that counted, if clients keep something between steps."""
    if strategy_for(state.settings).has_client_memory:
        task.counted_step = state.counted.get(client, (0, ""))[0]
    return task


def _score(
    state: RunState, step: Step, broadcast: Broadcast, request: pb.NextTaskRequest, reader: Reader
) -> tuple[pb.ScoreTask, tuple[Part, ...]]:
    """Return the task and the payloads that the client lacks."""
    model, strategy = broadcast.model, strategy_for(state.settings)
    work = pb.ScoreTask(
        criterion=step.criterion,
        manifest_digest=model.manifest.digest,
        initial_digest=broadcast.whole_digest(),
        num_batches=step.num_batches,
        num_kept=strategy.num_kept(model.manifest, step.round_number),
        scoring_epoch=model.mask_epoch,
    )
    decisive = strategy.num_decisive(model.manifest, step.round_number)
    compact = state.settings.scores == "compact" and decisive > 0
    if compact and reader.reads(transfer_pb2.ENCODING_SCORES):
        work.report_encoding = transfer_pb2.ENCODING_SCORES
        work.num_coded = decisive
    parts: tuple[Part, ...] = ()
    if request.initial_digest != model.initial_digest:
        part = broadcast.part(Form.INITIAL)
        work.initial.CopyFrom(part.payload)
        parts = (part,)
        held = pb.NextTaskRequest()
        held.CopyFrom(request)
        held.initial_digest = model.initial_digest  # it comes with this task
        request = held
    if model.mask is not None:
        parts += _set_model(work, broadcast, request, reader)
        work.resting_digest = model.resting_digest
        if resting := broadcast.resting_for(request, reader):
            work.resting.CopyFrom(resting.payload)
            parts += (resting,)
    return work, parts


def _finish(
    state: RunState,
    broadcast: Broadcast | None,
    client: ClientId,
    request: pb.NextTaskRequest,
    reader: Reader,
) -> Ready | None:
    work = pb.FinishTask(rounds_done=state.rounds_done, stopped=state.stopped)
    if broadcast is None or broadcast.model.values is None:
        return _ready(pb.Task(finish=work), (), "control")
    parts = _set_model(work, broadcast, request, reader)
    task = _with_counted(pb.Task(step=state.last_step + 1, finish=work), state, client)
    return _ready(task, parts, "values", broadcast, state)


def _set_model(
    work: pb.ScoreTask | pb.TrainTask | pb.EvaluateTask | pb.PersonalizeTask | pb.FinishTask,
    broadcast: Broadcast,
    request: pb.NextTaskRequest,
    reader: Reader,
) -> tuple[Part, ...]:
    """Fill in mask and base; return the payloads that the client lacks."""
    model = broadcast.model
    assert model.mask is not None
    mask, base = broadcast.mask_for(request, reader), broadcast.base_for(request, reader)
    work.mask.CopyFrom(
        mask_pb2.MaskBroadcast(
            mask_digest=model.mask.digest,
            mask_epoch=model.mask_epoch,
            num_kept=model.mask.num_kept,
            all_kept=model.mask.num_kept == model.mask.size,
            from_seed=broadcast.is_from_seed,
            mask=mask.payload if mask else None,
        )
    )
    work.base_digest = model.base_digest
    if base:
        work.base.CopyFrom(base.payload)
    return tuple(part for part in (mask, base) if part)


def _ready(
    task: pb.Task,
    parts: tuple[Part, ...],
    phase: str,
    broadcast: Broadcast | None = None,
    state: RunState | None = None,
) -> Ready:
    named = pb.Task()
    named.CopyFrom(task)
    if task.HasField("train"):
        named.train.ClearField("upload_granted")  # may change while it is being sent
    task.task_digest = hashlib.sha256(named.SerializeToString(deterministic=True)).digest()[:16]
    if broadcast is None or state is None:
        return Ready(task, parts, phase)
    mask_phase = MASK
    if _is_moved(state, broadcast):
        mask_phase = phase if phase == "evaluation" else ROUND_MASKS
    return Ready(task, parts, phase, mask_phase, broadcast.serialized(parts))


def _is_moved(state: RunState, broadcast: Broadcast) -> bool:
    """Return True if a round of a strategy has moved the mask, for all clients or for this one."""
    if not strategy_for(state.settings).moves_mask:
        return False
    mask = broadcast.model.mask
    return state.masked_round > 0 or (mask is not None and mask.digest.hex() != state.mask_digest)
