"""The agent against a scripted coordinator: what it says, in which order, and what it refuses."""

import threading
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
    GONE,
    JOIN_AGAIN,
    MASK,
    MODEL,
    NO_MODEL,
    SETTINGS,
    VALUES,
    Scene,
    accepted,
    call_of,
    joined,
    payload,
    refusal,
    train_task,
)
from client.fakes import INITIAL, MANIFEST, FakeCall, FakeRpcError, FakeStub
from ssfl.client.connection import FIRST_PAUSE_S, ReconnectBackoff
from ssfl.client.errors import Refused
from ssfl.client.local_state import PendingUpload
from ssfl.method.model_state import values_digest
from ssfl.program.exits import ProgramError
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, transfer_pb2, update_pb2

# -- joining


def test_it_joins_to_be_told_the_settings_and_again_with_its_model(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2)], NextTask=[call_of(FINISH, MODEL)], Leave=[pb.LeaveResponse()]
    )
    scene = Scene(tmp_path, stub)
    folder = scene.agent.run()
    assert scene.order == ["Join", "Join", "NextTask", "Leave"]
    first, second = stub.called("Join")
    assert first.manifest_digest == b""
    assert (second.manifest_digest, second.manifest) == (MANIFEST.digest, b"")
    assert first.token == second.token == scene.local.token()
    assert scene.sites[0].settings == SETTINGS
    (asked,) = stub.called("NextTask")
    assert asked.caller == pb.Caller(run_id="run-1", client_id="ann", session=2)
    assert asked.initial_digest == values_digest(INITIAL)
    assert folder == tmp_path / "out" / "run-1" / "ann"
    kept = load_file(folder / "kept.safetensors")
    assert np.array_equal(kept["values"], VALUES)


def test_after_a_loss_it_waits_and_joins_once_with_what_it_has(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[GONE, joined(1), joined(2), GONE, joined(3)],
        NextTask=[FakeCall([], GONE), call_of(FINISH, MODEL)],
        Leave=[pb.LeaveResponse()],
    )
    scene = Scene(tmp_path, stub)
    scene.agent.run()
    assert len(scene.sites) == 1
    assert len(scene.pauses) == 3
    assert stub.called("Join")[-1].manifest_digest == MANIFEST.digest
    assert stub.called("NextTask")[-1].caller.session == 3


def test_unknown_here_means_join_again_after_a_moment(tmp_path: Path) -> None:
    unknown = FakeCall([], refusal(StatusCode.NOT_FOUND, "unknown_client"))
    stub = FakeStub(
        Join=[joined(1), joined(2), joined(3)],
        NextTask=[unknown, call_of(NO_MODEL)],
        Leave=[pb.LeaveResponse()],
    )
    scene = Scene(tmp_path, stub)
    assert scene.agent.run() is None, "the run was stopped before there was a model"
    (pause_s,) = scene.pauses
    assert 0 < pause_s <= FIRST_PAUSE_S


def test_a_new_run_is_entered_with_its_own_settings(tmp_path: Path) -> None:
    """The coordinator began afresh: what the client was told and holds is of no use any more."""
    other = replace(SETTINGS, seed=5, local_steps=9)
    stub = FakeStub(
        Join=[joined(1), joined(2), joined(1, "run-2", other), joined(2, "run-2", other)],
        NextTask=[call_of(train_task(), MODEL), call_of(FINISH, MODEL), call_of(NO_MODEL)],
        SendUpdate=[FakeCall([], GONE)],
        Leave=[pb.LeaveResponse()],
    )
    scene = Scene(tmp_path, stub)
    scene.agent.run()
    assert [site.settings for site in scene.sites] == [SETTINGS, other]
    last = stub.called("NextTask")[-1]
    assert last.caller.run_id == "run-2"
    assert (last.mask_digest, last.base_digest, last.finished_step) == (b"", b"", 0)


def test_a_differing_model_is_shown_so_that_the_refusal_can_name_the_tensor(
    tmp_path: Path,
) -> None:
    named = refusal(StatusCode.FAILED_PRECONDITION, "manifest_mismatch", "tensor 0: fc.weight")
    stub = FakeStub(Join=[joined(1), JOIN_AGAIN, joined(2), named], Leave=[pb.LeaveResponse()])
    scene = Scene(tmp_path, stub)
    with pytest.raises(Refused, match=r"tensor 0: fc\.weight"):
        scene.agent.run()
    assert stub.called("Join")[-1].manifest == MANIFEST.json
    scene.agent.leave("stopped by its operator")
    assert stub.called("Leave")[0].caller.session == 2


def test_a_differing_model_in_a_new_run_is_built_anew(tmp_path: Path) -> None:
    other = replace(SETTINGS, model="cnn")
    stub = FakeStub(
        Join=[joined(1), joined(2), JOIN_AGAIN, joined(1, "run-2", other),
              joined(2, "run-2", other)],
        NextTask=[FakeCall([], GONE), call_of(NO_MODEL)],
        Leave=[pb.LeaveResponse()],
    )  # fmt: skip
    scene = Scene(tmp_path, stub)
    scene.agent.run()
    assert [site.settings.model for site in scene.sites] == ["mlp", "cnn"]


def test_a_taken_name_ends_it(tmp_path: Path) -> None:
    taken = refusal(StatusCode.ALREADY_EXISTS, "client_id_taken", "ann is already here")
    scene = Scene(tmp_path, FakeStub(Join=[taken]))
    with pytest.raises(Refused, match="already here"):
        scene.agent.run()
    scene.agent.leave("stopped by its operator")
    assert scene.order == ["Join"], "who never joined has nobody to say goodbye to"


def test_a_deadline_ends_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeStub(Join=[GONE]))
    scene.agent._backoff = ReconnectBackoff("there:1", 0.0, lambda: 0.0, scene.pauses.append)
    with pytest.raises(ProgramError, match="no coordinator at there:1"):
        scene.agent.run()


class SlowCall(FakeCall):
    """A long poll that says nothing for long; remembers if it was cut short."""

    cut_short = False

    def __iter__(self) -> Iterator[Any]:
        self._over = threading.Event()
        self.cut_short = self._over.wait(30)
        if self.cut_short:
            raise FakeRpcError(StatusCode.CANCELLED)
        yield from super().__iter__()

    def cancel(self) -> None:
        self._over.set()


def test_a_long_poll_that_hears_nothing_is_given_up_and_opened_again(tmp_path: Path) -> None:
    """A coordinator that is there gives a sign of life four times per no-progress deadline."""
    hasty = replace(SETTINGS, no_progress_s=0.05)
    slow = SlowCall([pb.NextTaskResponse(task=NO_MODEL)])
    stub = FakeStub(
        Join=[joined(session, settings=hasty) for session in (1, 2, 3)],
        NextTask=[slow, FakeCall([pb.NextTaskResponse(task=NO_MODEL)])],
        Leave=[pb.LeaveResponse()],
    )
    scene = Scene(tmp_path, stub)
    scene.agent.run()
    assert slow.cut_short
    assert len(scene.pauses) == 1


# -- working


def test_the_next_task_is_asked_for_before_the_answer_is_sent(tmp_path: Path) -> None:
    sent: list[Any] = []

    def upload(requests: Any) -> FakeCall:
        sent.extend(requests)
        return accepted()

    stub = FakeStub(
        Join=[joined(1), joined(2)],
        NextTask=[call_of(train_task(), MODEL), call_of(FINISH, MODEL)],
        SendUpdate=[upload],
        Leave=[pb.LeaveResponse()],
    )
    scene = Scene(tmp_path, stub)
    scene.agent.run()
    assert scene.order == ["Join", "Join", "NextTask", "NextTask", "SendUpdate", "Leave"]
    first, second = stub.called("NextTask")
    assert (first.finished_step, first.mask_digest, first.base_digest) == (0, b"", b"")
    assert second.finished_step == 5
    assert second.mask_digest == MASK.digest
    assert second.base_digest == values_digest(VALUES)
    header, chunk = sent
    assert header.header.num_samples == 40
    assert (header.header.round_number, header.header.step) == (2, 5)
    assert chunk.chunk.data == (VALUES + 1).tobytes()
    assert scene.local.load() is None, "acknowledged, so forgotten"


def test_an_answer_from_before_a_restart_is_sent_first_and_not_computed_again(
    tmp_path: Path,
) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2)],
        NextTask=[call_of(FINISH, MODEL)],
        SendUpdate=[accepted()],
        Leave=[pb.LeaveResponse()],
    )
    scene = Scene(tmp_path, stub)
    header = update_pb2.SparseUpdate(step=4, num_samples=40).SerializeToString()
    scene.local.save(PendingUpload("run-1", "values", 4, header, memoryview(b"four")))
    scene.agent.run()
    assert stub.called("NextTask")[0].finished_step == 4
    assert scene.order[-2:] == ["SendUpdate", "Leave"]
    assert scene.sites[0].trained_rounds == []


def test_an_answer_of_another_run_is_not_sent(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2)], NextTask=[call_of(NO_MODEL)], Leave=[pb.LeaveResponse()]
    )
    scene = Scene(tmp_path, stub)
    scene.local.save(PendingUpload("run-0", "values", 4, b"", memoryview(b"")))
    scene.agent.run()
    assert stub.called("NextTask")[0].finished_step == 0


def test_a_cut_upload_is_tried_again_after_joining(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2), joined(3)],
        NextTask=[call_of(train_task(), MODEL), call_of(FINISH, MODEL), call_of(FINISH, MODEL)],
        SendUpdate=[
            FakeCall([], GONE),
            accepted(),
        ],
        Leave=[pb.LeaveResponse()],
    )
    scene = Scene(tmp_path, stub)
    scene.agent.run()
    assert len(scene.pauses) == 1
    assert scene.sites[0].trained_rounds == [2], "trained once"
    assert [one.finished_step for one in stub.called("NextTask")] == [0, 5, 5]


def test_a_stale_answer_is_dropped(tmp_path: Path) -> None:
    stale = refusal(StatusCode.FAILED_PRECONDITION, "stale_base", "another mask")
    stub = FakeStub(
        Join=[joined(1), joined(2), joined(3)],
        NextTask=[call_of(train_task(), MODEL), call_of(FINISH, MODEL), call_of(FINISH, MODEL)],
        SendUpdate=[FakeCall([], stale)],
        Leave=[pb.LeaveResponse()],
    )
    scene = Scene(tmp_path, stub)
    scene.agent.run()
    assert stub.called("NextTask")[-1].finished_step == 0
    assert scene.local.load() is None


# -- a coordinator that is wrong


@pytest.mark.parametrize(
    ("task", "data", "words"),
    [
        (
            pb.Task(task_digest=b"x", score=pb.ScoreTask(criterion="saliency")),
            b"",
            "weights to score that do not match their digest",
        ),
        (
            train_task(mask=mask_pb2.MaskBroadcast(mask_digest=bytes(32), all_kept=True)),
            VALUES.tobytes(),
            "mask that does not match",
        ),
        (
            train_task(base=payload(bytes(8), transfer_pb2.ENCODING_VALUES_ONLY)),
            MASK.bits + bytes(8),
            "values that do not fit",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(
    tmp_path: Path, task: pb.Task, data: bytes, words: str
) -> None:
    stub = FakeStub(Join=[joined(1), joined(2)], NextTask=[call_of(task, data)])
    with pytest.raises(Refused, match=words):
        Scene(tmp_path, stub).agent.run()


def test_a_task_of_the_future_is_refused(tmp_path: Path) -> None:
    task = pb.Task(task_digest=b"x")
    stub = FakeStub(Join=[joined(1), joined(2)], NextTask=[call_of(task)])
    with pytest.raises(Refused, match="this version does not know"):
        Scene(tmp_path, stub).agent.run()


def test_a_base_that_is_not_the_announced_one_is_fetched_again(tmp_path: Path) -> None:
    wrong = train_task(base_digest=bytes(32))
    stub = FakeStub(
        Join=[joined(1), joined(2), joined(3)],
        NextTask=[call_of(wrong, MODEL), call_of(NO_MODEL)],
        Leave=[pb.LeaveResponse()],
    )
    Scene(tmp_path, stub).agent.run()
    again = stub.called("NextTask")[-1]
    assert again.mask_digest == MASK.digest
    assert again.base_digest == b""


def test_a_goodbye_that_fails_is_no_failure(tmp_path: Path) -> None:
    stub = FakeStub(Join=[joined(1), joined(2)], NextTask=[call_of(FINISH, MODEL)], Leave=[GONE])
    assert Scene(tmp_path, stub).agent.run() is not None


def ended_scene(folder: Path, run_id: str = "run-1") -> Scene:
    """A client that crashed between its goodbye and its exit, and starts again."""
    stub = FakeStub(
        Join=[joined(1, run_id), joined(2, run_id)],
        NextTask=[call_of(FINISH, MODEL)],
        Leave=[pb.LeaveResponse()],
    )
    assert Scene(folder, stub).agent.run() == folder / "out" / run_id / "ann"
    return Scene(folder, FakeStub(Join=[GONE] * 100))


def test_a_client_that_crashed_after_the_end_of_its_run_tries_for_a_while_and_is_done(
    tmp_path: Path,
) -> None:
    scene = ended_scene(tmp_path)
    assert scene.agent.run() == tmp_path / "out" / "run-1" / "ann"
    assert 20 <= sum(scene.pauses) < 60


def test_a_client_whose_final_model_is_damaged_does_not_call_it_done(tmp_path: Path) -> None:
    scene = ended_scene(tmp_path)
    model = tmp_path / "out" / "run-1" / "ann" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(ProgramError, match="no coordinator at there:1 for 600 s"):
        scene.agent.run()


def test_a_new_run_is_joined_and_ends_what_an_earlier_one_left(tmp_path: Path) -> None:
    ended_scene(tmp_path)
    stub = FakeStub(Join=[joined(3, "run-2"), GONE, *[GONE] * 100])
    with pytest.raises(ProgramError, match="no coordinator at there:1"):
        Scene(tmp_path, stub).agent.run()


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    told = joined(1)
    told.settings.batch_size = 0
    with pytest.raises(Refused, match="not for this version: --batch-size must be a number"):
        Scene(tmp_path, FakeStub(Join=[told])).agent.run()


def test_a_choice_that_an_older_coordinator_does_not_know_has_its_default(tmp_path: Path) -> None:
    told = joined(1)
    told.settings.norm = ""
    stub = FakeStub(
        Join=[told, joined(2)], NextTask=[call_of(FINISH, MODEL)], Leave=[pb.LeaveResponse()]
    )
    scene = Scene(tmp_path, stub)
    scene.agent.run()
    assert scene.sites[0].settings == SETTINGS
