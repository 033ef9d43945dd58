"""Which task a client gets, and the bytes that go with it."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ssfl.codec import masks, values_only
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.server.accounting.ledger import encoding_word
from ssfl.server.broadcast.payloads import Broadcast, Form, NotBuilt
from ssfl.server.broadcast.tasks import Ready, task_for
from ssfl.server.run.facts import UploadAccepted
from ssfl.server.run.state import Member, RunState, Step, initializer
from ssfl.server.uploads.encoding_choice import Reader
from ssfl.strategies.contract import ClientId, Work
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2

C1, C2 = ClientId("c1"), ClientId("c2")
BASIC = Reader(frozenset())  # reads what everybody must, on a link that is not coded


def member(client: ClientId, session: int, model: str = "m", *, left: bool = False) -> Member:
    return Member(client, session, "t", 10, model, "cpu", left=left)


GATHERING = RunState(RunSettings(), members={C1: member(C1, 2), C2: member(C2, 1)})
TRAINING = replace(
    GATHERING,
    manifest_digest="m",
    founders=(C1, C2),
    last_step=4,
    step=Step(4, Work.TRAIN, "", 2, 1, {C1: 10, C2: 20}, uploads={}),
)


def in_work(work: Work, **changes: Any) -> RunState:
    assert TRAINING.step is not None
    return replace(TRAINING, step=replace(TRAINING.step, work=work, **changes))


def task(
    state: RunState, model: ModelState | None, client: ClientId = C1, **held: Any
) -> Ready | None:
    broadcast = Broadcast(model, RunSettings()) if model else None
    return made(state, broadcast, client, pb.NextTaskRequest(**held))


def made(
    state: RunState,
    broadcast: Broadcast | None,
    client: ClientId,
    request: pb.NextTaskRequest,
    upload_slots: int = 8,
    reader: Reader = BASIC,
) -> Ready | None:
    """Return the task, making what it needs as the service does."""
    while True:
        try:
            return task_for(state, broadcast, client, request, upload_slots, reader)
        except NotBuilt as needed:
            assert broadcast is not None and not broadcast.built(needed.form)
            broadcast.build(needed.form)


def given(state: RunState, model: ModelState, **held: Any) -> Ready:
    ready = task(state, model, **held)
    assert ready is not None
    return ready


def payloads(ready: Ready) -> list[bytes]:
    return [bytes(part.data) for part in ready.parts]


def test_the_first_present_client_describes_the_model() -> None:
    chosen = initializer(GATHERING)
    assert chosen is not None and chosen.client == C2, "the lowest session, not the first name"
    assert task(GATHERING, None, C1) is None
    ready = task(GATHERING, None, C2)
    assert ready is not None and ready.task.WhichOneof("work") == "initialize"


def test_another_describes_the_model_when_the_first_is_lost_gone_or_not_ready() -> None:
    for state in (
        replace(GATHERING, lost=frozenset({C2})),
        replace(GATHERING, members={C1: member(C1, 2), C2: member(C2, 1, left=True)}),
        replace(GATHERING, members={C1: member(C1, 2), C2: member(C2, 1, model="")}),
    ):
        chosen = initializer(state)
        assert chosen is not None and chosen.client == C1
    assert initializer(replace(GATHERING, lost=frozenset({C1, C2}))) is None


@pytest.mark.parametrize(
    ("passed_over", "asked"), [((), C2), ((C2,), C1), ((C2, C1), C2), ((C1, C2), C1), ((C1,), C2)]
)
def test_a_client_that_was_passed_over_describes_the_model_after_all_others(
    passed_over: tuple[ClientId, ...], asked: ClientId
) -> None:
    chosen = initializer(replace(GATHERING, passed_over=passed_over))
    assert chosen is not None and chosen.client == asked


def scoring(**changes: Any) -> RunState:
    """Return a run that scores; half of the six weights are to be kept."""
    return replace(in_work(Work.SCORE, **changes), settings=RunSettings(sparsity="0.5"))


def test_scoring_sends_the_initial_weights_only_to_clients_that_lack_them(
    model: ModelState,
) -> None:
    model = ModelState(model.manifest, model.initial)
    ready = given(scoring(criterion="saliency", num_batches=4), model)
    work = ready.task.score
    assert (work.criterion, work.manifest_digest) == ("saliency", model.manifest.digest)
    assert work.initial_digest == model.initial_digest
    assert (work.num_batches, work.num_kept, work.scoring_epoch) == (4, 3, 0)
    assert not work.HasField("mask") and not work.base_digest and not work.resting_digest
    assert work.initial.encoding == transfer_pb2.ENCODING_DENSE
    assert payloads(ready) == [bytes(values_only.encode(model.initial))]
    holds = given(scoring(), model, initial_digest=model.initial_digest)
    assert not holds.task.score.HasField("initial") and not holds.parts


def test_training_sends_mask_then_base_to_clients_that_lack_them(model: ModelState) -> None:
    assert model.mask is not None and model.values is not None
    base = bytes(values_only.encode(model.values))
    ready = given(TRAINING, model)
    work = ready.task.train
    assert (ready.task.step, work.round_number, work.attempt) == (4, 2, 1)
    assert (work.mask.mask_digest, work.mask.num_kept) == (model.mask.digest, 3)
    assert work.base_digest == model.base_digest
    assert (work.fraction_bits, work.value_bound) == (36, 1024.0)
    assert payloads(ready) == [model.mask.bits, base]
    holds_mask = given(TRAINING, model, mask_digest=model.mask.digest)
    assert not holds_mask.task.train.mask.HasField("mask")
    assert payloads(holds_mask) == [base]
    holds_base = given(TRAINING, model, base_digest=model.base_digest)
    assert not holds_base.task.train.HasField("base")
    assert payloads(holds_base) == [model.mask.bits]
    holds = {"mask_digest": model.mask.digest, "base_digest": model.base_digest}
    assert payloads(given(TRAINING, model, **holds)) == []


def test_every_payload_is_announced_with_its_length_and_digest(model: ModelState) -> None:
    ready = given(TRAINING, model)
    announced = [ready.task.train.mask.mask, ready.task.train.base]
    for payload, data in zip(announced, payloads(ready), strict=True):
        assert payload.num_bytes == len(data)
        assert payload.digest == hashlib.sha256(data).digest()


def test_a_large_sparse_mask_travels_compressed(model: ModelState) -> None:
    kept = np.zeros(100_000, dtype=np.bool_)
    kept[::5000] = True
    broadcast = Broadcast(replace(model, mask=Mask.from_bools(kept)), RunSettings())
    broadcast.build(Form.MASK)
    part = broadcast.part(Form.MASK)
    assert part.payload.encoding == transfer_pb2.ENCODING_BITMASK_ZSTD
    assert masks.decompress(part.data, 100_000) == Mask.from_bools(kept).bits


def test_a_mask_that_keeps_everything_is_not_sent(model: ModelState) -> None:
    dense = replace(model, mask=Mask.full(6), values=model.initial)
    ready = given(TRAINING, dense)
    assert ready.task.train.mask.all_kept
    assert not ready.task.train.mask.HasField("mask")
    assert payloads(ready) == [bytes(values_only.encode(model.initial))]


def test_a_task_grants_an_upload_slot_if_there_is_one_for_every_client(
    model: ModelState,
) -> None:
    request = pb.NextTaskRequest()
    for slots, granted in ((1, False), (2, True)):
        ready = made(TRAINING, Broadcast(model, RunSettings()), C1, request, slots)
        assert ready is not None and ready.task.train.upload_granted == granted


def test_evaluation_sends_what_training_would(model: ModelState) -> None:
    ready = given(replace(in_work(Work.EVALUATE), rounds_done=3), model)
    assert ready.task.evaluate.rounds_done == 3
    assert payloads(ready) == payloads(given(TRAINING, model))


def test_every_client_gets_the_model_at_the_end(model: ModelState) -> None:
    finished = replace(TRAINING, step=None, finished=True, rounds_done=3)
    for client in (C1, ClientId("latecomer")):
        ready = task(finished, model, client)
        assert ready is not None
        assert (ready.task.finish.rounds_done, ready.task.finish.stopped) == (3, False)
        assert payloads(ready) == payloads(given(TRAINING, model))


def test_a_run_stopped_before_it_had_a_model_ends_without_one(model: ModelState) -> None:
    stopped = replace(GATHERING, finished=True, stopped=True)
    for known in (None, ModelState(model.manifest, model.initial)):
        ready = task(stopped, known)
        assert ready is not None and ready.task.finish.stopped
        assert not ready.task.finish.base_digest and not ready.parts


@pytest.mark.parametrize("why", ["reported", "closed", "not asked", "uploading", "between"])
def test_a_client_without_a_task_waits(why: str, model: ModelState) -> None:
    reported = {C1: UploadAccepted(4, C1, "d", 1.0)}
    state, held = TRAINING, dict[str, Any]()
    match why:
        case "reported":
            state = in_work(Work.TRAIN, uploads=reported)
        case "closed":
            state = in_work(Work.TRAIN, uploads=reported, closed=(C2,))
        case "not asked":
            state = in_work(Work.TRAIN, cohort={C2: 20})
        case "uploading":
            held = {"finished_step": 4}
        case "between":
            state = replace(TRAINING, step=None)
    assert task(state, model, **held) is None


def test_an_older_finished_step_does_not_keep_a_client_from_the_next(model: ModelState) -> None:
    assert task(TRAINING, model, finished_step=3) is not None


def test_a_task_is_known_by_its_content(model: ModelState) -> None:
    digest = given(TRAINING, model).task.task_digest
    assert len(digest) == 16
    assert given(TRAINING, model).task.task_digest == digest
    assert given(in_work(Work.TRAIN, attempt=2), model).task.task_digest != digest
    assert given(TRAINING, model, base_digest=model.base_digest).task.task_digest != digest


def phases(ready: Ready) -> list[tuple[str, int]]:
    """Return the ledger phase and the payload bytes of every message."""
    return [(ready.phase_of(part), num_bytes) for part, num_bytes, _ in ready.messages(0)]


def test_every_byte_of_a_task_has_its_ledger_phase(model: ModelState) -> None:
    ready = given(TRAINING, model)
    mask_bytes, values_bytes = (len(part.data) for part in ready.parts)
    assert phases(ready) == [("mask", mask_bytes), ("values", values_bytes)]
    evaluation = given(in_work(Work.EVALUATE), model)
    assert phases(evaluation) == [("mask", mask_bytes), ("evaluation", values_bytes)]
    first = given(scoring(), ModelState(model.manifest, model.initial))
    assert {phase for phase, _ in phases(first)} == {"initial"}


# -- what a client is asked to send, by what it listed

ALL = frozenset(range(1, 11))


def asked(state: RunState, model: ModelState, reader: Reader, **held: Any) -> Ready:
    broadcast = Broadcast(model, state.settings)
    ready = made(state, broadcast, C1, pb.NextTaskRequest(**held), reader=reader)
    assert ready is not None
    return ready


def test_compact_scores_are_requested_of_clients_that_can_write_them(model: ModelState) -> None:
    settings = RunSettings(sparsity="0.5")
    state = replace(in_work(Work.SCORE, criterion="saliency"), settings=settings)
    work = asked(state, model, Reader(ALL)).task.score
    assert work.report_encoding == transfer_pb2.ENCODING_SCORES
    assert work.num_coded == 6, "three times the three that are kept, at most all"
    for reader, settings in (
        (BASIC, state.settings),
        (Reader(ALL - {transfer_pb2.ENCODING_SCORES}), state.settings),
        (Reader(ALL), replace(state.settings, scores="exact")),
    ):
        work = asked(replace(state, settings=settings), model, reader).task.score
        assert (work.report_encoding, work.num_coded) == (0, 0), "unset: exact scores"


@pytest.mark.parametrize(
    ("reader", "value_type", "encoding"),
    [
        (BASIC, "float32", transfer_pb2.ENCODING_VALUES_ONLY),
        (Reader(ALL, coded=False), "float32", transfer_pb2.ENCODING_VALUES_ONLY),
        (Reader(ALL, coded=True), "float32", transfer_pb2.ENCODING_REFERENCE),
        (Reader(ALL, coded=False), "int8", transfer_pb2.ENCODING_INT8),
        (BASIC, "int8", transfer_pb2.ENCODING_VALUES_ONLY),
    ],
)
def test_the_task_says_how_the_update_is_to_be_encoded(
    model: ModelState, reader: Reader, value_type: str, encoding: int
) -> None:
    state = replace(TRAINING, settings=RunSettings(value_type=value_type))
    assert asked(state, model, reader).task.train.update_encoding == encoding


def test_a_base_the_client_can_make_is_named_and_not_sent(model: ModelState) -> None:
    """The first base of a mask is the initial weights it keeps."""
    ready = asked(TRAINING, model, Reader(ALL), initial_digest=model.initial_digest)
    assert ready.task.train.base_digest == model.base_digest
    assert not ready.task.train.HasField("base")
    assert [part.phase for part in ready.parts] == ["mask"]


def test_every_byte_of_a_task_has_its_ledger_encoding(model: ModelState) -> None:
    assert model.values is not None
    trained = replace(model, values=model.values + np.float32(1))
    ready = asked(TRAINING, trained, Reader(ALL, coded=True))
    found = [(encoding_word(part.payload.encoding), size) for part, size, _ in ready.messages(0)]
    mask_bytes, values_bytes = (len(part.data) for part in ready.parts)
    assert found == [("bitmask", mask_bytes), ("reference", values_bytes)]


def test_clients_that_get_other_forms_get_other_tasks(model: ModelState) -> None:
    """A download is resumed only where its bytes are the same."""
    readers = (BASIC, Reader(ALL, coded=True), Reader(ALL, coded=False))
    digests = {asked(TRAINING, model, reader).task.task_digest for reader in readers}
    assert len(digests) == 2, "plain values for the first and the last"
