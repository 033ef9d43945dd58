"""The agent when masks are renewed, are its own, or when it makes a model for itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc import StatusCode
from safetensors.numpy import load_file

from client.agent_harness import (
    FINISH,
    MASK,
    MODEL,
    NO_MODEL,
    SETTINGS,
    VALUES,
    AgentHarness,
    FakeSite,
    accepted,
    call_of,
    joined,
    model_fields,
    payload,
    refusal,
    train_task,
)
from client.fakes import INITIAL, MANIFEST, FakeCall, FakeStub
from ssfl.client.agent import Agent, Identity
from ssfl.client.connection import ReconnectBackoff
from ssfl.client.errors import Refused
from ssfl.client.local_work import Vector
from ssfl.client.progress import StepOver
from ssfl.codec import blocks, masks, reference
from ssfl.learning.evaluate import Evaluation
from ssfl.learning.trained import LocalResult
from ssfl.method.controls import client_random_mask
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, saliency_pb2, transfer_pb2, update_pb2

NEW = Mask.from_bools(np.arange(20) % 2 == 1)  # all that MASK has not
RESTING = np.r_[np.full(20, 7), np.full(4, 9)].astype(np.float32)


class Scores:
    """Reports of scores as the coordinator gets them."""

    def __init__(self) -> None:
        self.headers: list[saliency_pb2.SaliencyReport] = []
        self.data: list[bytes] = []

    def __call__(self, requests: Any) -> FakeCall:
        self.headers.append(next(requests).header)
        return FakeCall(self._answers(requests))

    def _answers(self, requests: Any) -> Iterator[pb.ReportSaliencyResponse]:
        yield pb.ReportSaliencyResponse(grant=transfer_pb2.Grant())
        self.data.append(b"".join(one.chunk.data for one in requests))
        receipt = transfer_pb2.Receipt(outcome=transfer_pb2.OUTCOME_ACCEPTED)
        yield pb.ReportSaliencyResponse(receipt=receipt)


def harness_of(folder: Path, calls: list[FakeCall], **scripts: list[Any]) -> AgentHarness:
    stub = FakeStub(
        Join=[joined(1), joined(2), joined(3)],
        NextTask=[*calls, call_of(NO_MODEL)],
        Leave=[pb.LeaveResponse()],
        **scripts,
    )
    return AgentHarness(folder, stub)


def score_task(whole: Vector, **changes: Any) -> pb.Task:
    work = pb.ScoreTask(
        criterion="saliency",
        manifest_digest=MANIFEST.digest,
        initial_digest=values_digest(whole),
        **changes,
    )
    return pb.Task(task_digest=b"score", step=3, score=work)


def reference_payload(data: bytes, against: Vector) -> transfer_pb2.Payload:
    announced = payload(data, transfer_pb2.ENCODING_REFERENCE)
    announced.reference_digest = values_digest(against)
    return announced


# -- scoring


def test_the_first_scores_are_of_the_initial_weights(tmp_path: Path) -> None:
    told = Scores()
    task = score_task(INITIAL, num_batches=25, num_kept=2)
    harness = harness_of(tmp_path, [call_of(task)], ReportSaliency=[told])
    harness.agent.run()
    (asked,) = harness.sites[0].scored
    assert (asked.criterion, asked.num_batches, asked.num_kept, asked.epoch) == (
        "saliency", 25, 2, 0,
    )  # fmt: skip
    assert asked.mask is None and np.array_equal(asked.whole, INITIAL)
    assert told.headers[0].initial_digest == values_digest(INITIAL)
    assert told.data == [(INITIAL[:20] * 2).tobytes()]


def test_a_coordinator_that_names_no_number_of_minibatches_means_one(tmp_path: Path) -> None:
    harness = harness_of(tmp_path, [call_of(score_task(INITIAL))], ReportSaliency=[Scores()])
    harness.agent.run()
    assert harness.sites[0].scored[0].num_batches == 1


def renewal() -> tuple[pb.Task, bytes, Vector]:
    """Return a task to score anew, for a client that holds nothing, and the whole model."""
    resting = bytes(blocks.encode(reference.CODE, RESTING, INITIAL))
    whole = MASK.scatter(VALUES, onto=RESTING)
    task = score_task(
        whole,
        **model_fields(),
        resting_digest=values_digest(RESTING),
        resting=reference_payload(resting, INITIAL),
        scoring_epoch=1,
    )
    return task, MODEL + resting, whole


def test_scores_anew_are_of_trained_values_and_of_those_at_rest(tmp_path: Path) -> None:
    told, (task, data, whole) = Scores(), renewal()
    harness = harness_of(tmp_path, [call_of(task, data)], ReportSaliency=[told])
    harness.agent.run()
    (asked,) = harness.sites[0].scored
    assert asked.mask == MASK and asked.epoch == 1
    assert asked.whole.tobytes() == whole.tobytes()
    assert whole[:4].tolist() == [0, 7, 1, 7], "kept ones as trained, the others at rest"
    assert told.headers[0].initial_digest == values_digest(whole)
    last = harness.stub.called("NextTask")[-1]
    assert last.scored_digest == values_digest(whole)
    assert (last.mask_digest, last.base_digest) == (MASK.digest, values_digest(VALUES))


def test_after_scoring_a_difference_of_masks_is_all_it_needs_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[Mask, Vector]] = []

    def train(_self: FakeSite, mask: Mask, base: Vector, _round: int, _on_step: Any) -> LocalResult:
        trained.append((mask, base))
        return LocalResult(base, 0.5, Evaluation(1, 2, 3.0), Evaluation(2, 2, 1.0))

    monkeypatch.setattr(FakeSite, "train", train)
    task, data, whole = renewal()
    bits = masks.difference(NEW.bits, MASK.bits)
    difference = payload(bits, transfer_pb2.ENCODING_BITMASK)
    difference.reference_digest = MASK.digest
    message = mask_pb2.MaskBroadcast(
        mask_digest=NEW.digest, mask_epoch=2, num_kept=10, mask=difference
    )
    begins = NEW.gather(whole)
    following = train_task(mask=message, base_digest=values_digest(begins))
    following.train.ClearField("base")
    calls = [call_of(task, data), call_of(following, bits)]
    harness = harness_of(tmp_path, calls, ReportSaliency=[Scores()], SendUpdate=[accepted()])
    harness.agent.run()
    ((mask, base),) = trained
    assert mask == NEW and base.tobytes() == begins.tobytes()
    assert base.tolist() == [7] * 10 + VALUES[10:].tolist(), "added ones begin where they rested"


def test_weights_at_rest_that_are_not_here_are_asked_for(tmp_path: Path) -> None:
    """It is believed to hold them, and does not: it says what it has, and gets the rest."""
    task, data, _ = renewal()
    believed = pb.Task()
    believed.CopyFrom(task)
    believed.score.ClearField("resting")
    believed.task_digest = b"believed"
    calls = [call_of(believed, MODEL), call_of(task, data)]
    harness = harness_of(tmp_path, calls, ReportSaliency=[Scores()])
    harness.agent.run()
    assert len(harness.sites[0].scored) == 1
    assert [request.scored_digest for request in harness.stub.called("NextTask")[:2]] == [b"", b""]


def test_an_update_under_another_mask_is_dropped_and_the_task_asked_for_again(
    tmp_path: Path,
) -> None:
    stale = refusal(StatusCode.FAILED_PRECONDITION, "stale_mask", "made under mask 1")
    calls = [call_of(train_task(), MODEL), call_of(NO_MODEL), call_of(train_task(), MODEL)]
    harness = harness_of(tmp_path, calls, SendUpdate=[FakeCall([], stale), accepted()])
    harness.agent.run()
    assert harness.local.load() is None
    assert [request.finished_step for request in harness.stub.called("NextTask")] == [0, 5, 0, 5]
    assert harness.sites[0].trained_rounds == [2, 2], "from the task it asked for again"


def test_after_a_stale_mask_it_trains_under_the_one_the_run_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slept over a refresh: what it holds is still good enough for a difference of masks."""
    trained: list[Mask] = []

    def train(_self: FakeSite, mask: Mask, base: Vector, _round: int, _on_step: Any) -> LocalResult:
        trained.append(mask)
        return LocalResult(base, 0.5, Evaluation(1, 2, 3.0), Evaluation(2, 2, 1.0))

    monkeypatch.setattr(FakeSite, "train", train)
    sent: list[update_pb2.SparseUpdate] = []

    def receive(requests: Any) -> FakeCall:
        sent.append(next(requests).header)
        stale = refusal(StatusCode.FAILED_PRECONDITION, "stale_mask", "made under mask 1")
        return FakeCall([], stale) if len(sent) == 1 else accepted()

    bits = masks.difference(NEW.bits, MASK.bits)
    difference = payload(bits, transfer_pb2.ENCODING_BITMASK)
    difference.reference_digest = MASK.digest
    message = mask_pb2.MaskBroadcast(
        mask_digest=NEW.digest, mask_epoch=2, num_kept=10, mask=difference
    )
    following = train_task(mask=message)
    following.step, following.task_digest = 9, b"next"
    calls = [
        call_of(train_task(), MODEL),
        call_of(NO_MODEL),  # while it sends
        call_of(following, bits + VALUES.tobytes()),
    ]
    harness = harness_of(tmp_path, calls, SendUpdate=[receive, receive])
    harness.agent.run()
    assert trained == [MASK, NEW]
    assert [(one.step, one.mask_epoch, one.mask_digest) for one in sent] == [
        (5, 1, MASK.digest),
        (9, 2, NEW.digest),
    ]
    asked = harness.stub.called("NextTask")[2]
    assert (asked.finished_step, asked.mask_digest) == (0, MASK.digest), "it says what it holds"
    assert harness.local.load() is None, "the update nobody wants is not sent again"


# -- a mask of its own


def test_a_mask_of_its_own_is_made_from_the_seed_and_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = client_random_mask(MANIFEST, SETTINGS.sparsity, SETTINGS.seed, "ann")
    seen: list[Mask] = []

    def train(_self: FakeSite, mask: Mask, base: Vector, _round: int, _on_step: Any) -> LocalResult:
        seen.append(mask)
        return LocalResult(base, 0.5, Evaluation(1, 2, 3.0), Evaluation(2, 2, 1.0))

    monkeypatch.setattr(FakeSite, "train", train)
    message = mask_pb2.MaskBroadcast(
        mask_digest=own.digest, mask_epoch=1, num_kept=own.num_kept, from_seed=True
    )
    task = train_task(mask=message, base_digest=values_digest(own.gather(INITIAL)))
    task.train.ClearField("base")
    harness = harness_of(tmp_path, [call_of(task)], SendUpdate=[accepted()])
    harness.agent.run()
    assert seen == [own]


def test_another_mask_of_its_own_than_the_coordinators_stops_it(tmp_path: Path) -> None:
    message = mask_pb2.MaskBroadcast(mask_digest=bytes(32), mask_epoch=1, from_seed=True)
    task = train_task(mask=message)
    harness = harness_of(tmp_path, [call_of(task, VALUES.tobytes())])
    with pytest.raises(Refused, match="mask for this client differs from our own"):
        harness.agent.run()


# -- a model of its own


PERSONALIZE = pb.Task(
    task_digest=b"own", step=8, personalize=pb.PersonalizeTask(rounds_done=5, **model_fields())
)


def held_finish() -> pb.Task:
    """The end, for a client that holds mask and base."""
    task = pb.Task()
    task.CopyFrom(FINISH)
    task.finish.ClearField("base")
    task.finish.mask.ClearField("mask")
    return task


def test_a_model_of_its_own_is_stored_beside_the_final_one_and_told(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2)],
        NextTask=[call_of(PERSONALIZE, MODEL), call_of(held_finish())],
        ReportEvaluation=[pb.ReportEvaluationResponse()],
        Leave=[pb.LeaveResponse()],
    )
    harness = AgentHarness(tmp_path, stub)
    folder = harness.agent.run()
    assert folder is not None
    own, final = (load_file(one / "kept.safetensors") for one in (folder / "personal", folder))
    assert np.array_equal(own["values"], VALUES + 5)
    assert np.array_equal(final["values"], VALUES), "the final model is everybody's"
    (told,) = stub.called("ReportEvaluation")
    assert told.step == 8
    assert told.evaluation == update_pb2.Evaluation(correct=1, total=2, loss_sum=3.0)
    assert told.personal == update_pb2.Evaluation(correct=2, total=2, loss_sum=1.0)
    assert not told.HasField("validation")


def test_a_model_of_its_own_that_nobody_waits_for_is_neither_stored_nor_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def over(*_: Any) -> None:
        raise StepOver

    monkeypatch.setattr(FakeSite, "personalize", over)
    stub = FakeStub(
        Join=[joined(1), joined(2)],
        NextTask=[call_of(PERSONALIZE, MODEL), call_of(held_finish())],
        Leave=[pb.LeaveResponse()],
    )
    folder = AgentHarness(tmp_path, stub).agent.run()
    assert folder is not None and not (folder / "personal").exists()


# -- what it tells


@pytest.mark.parametrize("validation", [None, Evaluation(3, 4, 1.5)])
def test_a_validation_split_is_told_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation: Evaluation | None
) -> None:
    monkeypatch.setattr(FakeSite, "validation", validation)
    task = pb.Task(task_digest=b"t", step=4, evaluate=pb.EvaluateTask(**model_fields()))
    answer = [pb.ReportEvaluationResponse()]
    harness = harness_of(tmp_path, [call_of(task, MODEL)], ReportEvaluation=answer)
    harness.agent.run()
    (told,) = harness.stub.called("ReportEvaluation")
    assert told.HasField("validation") == (validation is not None)
    assert not told.HasField("personal")
    if validation:
        assert (told.validation.correct, told.validation.total) == (3, 4)


def test_labels_are_told_in_join_if_the_site_shares_them(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2)], NextTask=[call_of(NO_MODEL)], Leave=[pb.LeaveResponse()]
    )
    harness = AgentHarness(tmp_path, stub)
    identity = Identity("ann", 40, "cpu", {}, labels=(2, 9))
    backoff = ReconnectBackoff("there:1", 600.0, lambda: 0.0, harness.pauses.append)
    Agent(stub, identity, harness.local, backoff, harness._build, tmp_path).run()
    assert [list(request.labels) for request in stub.called("Join")] == [[2, 9], [2, 9]]
