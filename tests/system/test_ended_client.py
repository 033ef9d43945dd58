"""A client killed between its Leave call and its exit: its next start exits with 0."""

import signal

import pytest

from ssfl.program.exits import ExitCode
from system.programs import Coordinator, Programs, free_port

pytestmark = pytest.mark.system

RUN = (
    "--model=mlp", "--clients=1", "--min-clients=1", "--rounds=1", "--local-steps=1",
    "--sparsity=0.9", "--exit-when-done",
)  # fmt: skip
KILLED = {"FAILPOINTS": "client.goodbye=kill"}


def test_a_killed_client_reports_its_final_model_unless_another_run_needs_it(
    sites: Programs,
) -> None:
    port = free_port()

    def run_and_kill(*flags: str) -> Coordinator:
        coordinator = sites.coordinator(*RUN, *flags, port=port)
        client = sites.client("shard_00", coordinator, **KILLED)
        assert client.ends() == -signal.SIGKILL
        assert coordinator.ends() == ExitCode.DONE
        return coordinator

    run_and_kill()
    second = run_and_kill("--fresh")  # the client joins it, although the first run is over for it
    (run,) = {fact["run_id"] for fact in second.facts("RunOpened")}
    again = sites.client("shard_00", f"localhost:{port}", "--give-up-after=1s")
    assert again.ends() == ExitCode.DONE
    *_, over, stored = again.err.splitlines()
    assert "the run is over for this client and the coordinator does not answer" in over
    assert over.endswith(f"run={run}")
    assert stored.endswith(f"final model stored  folder={sites.folder}/runs/{run}/shard_00")
    later = sites.client("shard_00", f"localhost:{port}", "--give-up-after=1s")
    assert later.ends() == ExitCode.UNREACHABLE, "only a client that was killed has nothing to do"
