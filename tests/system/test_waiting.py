"""Runs below their quorum wait, resume or give up; SIGTERM; removed sites."""

import json
import queue
import signal
from collections.abc import Iterator

import grpc
import pytest

from ssfl.program.exits import ExitCode
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2
from system.programs import Programs, until
from system.raw_client import RUN, chunks_of
from system.raw_run import RawRun, refused

pytestmark = pytest.mark.system


def test_a_run_below_its_quorum_reports_the_stall_and_resumes_by_itself(raw: RawRun) -> None:
    raw.training()
    raw.bob.leave(pb.LEAVE_REASON_STOPPING)
    status = raw.coordinator.status()
    assert status.phase == "waiting"
    assert [client.client_id for client in status.stall.missing] == ["bob"]
    assert status.stall.missing[0].state == "left"
    assert "1 of at least 2 reports can come" in status.stall.reason
    assert "1 client of those missing to return, or others to join" in status.stall.unblock
    line = raw.coordinator.says("WAITING for train: 1 of at least 2 reports can come")
    assert "bob (left)" in line and "last seen" in line
    shown = raw.programs.run("ssfl", "status", f"--admin=localhost:{raw.coordinator.admin_port}")
    assert "waiting" in shown.out and "bob" in shown.out
    raw.bob.join()
    assert raw.coordinator.status().phase == "train"
    raw.coordinator.says("the run continues")
    raw.finish_honestly()


def test_another_client_describes_the_model_if_the_first_does_not(programs: Programs) -> None:
    raw = RawRun(programs, programs.coordinator(*RUN, "--no-progress-s=2"))
    raw.ann.join()
    raw.bob.join()
    assert raw.ann.next_task().kind == "initialize"
    got = raw.bob.next_task()
    assert got.kind == "initialize"
    assert "client=ann" in raw.coordinator.says("does not describe the model: another is asked")
    raw.bob.answer(got)
    (described,) = raw.coordinator.facts("ModelInitialized")
    assert described["client"] == "bob"
    raw.finish_honestly()
    raw.close()


def test_a_client_that_was_passed_over_may_still_describe_the_model(programs: Programs) -> None:
    raw = RawRun(programs, programs.coordinator(*RUN, "--no-progress-s=2"))
    raw.ann.join()
    raw.bob.join()
    late = raw.ann.next_task()
    assert raw.bob.next_task().kind == "initialize"
    assert raw.ann.answer(late) == transfer_pb2.OUTCOME_ACCEPTED
    raw.finish_honestly()
    raw.close()


@pytest.mark.parametrize("flag", ["--exit-on-stall", "--give-up-after=1s"])
def test_a_run_that_gives_up_has_its_own_exit_code_and_can_resume(
    programs: Programs, flag: str
) -> None:
    raw = RawRun(programs, programs.coordinator(*RUN, flag))
    raw.training()
    raw.bob.leave(pb.LEAVE_REASON_STOPPING)
    assert raw.coordinator.ends() == ExitCode.STALLED
    assert "gave up waiting for train: 1 of at least 2 reports" in raw.coordinator.err
    assert "start again with the same flags" in raw.coordinator.err
    raw.coordinator = programs.coordinator(*RUN, port=raw.coordinator.port)
    raw.ann.join()
    raw.bob.join()
    raw.finish_honestly()
    raw.close()


def test_sigterm_lets_an_upload_in_flight_finish_and_the_next_process_resumes(
    raw: RawRun,
) -> None:
    got = raw.training()
    data = raw.ann.trained(got)
    chunks: queue.SimpleQueue[transfer_pb2.Chunk | None] = queue.SimpleQueue()

    def rest() -> Iterator[transfer_pb2.Chunk]:
        while (chunk := chunks.get()) is not None:
            yield chunk

    first, *others = chunks_of(data)
    call = raw.ann.open_upload(raw.ann.update_header(got, data), rest())
    assert next(call).WhichOneof("part") == "grant"
    chunks.put(first)
    raw.coordinator.signal(signal.SIGTERM)
    raw.coordinator.says("stopping: no new step begins")
    for chunk in others:
        chunks.put(chunk)
    assert next(call).receipt.outcome == transfer_pb2.OUTCOME_ACCEPTED
    chunks.put(None)
    assert raw.coordinator.ends() == ExitCode.TERMINATED
    assert "start again with the same flags" in raw.coordinator.err
    accepted = raw.coordinator.facts("UploadAccepted")
    assert [fact["client"] for fact in accepted][-1] == "ann"
    raw.coordinator = raw.programs.coordinator(*RUN, port=raw.coordinator.port)
    raw.ann.join()
    raw.bob.join()
    raw.finish_honestly()


def test_sigterm_does_not_wait_for_clients_that_train(raw: RawRun) -> None:
    raw.training()
    raw.coordinator.signal(signal.SIGTERM)
    assert raw.coordinator.ends(deadline_s=15.0) == ExitCode.TERMINATED


def test_a_removed_site_is_refused_until_it_is_readmitted(raw: RawRun) -> None:
    raw.training()
    admin = f"--admin=localhost:{raw.coordinator.admin_port}"
    done = raw.programs.run("ssfl", "remove", "bob", admin, "--json")
    assert json.loads(done.out) == {
        "site": "bob", "removed": True, "was_member": True, "was_removed": False,
    }  # fmt: skip
    with refused(grpc.StatusCode.PERMISSION_DENIED, "removed", "bob was removed"):
        raw.bob.next_task()
    with refused(grpc.StatusCode.PERMISSION_DENIED, "removed", "ask the operator for the reason"):
        raw.bob.join()
    assert raw.coordinator.client_state("bob") == "removed"
    until(lambda: raw.coordinator.status().phase == "waiting", "the run waits")
    assert raw.programs.run("ssfl", "remove", admin).ends() == ExitCode.USAGE
    assert raw.programs.run("ssfl", "remove", "no such name", admin).ends() == ExitCode.USAGE
    done = raw.programs.run("ssfl", "remove", "bob", admin, "--readmit")
    assert "bob may join again" in done.out
    raw.bob.join()
    raw.finish_honestly()


def test_sigterm_ends_a_coordinator_whose_disk_is_full(programs: Programs) -> None:
    coordinator = programs.coordinator(*RUN, FAILPOINTS="journal.append=full@2+")
    raw = RawRun(programs, coordinator)
    with pytest.raises(grpc.RpcError):
        raw.ann.join(timeout_s=1.0)
    coordinator.says("the disk is full")
    assert "room on the disk" in coordinator.status().waiting_for
    coordinator.signal(signal.SIGTERM)
    coordinator.says("stopping: no new step begins")
    coordinator.signal(signal.SIGTERM)
    assert coordinator.ends(deadline_s=60.0) == ExitCode.TERMINATED
    raw.close()


def test_a_removed_site_is_not_asked_to_describe_the_model(programs: Programs) -> None:
    raw = RawRun(programs, programs.coordinator(*RUN))
    raw.ann.join()
    admin = f"--admin=localhost:{raw.coordinator.admin_port}"
    assert raw.programs.run("ssfl", "remove", "ann", admin).ends() == 0
    raw.bob.join()
    assert raw.bob.next_task().kind == "initialize"
    raw.close()
