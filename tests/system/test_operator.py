"""The operator commands of `ssfl` with real processes."""

import json

import numpy as np
import pytest

from ssfl.program.exits import ExitCode
from ssfl.v1 import coordinator_pb2 as pb
from system.programs import Coordinator, Program, Programs, until
from system.raw_client import RUN, expected_values
from system.raw_run import RawRun

pytestmark = pytest.mark.system

WAITING = tuple(flag for flag in RUN if not flag.startswith("--clients"))


def ssfl(programs: Programs, command: str, coordinator: Coordinator, *flags: str) -> Program:
    return programs.run("ssfl", command, f"--admin=localhost:{coordinator.admin_port}", *flags)


def test_start_begins_a_run_that_waits_for_more_clients(programs: Programs) -> None:
    raw = RawRun(programs, programs.coordinator(*WAITING))
    raw.ann.join()
    raw.ann.answer(raw.ann.next_task())
    early = ssfl(programs, "start", raw.coordinator)
    assert early.ends() == ExitCode.REFUSED
    assert "1 clients have joined, at least 2 are needed" in early.err
    assert raw.coordinator.status().phase == "gathering"
    raw.coordinator.says("call refused: 1 clients have joined")
    assert not raw.coordinator.status().refusals, "an operator's mistake is not a client's refusal"
    raw.bob.join()
    assert "starting in" in raw.coordinator.status().waiting_for
    assert ssfl(programs, "start", raw.coordinator).ends() == 0
    assert raw.coordinator.status().phase == "score"
    raw.finish_honestly()
    raw.close()


def test_status_names_the_clients_that_the_run_waits_for(raw: RawRun) -> None:
    got = raw.training()
    raw.ann.answer(got)
    done = ssfl(raw.programs, "status", raw.coordinator, "--json")
    assert done.ends() == 0
    status = json.loads(done.out)
    assert status["phase"] == "train"
    assert "bob" in status["waiting_for"]
    states = {client["client_id"]: client["state"] for client in status["clients"]}
    assert states == {"ann": "reported", "bob": "working"}
    plain = ssfl(raw.programs, "status", raw.coordinator)
    assert "bob" in plain.out
    raw.finish_honestly()


def test_stop_gives_every_site_the_last_committed_model(raw: RawRun) -> None:
    """Round 0 is committed, round 1 under way: ann's update of round 1 does not count."""
    raw.ann.answer(raw.training())
    raw.bob.answer(raw.bob.next_task())
    raw.ann.answer(raw.ann.next_task())
    assert ssfl(raw.programs, "stop", raw.coordinator).ends() == 0
    expected = expected_values((raw.ann, raw.bob), rounds=1)
    for client in (raw.ann, raw.bob):
        got = client.next_task()
        assert got.kind == "finish"
        assert got.task.finish.stopped
        client.answer(got)
        assert client.final is not None
        assert np.array_equal(client.final, expected)
    until(lambda: raw.coordinator.status().delivered, "the model is delivered")
    history = raw.coordinator.history()
    assert history["stopped"]
    assert history["rounds_done"] == 1


def test_stop_before_the_first_model_ends_every_client(programs: Programs) -> None:
    raw = RawRun(programs, programs.coordinator(*RUN, "--exit-when-done"))
    raw.ann.join()
    assert ssfl(programs, "stop", raw.coordinator).ends() == 0
    got = raw.ann.next_task()
    assert got.kind == "finish"
    assert got.task.finish.base_digest == b""
    raw.ann.leave(pb.LEAVE_REASON_FINISHED)
    assert raw.coordinator.ends() == ExitCode.STOPPED
    raw.close()


def test_a_paused_run_finishes_its_round_and_survives_a_crash_with_the_same_digest(
    raw: RawRun,
) -> None:
    raw.ann.answer(raw.training())
    done = ssfl(raw.programs, "pause", raw.coordinator, "--json")
    assert (done.ends(), json.loads(done.out)["was_paused"]) == (0, False)
    status = raw.coordinator.status()
    assert (status.phase, status.paused) == ("train", True)
    assert status.waiting_for == "train of bob; then the run pauses"
    raw.bob.answer(raw.bob.next_task())
    until(lambda: raw.coordinator.status().phase == "paused", "the round is committed")
    assert raw.coordinator.status().rounds_done == 1
    raw.restart()
    raw.coordinator.says("resumed")
    assert raw.coordinator.status().phase == "paused"
    raw.ann.join()
    raw.bob.join()
    shown = ssfl(raw.programs, "status", raw.coordinator)
    assert "paused since" in shown.out and "continue with `ssfl resume`" in shown.out
    steps = raw.coordinator.facts("StepStarted")
    assert ssfl(raw.programs, "resume", raw.coordinator).ends() == 0
    raw.finish_honestly()
    assert len(raw.coordinator.facts("StepStarted")) > len(steps)
    audit = raw.programs.run("ssfl", "audit", str(raw.coordinator.state_dir))
    assert audit.ends() == 0, audit.err


def test_a_paused_run_does_not_exit_on_a_stall(programs: Programs) -> None:
    raw = RawRun(programs, programs.coordinator(*RUN, "--exit-on-stall"))
    raw.training()
    assert ssfl(programs, "pause", raw.coordinator).ends() == 0
    raw.bob.leave(pb.LEAVE_REASON_STOPPING)
    status = raw.coordinator.status()
    assert (status.phase, status.HasField("stall")) == ("paused", False)
    listed = json.loads(ssfl(programs, "clients", raw.coordinator, "--json").out)
    assert {client["client_id"]: client["state"] for client in listed["clients"]} == {
        "ann": "waiting", "bob": "left",
    }  # fmt: skip
    assert ssfl(programs, "resume", raw.coordinator).ends() == 0
    assert raw.coordinator.ends() == ExitCode.STALLED
    raw.close()


@pytest.mark.parametrize("pause_first", [True, False])
def test_a_pause_does_not_wait_for_absent_clients_and_keeps_the_digest(
    programs: Programs, *, pause_first: bool
) -> None:
    """Bob leaves in a round that ann has answered: the step is void, and both repeat it."""
    raw = RawRun(programs, programs.coordinator(*RUN, "--reproducible"))
    raw.ann.answer(raw.training())

    def pauses() -> None:
        assert ssfl(programs, "pause", raw.coordinator).ends() == 0

    def goes_away() -> None:
        raw.bob.leave(pb.LEAVE_REASON_STOPPING)

    for happens in (pauses, goes_away) if pause_first else (goes_away, pauses):
        happens()
    status = raw.coordinator.status()
    assert (status.phase, status.paused, status.HasField("stall")) == ("paused", True, False)
    assert "to be tried again after the pause" in raw.coordinator.says("step void")
    raw.restart("--reproducible")
    assert raw.coordinator.status().phase == "paused"
    raw.ann.join()
    raw.bob.join()
    assert ssfl(programs, "resume", raw.coordinator).ends() == 0
    raw.finish_honestly()
    assert len(raw.coordinator.facts("StepVoided")) == 1
    audit = programs.run("ssfl", "audit", str(raw.coordinator.state_dir))
    assert audit.ends() == 0, audit.err
    raw.close()


def test_an_unreachable_admin_port_is_reported(programs: Programs) -> None:
    done = programs.run("ssfl", "status", "--admin=localhost:1")
    assert done.ends() == ExitCode.UNREACHABLE
    assert "localhost:1" in done.err
