"""The agent against a scripted coordinator: its calls, their order, and what it refuses."""

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
    AgentHarness,
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


def test_the_agent_joins_for_the_settings_and_again_with_its_model(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2)], NextTask=[call_of(FINISH, MODEL)], Leave=[pb.LeaveResponse()]
    )
    harness = AgentHarness(tmp_path, stub)
    folder = harness.agent.run()
    assert harness.order == ["Join", "Join", "NextTask", "Leave"]
    first, second = stub.called("Join")
    assert first.manifest_digest == b""
    assert (second.manifest_digest, second.manifest) == (MANIFEST.digest, b"")
    assert first.token == second.token == harness.local.token()
    assert harness.sites[0].settings == SETTINGS
    (request,) = stub.called("NextTask")
    assert request.caller == pb.Caller(run_id="run-1", client_id="ann", session=2)
    assert request.initial_digest == values_digest(INITIAL)
    assert folder == tmp_path / "out" / "run-1" / "ann"
    kept = load_file(folder / "kept.safetensors")
    assert np.array_equal(kept["values"], VALUES)


def test_after_a_lost_connection_the_agent_joins_once_with_the_model_it_has(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[GONE, joined(1), joined(2), GONE, joined(3)],
        NextTask=[FakeCall([], GONE), call_of(FINISH, MODEL)],
        Leave=[pb.LeaveResponse()],
    )
    harness = AgentHarness(tmp_path, stub)
    harness.agent.run()
    assert len(harness.sites) == 1
    assert len(harness.pauses) == 3
    assert stub.called("Join")[-1].manifest_digest == MANIFEST.digest
    assert stub.called("NextTask")[-1].caller.session == 3


def test_an_unknown_client_joins_again_after_a_short_pause(tmp_path: Path) -> None:
    unknown = FakeCall([], refusal(StatusCode.NOT_FOUND, "unknown_client"))
    stub = FakeStub(
        Join=[joined(1), joined(2), joined(3)],
        NextTask=[unknown, call_of(NO_MODEL)],
        Leave=[pb.LeaveResponse()],
    )
    harness = AgentHarness(tmp_path, stub)
    assert harness.agent.run() is None, "the run was stopped before it had a model"
    (pause_s,) = harness.pauses
    assert 0 < pause_s <= FIRST_PAUSE_S


def test_a_new_run_is_entered_with_its_own_settings(tmp_path: Path) -> None:
    """The client discards the settings and the model of the old run."""
    other = replace(SETTINGS, seed=5, local_steps=9)
    stub = FakeStub(
        Join=[joined(1), joined(2), joined(1, "run-2", other), joined(2, "run-2", other)],
        NextTask=[call_of(train_task(), MODEL), call_of(FINISH, MODEL), call_of(NO_MODEL)],
        SendUpdate=[FakeCall([], GONE)],
        Leave=[pb.LeaveResponse()],
    )
    harness = AgentHarness(tmp_path, stub)
    harness.agent.run()
    assert [site.settings for site in harness.sites] == [SETTINGS, other]
    last = stub.called("NextTask")[-1]
    assert last.caller.run_id == "run-2"
    assert (last.mask_digest, last.base_digest, last.finished_step) == (b"", b"", 0)


def test_a_differing_manifest_is_sent_so_that_the_refusal_can_name_the_tensor(
    tmp_path: Path,
) -> None:
    named = refusal(StatusCode.FAILED_PRECONDITION, "manifest_mismatch", "tensor 0: fc.weight")
    stub = FakeStub(Join=[joined(1), JOIN_AGAIN, joined(2), named], Leave=[pb.LeaveResponse()])
    harness = AgentHarness(tmp_path, stub)
    with pytest.raises(Refused, match=r"tensor 0: fc\.weight"):
        harness.agent.run()
    assert stub.called("Join")[-1].manifest == MANIFEST.json
    harness.agent.leave("stopped by its operator")
    assert stub.called("Leave")[0].caller.session == 2


def test_the_model_is_built_again_for_a_new_run_with_another_model(tmp_path: Path) -> None:
    other = replace(SETTINGS, model="cnn")
    stub = FakeStub(
        Join=[joined(1), joined(2), JOIN_AGAIN, joined(1, "run-2", other),
              joined(2, "run-2", other)],
        NextTask=[FakeCall([], GONE), call_of(NO_MODEL)],
        Leave=[pb.LeaveResponse()],
    )  # fmt: skip
    harness = AgentHarness(tmp_path, stub)
    harness.agent.run()
    assert [site.settings.model for site in harness.sites] == ["mlp", "cnn"]


def test_a_new_run_with_another_strategy_is_entered(tmp_path: Path) -> None:
    """The identity of the old run's strategy is refused; the next Join has none."""
    before = replace(SETTINGS, strategy="ditto", local_epochs=3)
    differs = refusal(StatusCode.FAILED_PRECONDITION, "strategy_mismatch")
    stub = FakeStub(
        Join=[joined(1, settings=before), joined(2, settings=before), differs, joined(1, "run-2"),
              joined(2, "run-2")],
        NextTask=[FakeCall([], GONE), call_of(NO_MODEL)],
        Leave=[pb.LeaveResponse()],
    )  # fmt: skip
    harness = AgentHarness(tmp_path, stub)
    harness.agent.run()
    assert [site.settings.strategy for site in harness.sites] == ["ditto", "ssfl"]
    sent = [request.strategy for request in stub.called("Join")]
    assert sent == ["", "ditto contract 1", "ditto contract 1", "", ""]


def test_another_version_of_the_strategy_ends_the_agent(tmp_path: Path) -> None:
    theirs = joined(1, settings=replace(SETTINGS, strategy="ditto", local_epochs=3))
    theirs.strategy = "ditto contract 9\n\x1b[2J"
    harness = AgentHarness(tmp_path, FakeStub(Join=[theirs], Leave=[pb.LeaveResponse()]))
    with pytest.raises(
        Refused, match=r"contract 9.*and this client has ditto contract 1"
    ) as caught:
        harness.agent.run()
    assert "\x1b" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_taken_client_id_ends_the_agent(tmp_path: Path) -> None:
    taken = refusal(StatusCode.ALREADY_EXISTS, "client_id_taken", "ann is already here")
    harness = AgentHarness(tmp_path, FakeStub(Join=[taken]))
    with pytest.raises(Refused, match="already here"):
        harness.agent.run()
    harness.agent.leave("stopped by its operator")
    assert harness.order == ["Join"], "a client that has not joined does not leave"


def test_the_give_up_deadline_ends_the_agent(tmp_path: Path) -> None:
    harness = AgentHarness(tmp_path, FakeStub(Join=[GONE]))
    harness.agent.backoff = ReconnectBackoff("there:1", 0.0, lambda: 0.0, harness.pauses.append)
    with pytest.raises(ProgramError, match="no coordinator at there:1"):
        harness.agent.run()


class SlowCall(FakeCall):
    """A long poll without a response for 30 s; records whether it was cancelled before."""

    cut_short = False

    def __iter__(self) -> Iterator[Any]:
        self._over = threading.Event()
        self.cut_short = self._over.wait(30)
        if self.cut_short:
            raise FakeRpcError(StatusCode.CANCELLED)
        yield from super().__iter__()

    def cancel(self) -> None:
        self._over.set()


def test_a_silent_long_poll_is_cancelled_and_opened_again(tmp_path: Path) -> None:
    """A live coordinator responds four times within the no-progress deadline."""
    hasty = replace(SETTINGS, no_progress_s=0.05)
    slow = SlowCall([pb.NextTaskResponse(task=NO_MODEL)])
    stub = FakeStub(
        Join=[joined(session, settings=hasty) for session in (1, 2, 3)],
        NextTask=[slow, FakeCall([pb.NextTaskResponse(task=NO_MODEL)])],
        Leave=[pb.LeaveResponse()],
    )
    harness = AgentHarness(tmp_path, stub)
    harness.agent.run()
    assert slow.cut_short
    assert len(harness.pauses) == 1


# -- working


def test_the_next_long_poll_is_opened_before_the_result_is_sent(tmp_path: Path) -> None:
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
    harness = AgentHarness(tmp_path, stub)
    harness.agent.run()
    assert harness.order == ["Join", "Join", "NextTask", "NextTask", "SendUpdate", "Leave"]
    first, second = stub.called("NextTask")
    assert (first.finished_step, first.mask_digest, first.base_digest) == (0, b"", b"")
    assert second.finished_step == 5
    assert second.mask_digest == MASK.digest
    assert second.base_digest == values_digest(VALUES)
    header, chunk = sent
    assert header.header.num_samples == 40
    assert (header.header.round_number, header.header.step) == (2, 5)
    assert chunk.chunk.data == (VALUES + 1).tobytes()
    assert harness.local.load() is None, "an acknowledged upload is deleted"


def test_a_pending_upload_is_sent_first_after_a_restart_and_not_computed_again(
    tmp_path: Path,
) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2)],
        NextTask=[call_of(FINISH, MODEL)],
        SendUpdate=[accepted()],
        Leave=[pb.LeaveResponse()],
    )
    harness = AgentHarness(tmp_path, stub)
    header = update_pb2.SparseUpdate(step=4, num_samples=40).SerializeToString()
    harness.local.save(PendingUpload("run-1", "values", 4, header, memoryview(b"four")))
    harness.agent.run()
    assert stub.called("NextTask")[0].finished_step == 4
    assert harness.order[-2:] == ["SendUpdate", "Leave"]
    assert harness.sites[0].trained_rounds == []


def test_a_pending_upload_of_another_run_is_not_sent(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2)], NextTask=[call_of(NO_MODEL)], Leave=[pb.LeaveResponse()]
    )
    harness = AgentHarness(tmp_path, stub)
    harness.local.save(PendingUpload("run-0", "values", 4, b"", memoryview(b"")))
    harness.agent.run()
    assert stub.called("NextTask")[0].finished_step == 0


def test_a_broken_upload_is_retried_after_joining_again(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[joined(1), joined(2), joined(3)],
        NextTask=[call_of(train_task(), MODEL), call_of(FINISH, MODEL), call_of(FINISH, MODEL)],
        SendUpdate=[
            FakeCall([], GONE),
            accepted(),
        ],
        Leave=[pb.LeaveResponse()],
    )
    harness = AgentHarness(tmp_path, stub)
    harness.agent.run()
    assert len(harness.pauses) == 1
    assert harness.sites[0].trained_rounds == [2], "trained once"
    assert [request.finished_step for request in stub.called("NextTask")] == [0, 5, 5]


def test_a_stale_pending_upload_is_deleted(tmp_path: Path) -> None:
    stale = refusal(StatusCode.FAILED_PRECONDITION, "stale_base", "another mask")
    stub = FakeStub(
        Join=[joined(1), joined(2), joined(3)],
        NextTask=[call_of(train_task(), MODEL), call_of(FINISH, MODEL), call_of(FINISH, MODEL)],
        SendUpdate=[FakeCall([], stale)],
        Leave=[pb.LeaveResponse()],
    )
    harness = AgentHarness(tmp_path, stub)
    harness.agent.run()
    assert stub.called("NextTask")[-1].finished_step == 0
    assert harness.local.load() is None


# -- wrong messages from the coordinator


@pytest.mark.parametrize(
    ("task", "data", "words"),
    [
        (
            pb.Task(task_digest=b"x", score=pb.ScoreTask(criterion="saliency")),
            b"",
            "weights to score do not match the digest",
        ),
        (
            train_task(mask=mask_pb2.MaskBroadcast(mask_digest=bytes(32), all_kept=True)),
            VALUES.tobytes(),
            "mask from the coordinator does not match",
        ),
        (
            train_task(base=payload(bytes(8), transfer_pb2.ENCODING_VALUES_ONLY)),
            MASK.bits + bytes(8),
            "values from the coordinator do not fit",
        ),
    ],
)
def test_a_payload_that_does_not_fit_its_task_is_refused(
    tmp_path: Path, task: pb.Task, data: bytes, words: str
) -> None:
    stub = FakeStub(Join=[joined(1), joined(2)], NextTask=[call_of(task, data)])
    with pytest.raises(Refused, match=words):
        AgentHarness(tmp_path, stub).agent.run()


def test_a_task_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    task = pb.Task(task_digest=b"x")
    stub = FakeStub(Join=[joined(1), joined(2)], NextTask=[call_of(task)])
    with pytest.raises(Refused, match="this version does not know"):
        AgentHarness(tmp_path, stub).agent.run()


def test_a_base_that_does_not_match_its_digest_is_fetched_again(tmp_path: Path) -> None:
    wrong = train_task(base_digest=bytes(32))
    stub = FakeStub(
        Join=[joined(1), joined(2), joined(3)],
        NextTask=[call_of(wrong, MODEL), call_of(NO_MODEL)],
        Leave=[pb.LeaveResponse()],
    )
    AgentHarness(tmp_path, stub).agent.run()
    again = stub.called("NextTask")[-1]
    assert again.mask_digest == MASK.digest
    assert again.base_digest == b""


@pytest.mark.parametrize(
    "run_id",
    ["../../elsewhere", "/elsewhere", "..", ".", "", "a/b", "a\n", "é", "x" * 65, "\x1b[2J"],
)
def test_a_run_id_that_is_no_folder_name_is_refused(tmp_path: Path, run_id: str) -> None:
    """Otherwise the coordinator could have the models written outside --out-dir."""
    stub = FakeStub(
        Join=[joined(1, run_id), joined(2, run_id)],
        NextTask=[call_of(FINISH, MODEL)],
        Leave=[pb.LeaveResponse()],
    )
    with pytest.raises(Refused, match="sent the run id '") as caught:
        AgentHarness(tmp_path, stub).agent.run()
    assert str(caught.value).isprintable()
    assert not list(tmp_path.rglob("model.safetensors"))


@pytest.mark.parametrize("run_id", ["20250101-120000-abcdef", "20240229-235959-a1b2c3", "r.1_x"])
def test_a_run_id_of_any_version_is_accepted(tmp_path: Path, run_id: str) -> None:
    restarted_after_end(tmp_path, run_id)


def test_a_failed_leave_call_does_not_fail_the_agent(tmp_path: Path) -> None:
    stub = FakeStub(Join=[joined(1), joined(2)], NextTask=[call_of(FINISH, MODEL)], Leave=[GONE])
    assert AgentHarness(tmp_path, stub).agent.run() is not None


def restarted_after_end(folder: Path, run_id: str = "run-1") -> AgentHarness:
    """Return a client that crashed between Leave and its exit and was started again."""
    stub = FakeStub(
        Join=[joined(1, run_id), joined(2, run_id)],
        NextTask=[call_of(FINISH, MODEL)],
        Leave=[pb.LeaveResponse()],
    )
    assert AgentHarness(folder, stub).agent.run() == folder / "out" / run_id / "ann"
    return AgentHarness(folder, FakeStub(Join=[GONE] * 100))


def test_a_client_that_crashed_after_its_run_ended_gives_up_after_a_while_with_success(
    tmp_path: Path,
) -> None:
    harness = restarted_after_end(tmp_path)
    assert harness.agent.run() == tmp_path / "out" / "run-1" / "ann"
    assert 20 <= sum(harness.pauses) < 60


def test_a_client_whose_final_model_is_damaged_keeps_retrying(tmp_path: Path) -> None:
    harness = restarted_after_end(tmp_path)
    model = tmp_path / "out" / "run-1" / "ann" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(ProgramError, match="no coordinator at there:1 for 600 s"):
        harness.agent.run()


def test_joining_a_new_run_removes_the_record_of_the_ended_one(tmp_path: Path) -> None:
    restarted_after_end(tmp_path)
    stub = FakeStub(Join=[joined(3, "run-2"), GONE, *[GONE] * 100])
    with pytest.raises(ProgramError, match="no coordinator at there:1"):
        AgentHarness(tmp_path, stub).agent.run()


def test_invalid_run_settings_are_refused(tmp_path: Path) -> None:
    response = joined(1)
    response.settings.batch_size = 0
    words = "cannot use the run's settings: --batch-size must be a number"
    with pytest.raises(Refused, match=words):
        AgentHarness(tmp_path, FakeStub(Join=[response])).agent.run()


def test_a_choice_that_an_older_coordinator_does_not_send_has_its_default(tmp_path: Path) -> None:
    response = joined(1)
    response.settings.norm = ""
    stub = FakeStub(
        Join=[response, joined(2)], NextTask=[call_of(FINISH, MODEL)], Leave=[pb.LeaveResponse()]
    )
    harness = AgentHarness(tmp_path, stub)
    harness.agent.run()
    assert harness.sites[0].settings == SETTINGS
