"""The agent with coded payloads: references it holds or derives, and residuals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc import StatusCode

from client.agent_harness import (
    GONE,
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
    payload,
    refusal,
    train_task,
)
from client.fakes import INITIAL, FakeCall, FakeStub
from ssfl.client.errors import Refused
from ssfl.client.local_work import Vector
from ssfl.codec import blocks, grid, masks, reference
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, transfer_pb2, update_pb2

FIRST = MASK.gather(INITIAL)
# Multiples of a half, rounded to nearest: residuals can be computed by hand.
COARSE = replace(SETTINGS, value_type="grid", grid_bits=1, rounding="nearest")
GRID = transfer_pb2.ENCODING_GRID
OUTCOMES = {
    "accepted": transfer_pb2.OUTCOME_ACCEPTED,
    "already accepted": transfer_pb2.OUTCOME_ALREADY_ACCEPTED,
    "step closed": transfer_pb2.OUTCOME_STEP_CLOSED,
}


@pytest.fixture(autouse=True)
def _training_adds_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSite, "delta", np.float32(0.375))


def receipt(outcome: str) -> FakeCall:
    message = transfer_pb2.Receipt(outcome=OUTCOMES[outcome])
    return FakeCall([pb.SendUpdateResponse(receipt=message)])


class SentUpdates:
    """Updates as the coordinator receives them; it replies with the given outcomes."""

    def __init__(self, *outcomes: str | FakeCall) -> None:
        self.script = [self._reply(outcome) for outcome in outcomes]
        self.headers: list[update_pb2.SparseUpdate] = []
        self.data: list[bytes] = []

    def _reply(self, outcome: str | FakeCall) -> Any:
        def reply(requests: Any) -> FakeCall:
            header, *chunks = requests
            self.headers.append(header.header)
            self.data.append(b"".join(message.chunk.data for message in chunks))
            return outcome if isinstance(outcome, FakeCall) else receipt(outcome)

        return reply

    def change(self, number: int) -> float:
        """Return the change of an update against its base, the same for every value."""
        values = blocks.decode(grid.Grid(), self.data[number], 14, VALUES)
        (change,) = set((values - VALUES).tolist())
        return float(change)


def round_task(number: int, **changes: Any) -> pb.Task:
    """Return a round of a lossy run; only the first round brings the base."""
    task = train_task(round_number=number, update_encoding=GRID, **changes)
    task.step, task.task_digest = 5 + number, b"round %d" % number
    if number:
        task.train.ClearField("base")
        task.train.mask.ClearField("mask")
    return task


def run(folder: Path, calls: list[FakeCall], sent: SentUpdates, run_id: str = "run-1") -> FakeStub:
    """Run a client process in a lossy run, from start to end."""
    stub = FakeStub(
        Join=[joined(1, run_id, COARSE), joined(2, run_id, COARSE), joined(3, run_id, COARSE)],
        NextTask=[*calls, call_of(NO_MODEL), call_of(NO_MODEL)],
        SendUpdate=sent.script,
        Leave=[pb.LeaveResponse()],
    )
    AgentHarness(folder, stub).agent.run()
    return stub


def first_round(**changes: Any) -> FakeCall:
    return call_of(round_task(0, **changes), MODEL)


def later_round() -> FakeCall:
    """Return a round after the first, for a process that holds nothing yet."""
    task = round_task(0)
    task.train.round_number, task.step, task.task_digest = 1, 6, b"a later round"
    return call_of(task, MODEL)


# -- residuals


@pytest.mark.parametrize("outcome", ["accepted", "already accepted"])
def test_the_residual_of_an_accepted_update_is_added_to_the_next(
    tmp_path: Path, outcome: str
) -> None:
    sent = SentUpdates(outcome, outcome, outcome)
    run(tmp_path, [first_round(), *(call_of(round_task(number)) for number in (1, 2))], sent)
    # 0.375 -> 0.5, 0.125 too much; 0.25 -> 0 (ties to even), 0.25 too little; 0.625 -> 0.5
    assert [sent.change(number) for number in range(3)] == [0.5, 0.0, 0.5]
    assert [header.values.encoding for header in sent.headers] == [GRID] * 3
    assert sent.headers[0].values.reference_digest == values_digest(VALUES)
    assert sent.headers[0].coding_error == pytest.approx(1 / 3)


def test_the_residual_of_a_late_update_is_not_added(tmp_path: Path) -> None:
    sent = SentUpdates("accepted", "step closed", "accepted")
    run(tmp_path, [first_round(), *(call_of(round_task(number)) for number in (1, 2))], sent)
    assert [sent.change(number) for number in range(3)] == [0.5, 0.0, 0.0], "0.25 again"


def test_the_residual_of_a_stale_update_is_not_added(tmp_path: Path) -> None:
    stale = FakeCall([], refusal(StatusCode.FAILED_PRECONDITION, "stale_base"))
    sent = SentUpdates("accepted", stale, "accepted")
    calls = [first_round(), call_of(round_task(1)), call_of(NO_MODEL), call_of(round_task(2))]
    run(tmp_path, calls, sent)
    assert [sent.change(number) for number in range(3)] == [0.5, 0.0, 0.0]


def test_the_residual_survives_a_restart(tmp_path: Path) -> None:
    run(tmp_path, [first_round()], SentUpdates("accepted"))
    sent = SentUpdates("accepted")
    run(tmp_path, [later_round()], sent)
    assert sent.change(0) == 0.0, "0.25, as without the restart"


def test_a_repeated_round_starts_from_the_residual_before_it(tmp_path: Path) -> None:
    sent = SentUpdates("accepted", "accepted", "accepted")
    again = round_task(1, attempt=1)
    again.step, again.task_digest = 7, b"round 1 again"
    calls = [first_round(), call_of(round_task(1)), call_of(again)]
    run(tmp_path, calls, sent)
    assert [sent.change(number) for number in range(3)] == [0.5, 0.0, 0.0]
    assert sent.data[1] == sent.data[2]


def test_a_pending_update_keeps_its_residual_over_a_restart(tmp_path: Path) -> None:
    """The process dies during its upload; the next process sends the update and continues."""
    stub = FakeStub(
        Join=[joined(1, settings=COARSE), joined(2, settings=COARSE), _killed],
        NextTask=[first_round(), call_of(NO_MODEL)],
        SendUpdate=[FakeCall([], GONE)],
    )
    with pytest.raises(KeyboardInterrupt):
        AgentHarness(tmp_path, stub).agent.run()
    kept: list[int] = []

    def known(requests: Any) -> FakeCall:
        kept.append(next(requests).header.step)
        return receipt("already accepted")

    sent = SentUpdates("accepted")
    sent.script.insert(0, known)
    run(tmp_path, [later_round()], sent)
    assert kept == [5], "sent without training again"
    assert sent.change(0) == 0.0


def _killed(_request: Any) -> None:
    raise KeyboardInterrupt


def test_the_residual_of_another_run_is_not_used(tmp_path: Path) -> None:
    run(tmp_path, [first_round()], SentUpdates("accepted"))
    sent = SentUpdates("accepted")
    run(tmp_path, [first_round()], sent, run_id="run-2")
    assert sent.change(0) == 0.5


def test_a_damaged_residual_is_ignored(tmp_path: Path) -> None:
    run(tmp_path, [first_round()], SentUpdates("accepted"))
    for file in (tmp_path / "state" / "memory").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    sent = SentUpdates("accepted")
    run(tmp_path, [first_round()], sent)
    assert sent.change(0) == 0.5


# -- references that are held or derived


def coded_task(
    values: Vector, against: Vector | None, name: bytes, **changes: Any
) -> tuple[pb.Task, bytes]:
    """Return a task whose base is coded against values, for a client that holds the mask."""
    data = bytes(blocks.encode(reference.CODE, values, against))
    base = payload(data, transfer_pb2.ENCODING_REFERENCE)
    base.reference_digest = b"" if against is None else values_digest(against)
    task = train_task(
        base=base,
        base_digest=values_digest(values),
        update_encoding=transfer_pb2.ENCODING_REFERENCE,
        **changes,
    )
    task.train.mask.ClearField("mask")
    task.task_digest = name
    return task, data


def harness_of(
    folder: Path, calls: list[FakeCall], num_sent: int, num_joins: int = 2
) -> AgentHarness:
    stub = FakeStub(
        Join=[joined(session + 1) for session in range(num_joins)],
        NextTask=[*calls, call_of(NO_MODEL)],
        SendUpdate=[accepted() for _ in range(num_sent)],
        Leave=[pb.LeaveResponse()],
    )
    return AgentHarness(folder, stub)


def test_a_base_is_decoded_against_the_previous_base(tmp_path: Path) -> None:
    task, data = coded_task(VALUES * 3, VALUES, b"next")
    harness = harness_of(tmp_path, [call_of(train_task(), MODEL), call_of(task, data)], 2)
    harness.agent.run()
    assert harness.stub.called("NextTask")[-1].base_digest == values_digest(VALUES * 3)


def test_the_first_base_is_derived_from_mask_and_initial_weights(tmp_path: Path) -> None:
    task = train_task(base_digest=values_digest(FIRST))
    task.train.ClearField("base")
    harness = harness_of(tmp_path, [call_of(task, MASK.bits)], 1)
    harness.agent.run()
    first, second = harness.stub.called("NextTask")
    assert first.initial_digest == values_digest(INITIAL)
    assert second.base_digest == values_digest(FIRST)


def test_a_base_is_decoded_against_the_first_base_which_is_derived(tmp_path: Path) -> None:
    task, data = coded_task(VALUES * 3, FIRST, b"next")
    harness = harness_of(tmp_path, [call_of(train_task(), MODEL), call_of(task, data)], 2)
    harness.agent.run()
    assert harness.stub.called("NextTask")[-1].base_digest == values_digest(VALUES * 3)


def test_a_reference_that_is_not_held_is_not_claimed_again(tmp_path: Path) -> None:
    """The client asks again, for a base without a reference."""
    wrong, bad = coded_task(VALUES * 3, VALUES * 2, b"wrong")
    right, data = coded_task(VALUES * 3, None, b"right")
    calls = [call_of(train_task(), MODEL), call_of(wrong, bad), call_of(right, data)]
    harness = harness_of(tmp_path, calls, 2, num_joins=3)
    harness.agent.run()
    held = [request.base_digest for request in harness.stub.called("NextTask")]
    assert held == [b"", values_digest(VALUES), b"", values_digest(VALUES * 3)]
    assert harness.sites[0].trained_rounds == [2, 2], "no training without the base"


def test_a_base_that_is_neither_sent_nor_derivable_is_asked_for(tmp_path: Path) -> None:
    task = train_task(base_digest=bytes(32))
    task.train.ClearField("base")
    harness = harness_of(tmp_path, [call_of(task, MASK.bits)], 0, num_joins=3)
    harness.agent.run()
    again = harness.stub.called("NextTask")[-1]
    assert (again.mask_digest, again.base_digest) == (MASK.digest, b"")


def difference_task(held: Mask) -> tuple[pb.Task, bytes]:
    bits = masks.difference(MASK.bits, held.bits)
    mask = payload(bits, transfer_pb2.ENCODING_BITMASK)
    mask.reference_digest = held.digest
    message = mask_pb2.MaskBroadcast(
        mask_digest=MASK.digest, mask_epoch=2, num_kept=MASK.num_kept, mask=mask
    )
    return train_task(mask=message), bits + VALUES.tobytes()


OLD = Mask.full(20)


def evaluation() -> FakeCall:
    """Return an evaluation of the initial weights with a mask that keeps everything."""
    base = INITIAL.tobytes()
    work = pb.EvaluateTask(
        mask=mask_pb2.MaskBroadcast(mask_digest=OLD.digest, num_kept=20, all_kept=True),
        base_digest=values_digest(INITIAL),
        base=payload(base, transfer_pb2.ENCODING_VALUES_ONLY),
    )
    return call_of(pb.Task(task_digest=b"test", step=4, evaluate=work), base)


def masks_claimed(harness: AgentHarness) -> list[bytes]:
    """Return the mask digest of each NextTask call."""
    harness.stub._scripts["ReportEvaluation"] = [pb.ReportEvaluationResponse()]
    harness.agent.run()
    return [request.mask_digest for request in harness.stub.called("NextTask")]


def test_a_mask_is_decoded_against_the_previous_mask(tmp_path: Path) -> None:
    harness = harness_of(tmp_path, [evaluation(), call_of(*difference_task(OLD))], 1)
    assert masks_claimed(harness) == [b"", OLD.digest, MASK.digest]


def test_after_a_difference_to_a_mask_that_is_not_held_the_whole_mask_is_asked_for(
    tmp_path: Path,
) -> None:
    """The client then claims no mask, so that it cannot receive a difference again."""
    wrong = call_of(*difference_task(Mask.from_bools(np.arange(20) < 3)))
    calls = [evaluation(), wrong, call_of(train_task(), MODEL)]
    harness = harness_of(tmp_path, calls, 1, num_joins=3)
    assert masks_claimed(harness) == [b"", OLD.digest, b"", MASK.digest]


@pytest.mark.parametrize("encoding", [transfer_pb2.ENCODING_INT8, transfer_pb2.ENCODING_SCORES])
def test_an_update_encoding_that_the_run_does_not_use_is_refused(
    tmp_path: Path, encoding: int
) -> None:
    task = train_task(update_encoding=transfer_pb2.Encoding.Name(encoding))
    harness = harness_of(tmp_path, [call_of(task, MODEL)], 0)
    with pytest.raises(Refused, match=f"asks for values in encoding {encoding}"):
        harness.agent.run()
