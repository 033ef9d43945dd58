"""The agent with refreshed masks, its own masks, and personal models."""

from collections.abc import Iterator
from dataclasses import replace
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
from ssfl.method.controls import client_random_mask
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.method.settings import RunSettings
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, saliency_pb2, transfer_pb2, update_pb2

NEW = Mask.from_bools(np.arange(20) % 2 == 1)  # the complement of MASK
RESTING = np.r_[np.full(20, 7), np.full(4, 9)].astype(np.float32)


class Scores:
    """Score reports as the coordinator receives them."""

    def __init__(self) -> None:
        self.headers: list[saliency_pb2.SaliencyReport] = []
        self.data: list[bytes] = []

    def __call__(self, requests: Any) -> FakeCall:
        self.headers.append(next(requests).header)
        return FakeCall(self._answers(requests))

    def _answers(self, requests: Any) -> Iterator[pb.ReportSaliencyResponse]:
        yield pb.ReportSaliencyResponse(grant=transfer_pb2.Grant())
        self.data.append(b"".join(request.chunk.data for request in requests))
        receipt = transfer_pb2.Receipt(outcome=transfer_pb2.OUTCOME_ACCEPTED)
        yield pb.ReportSaliencyResponse(receipt=receipt)


def harness_of(
    folder: Path, calls: list[FakeCall], settings: RunSettings = SETTINGS, **scripts: list[Any]
) -> AgentHarness:
    stub = FakeStub(
        Join=[joined(session, settings=settings) for session in (1, 2, 3)],
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
    scores = Scores()
    task = score_task(INITIAL, num_batches=25, num_kept=2)
    harness = harness_of(tmp_path, [call_of(task)], ReportSaliency=[scores])
    harness.agent.run()
    (asked,) = harness.sites[0].scored
    assert (asked.criterion, asked.num_batches, asked.num_kept, asked.epoch) == (
        "saliency", 25, 2, 0,
    )  # fmt: skip
    assert asked.mask is None and np.array_equal(asked.whole, INITIAL)
    assert scores.headers[0].initial_digest == values_digest(INITIAL)
    assert scores.data == [(INITIAL[:20] * 2).tobytes()]


def test_a_score_task_without_a_number_of_minibatches_means_one(tmp_path: Path) -> None:
    harness = harness_of(tmp_path, [call_of(score_task(INITIAL))], ReportSaliency=[Scores()])
    harness.agent.run()
    assert harness.sites[0].scored[0].num_batches == 1


def refresh_task() -> tuple[pb.Task, bytes, Vector]:
    """Return a refresh's score task for a client that holds nothing, and the whole model."""
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


def test_a_refresh_scores_trained_values_and_resting_values(tmp_path: Path) -> None:
    scores, (task, data, whole) = Scores(), refresh_task()
    harness = harness_of(tmp_path, [call_of(task, data)], ReportSaliency=[scores])
    harness.agent.run()
    (asked,) = harness.sites[0].scored
    assert asked.mask == MASK and asked.epoch == 1
    assert asked.whole.tobytes() == whole.tobytes()
    assert whole[:4].tolist() == [0, 7, 1, 7], "kept weights as trained, the others at rest"
    assert scores.headers[0].initial_digest == values_digest(whole)
    last = harness.stub.called("NextTask")[-1]
    assert last.scored_digest == values_digest(whole)
    assert (last.mask_digest, last.base_digest) == (MASK.digest, values_digest(VALUES))


def test_after_scoring_a_difference_of_masks_is_enough_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[Mask, Vector]] = []

    def train(_self: FakeSite, mask: Mask, base: Vector, _round: int, _on_step: Any) -> LocalResult:
        trained.append((mask, base))
        return LocalResult(base, 0.5, Evaluation(1, 2, 3.0), Evaluation(2, 2, 1.0))

    monkeypatch.setattr(FakeSite, "train", train)
    task, data, whole = refresh_task()
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
    assert base.tolist() == [7] * 10 + VALUES[10:].tolist(), (
        "added weights start from their resting values"
    )


def test_resting_weights_that_are_not_held_are_asked_for(tmp_path: Path) -> None:
    """The client then names what it holds and receives the rest."""
    task, data, _ = refresh_task()
    believed = pb.Task()
    believed.CopyFrom(task)
    believed.score.ClearField("resting")
    believed.task_digest = b"believed"
    calls = [call_of(believed, MODEL), call_of(task, data)]
    harness = harness_of(tmp_path, calls, ReportSaliency=[Scores()])
    harness.agent.run()
    assert len(harness.sites[0].scored) == 1
    assert [request.scored_digest for request in harness.stub.called("NextTask")[:2]] == [b"", b""]


def test_an_update_under_another_mask_is_deleted_and_the_task_requested_again(
    tmp_path: Path,
) -> None:
    stale = refusal(StatusCode.FAILED_PRECONDITION, "stale_mask", "made under mask 1")
    calls = [call_of(train_task(), MODEL), call_of(NO_MODEL), call_of(train_task(), MODEL)]
    harness = harness_of(tmp_path, calls, SendUpdate=[FakeCall([], stale), accepted()])
    harness.agent.run()
    assert harness.local.load() is None
    assert [request.finished_step for request in harness.stub.called("NextTask")] == [0, 5, 0, 5]
    assert harness.sites[0].trained_rounds == [2, 2], "trained again from the new task"


def test_after_a_stale_mask_the_agent_trains_under_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client missed a refresh; a difference to its old mask is enough."""
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
        call_of(NO_MODEL),  # during the upload
        call_of(following, bits + VALUES.tobytes()),
    ]
    harness = harness_of(tmp_path, calls, SendUpdate=[receive, receive])
    harness.agent.run()
    assert trained == [MASK, NEW]
    assert [(update.step, update.mask_epoch, update.mask_digest) for update in sent] == [
        (5, 1, MASK.digest),
        (9, 2, NEW.digest),
    ]
    asked = harness.stub.called("NextTask")[2]
    assert (asked.finished_step, asked.mask_digest) == (0, MASK.digest), (
        "the request names what it holds"
    )
    assert harness.local.load() is None, "the stale update is not sent again"


# -- a mask of its own


def test_a_client_random_mask_is_derived_from_seed_and_client_id(
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
    settings = replace(SETTINGS, criterion="client-random")
    harness = harness_of(tmp_path, [call_of(task)], settings, SendUpdate=[accepted()])
    harness.agent.run()
    assert seen == [own]


def test_a_client_random_mask_that_differs_from_the_coordinators_is_refused(tmp_path: Path) -> None:
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
    """Return the finish task for a client that holds mask and base."""
    task = pb.Task()
    task.CopyFrom(FINISH)
    task.finish.ClearField("base")
    task.finish.mask.ClearField("mask")
    return task


def test_a_personal_model_is_stored_next_to_the_final_one_and_reported(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2)],
        NextTask=[call_of(PERSONALIZE, MODEL), call_of(held_finish())],
        ReportEvaluation=[pb.ReportEvaluationResponse()],
        Leave=[pb.LeaveResponse()],
    )
    harness = AgentHarness(tmp_path, stub)
    folder = harness.agent.run()
    assert folder is not None
    own, final = (load_file(place / "kept.safetensors") for place in (folder / "personal", folder))
    assert np.array_equal(own["values"], VALUES + 5)
    assert np.array_equal(final["values"], VALUES), "the final model is the shared one"
    (report,) = stub.called("ReportEvaluation")
    assert report.step == 8
    assert report.evaluation == update_pb2.Evaluation(correct=1, total=2, loss_sum=3.0)
    assert report.personal == update_pb2.Evaluation(correct=2, total=2, loss_sum=1.0)
    assert not report.HasField("validation")


def test_a_personal_model_is_neither_stored_nor_reported_after_the_run_ended(
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


# -- reports


@pytest.mark.parametrize("validation", [None, Evaluation(3, 4, 1.5)])
def test_a_validation_result_is_reported_if_the_site_has_a_validation_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation: Evaluation | None
) -> None:
    monkeypatch.setattr(FakeSite, "validation", validation)
    task = pb.Task(task_digest=b"t", step=4, evaluate=pb.EvaluateTask(**model_fields()))
    answer = [pb.ReportEvaluationResponse()]
    harness = harness_of(tmp_path, [call_of(task, MODEL)], ReportEvaluation=answer)
    harness.agent.run()
    (report,) = harness.stub.called("ReportEvaluation")
    assert report.HasField("validation") == (validation is not None)
    assert not report.HasField("personal")
    if validation:
        assert (report.validation.correct, report.validation.total) == (3, 4)


def test_labels_are_sent_in_join_if_the_site_shares_them(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2)], NextTask=[call_of(NO_MODEL)], Leave=[pb.LeaveResponse()]
    )
    harness = AgentHarness(tmp_path, stub)
    identity = Identity("ann", 40, "cpu", {}, labels=(2, 9))
    backoff = ReconnectBackoff("there:1", 600.0, lambda: 0.0, harness.pauses.append)
    Agent(stub, identity, harness.local, backoff, harness._build, tmp_path).run()
    assert [list(request.labels) for request in stub.called("Join")] == [[2, 9], [2, 9]]
