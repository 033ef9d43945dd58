"""Progress reports of a client."""

import grpc
import pytest

from client.fakes import FakeRpcError, FakeStub
from ssfl.client import progress
from ssfl.client.progress import ProgressReporter, StepOver
from ssfl.v1 import coordinator_pb2 as pb
from system.programs import until

CALLER = pb.Caller(run_id="run-1", client_id="ann", session=3)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PROGRESS_EVERY_S", 0.01)


def test_the_newest_step_is_reported() -> None:
    stub = FakeStub(Progress=[pb.ProgressResponse()] * 10_000)
    with ProgressReporter(stub, CALLER, step=7) as report:
        report.on_step(3, 20)
        until(lambda: len(stub.called("Progress")) >= 2, "two reports")
    request = stub.called("Progress")[-1]
    assert request.caller == CALLER
    assert (request.step, request.steps_done, request.steps_all) == (7, 3, 20)


def test_a_closed_step_stops_the_work() -> None:
    stub = FakeStub(Progress=[pb.ProgressResponse(step_closed=True)] * 10_000)

    def work(report: ProgressReporter) -> bool:
        report.on_step(1, 20)
        return False

    with pytest.raises(StepOver), ProgressReporter(stub, CALLER, step=7) as report:
        until(lambda: work(report), "the work is stopped")


def test_a_report_that_fails_does_not_stop_the_work() -> None:
    """The upload reports the cause; the coordinator may be back by then."""
    lost = [FakeRpcError(grpc.StatusCode.UNAVAILABLE)] * 10_000
    stub = FakeStub(Progress=lost)
    with ProgressReporter(stub, CALLER, step=7) as report:
        until(lambda: len(stub.called("Progress")) >= 3, "three reports")
        report.on_step(1, 20)


def test_work_shorter_than_the_period_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PROGRESS_EVERY_S", 60.0)
    stub = FakeStub()
    with ProgressReporter(stub, CALLER, step=7) as report:
        report.on_step(1, 1)
    assert stub.requests == []
