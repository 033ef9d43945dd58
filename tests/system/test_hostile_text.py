"""Text from a peer or a task is escaped in logs and on terminals, one line per record."""

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from ssfl.program.exits import ExitCode
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import coordinator_pb2_grpc, update_pb2
from system.programs import Program, Programs
from system.raw_client import RUN, TIMEOUT_S
from system.raw_run import RawRun

pytestmark = pytest.mark.system

EVIL = "x\r\n00:00:00 run finished  model=evil\x1b[2J\x9b31m\u202e\x07"
TASK = """
from ssfl.learning.image_task import load_shard, loss, metrics

def build_model(settings, shard):
    raise RuntimeError({evil!r})
"""


def is_clean(program: Program) -> bool:
    """Return True if the output of a program is safe on any terminal."""
    raw = program.err_file.read_bytes() + program.out_file.read_bytes()
    return b"\r" not in raw and all(line.isprintable() for line in raw.decode().split("\n"))


def refused(call: Any, request: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=TIMEOUT_S)
    return str(caught.value.details())


@pytest.mark.parametrize("form", ["text", "json"])
def test_text_from_a_client_stays_on_its_log_line(programs: Programs, form: str) -> None:
    run = RawRun(programs, programs.coordinator(*RUN, f"--log-format={form}"))
    try:
        with pytest.raises(grpc.RpcError):
            run.client(EVIL[:60]).join()
        run.ann.join(fingerprint=EVIL, software=EVIL)
        run.bob.join(fingerprint="plain")
        evaluation = update_pb2.Evaluation(total=1, metric_sums={EVIL: 1.0})
        ann = pb.Caller(run_id=EVIL, client_id="ann", session=1)
        for caller in (ann, pb.Caller(run_id=run.ann.caller.run_id, client_id=EVIL)):
            refused(run.ann.stub.Leave, pb.LeaveRequest(caller=caller))
        refused(
            run.ann.stub.ReportEvaluation,
            pb.ReportEvaluationRequest(
                caller=run.ann.caller, step=1, evaluation=evaluation, personal=evaluation
            ),
        )
        run.ann.answer(run.ann.next_task())
        run.ann.stub.Leave(
            pb.LeaveRequest(caller=run.ann.caller, reason=pb.LEAVE_REASON_STOPPING, detail=EVIL),
            timeout=TIMEOUT_S,
        )
        run.coordinator.says("client leaves: x")
        run.coordinator.waits_for("ann", "left")
        shown = [programs.run("ssfl", command, f"--admin=localhost:{run.coordinator.admin_port}")
                 for command in ("status", "clients")]  # fmt: skip
    finally:
        run.close()
    assert all(program.ends() == ExitCode.DONE and is_clean(program) for program in shown)
    assert is_clean(run.coordinator)
    if form == "text":
        begins = {line for line in run.coordinator.err.splitlines() if line.startswith("00:00:00")}
        assert not {line for line in begins if "model=evil" in line}
        assert r"client leaves: x\r\n00:00:00 run finished" in run.coordinator.err


class _HostileCoordinator(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Refuses every client with a hostile message."""

    def Join(self, _request: pb.JoinRequest, context: Any) -> pb.JoinResponse:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, EVIL)
        raise AssertionError

    def Check(self, _requests: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, EVIL)


@contextmanager
def _serving(coordinator: _HostileCoordinator) -> Iterator[str]:
    """Serve a coordinator; yield its address."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(coordinator, server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        yield f"localhost:{port}"
    finally:
        server.stop(None).wait()


def test_text_from_a_coordinator_is_escaped_at_the_client(sites: Programs) -> None:
    with _serving(_HostileCoordinator()) as address:
        client = sites.client("shard_00", address)
        assert client.ends() == ExitCode.REFUSED
        check = sites.run("ssfl", "check", f"--coordinator={address}")
    assert is_clean(client) and is_clean(check)
    assert r"the coordinator refused: x\r\n00:00:00 run finished" in client.err.splitlines()[-1]


class _PathCoordinator(_HostileCoordinator):
    """Accepts every client to a run whose id is a path and hostile text."""

    def Join(self, _request: pb.JoinRequest, _context: Any) -> pb.JoinResponse:
        return pb.JoinResponse(run_id=f"../{EVIL}", session=1)


def test_a_run_id_that_is_a_path_ends_the_client(sites: Programs) -> None:
    with _serving(_PathCoordinator()) as address:
        client = sites.client("shard_00", address)
        assert client.ends() == ExitCode.REFUSED
    assert is_clean(client)
    assert r"sent the run id '../x\r\n00:00:00 run finished" in client.err.splitlines()[-1]


def test_text_from_a_task_error_is_escaped(sites: Programs) -> None:
    (sites.folder / "task.py").write_text(TASK.format(evil=EVIL))
    coordinator = sites.coordinator("--model=mlp", "--clients=2")
    client = sites.client("shard_00", coordinator, "--task=task.py")
    assert client.ends() == ExitCode.BAD_DATA
    coordinator.waits_for("shard_00", "left")
    check = sites.run("ssfl", "check", "--task=task.py", "--data=shard_00")
    assert check.ends() == ExitCode.BAD_DATA
    assert is_clean(client) and is_clean(coordinator) and is_clean(check)
    assert r"\x1b[2J" in client.err and r"\x1b[2J" in coordinator.err and r"\x1b[2J" in check.out
