"""State directories that version 1370fa4 left behind after kill -9 resume with today's code.

stored/*.tar.gz hold the state of a coordinator, killed at the named point of its run;
clients.tar.gz also holds the state of three clients, one with an upload that was never sent.
Sessions were plain counts then, and `session-key` did not exist.
"""

import tarfile
from pathlib import Path

import pytest

from ssfl.program.exits import ExitCode
from system.federation import RUN, SHARDS, finish
from system.light_run import LightRun
from system.programs import Programs

pytestmark = pytest.mark.system

STORED = Path(__file__).with_name("stored")
CLIENTS = 4
BASE = (f"--clients={CLIENTS}", "--reproducible", "--rounds=8", "--sparsity=0.75",
        "--evaluate-every=2", "--exit-when-done")  # fmt: skip
KEEP = (*BASE, "--refresh-every=4", "--keep-uploads")
LOSSY = (*BASE, "--value-type=int8", "--warmup-rounds=2")
# Digests of the final models, as the old code computed them.
KEEP_DIGEST = "24bf2bb7a5679078366d43083a542a0b805b97eb8e078a77af2ed4cf6ca25d8a"
LOSSY_DIGEST = "f6b61ce628b4ffeec0b255df59268088098b1feed2a2e7552d778c2e79700716"


def unpack(name: str, folder: Path) -> None:
    with tarfile.open(STORED / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")


@pytest.mark.parametrize(
    ("name", "flags", "digest"),
    [
        ("scoring", KEEP, KEEP_DIGEST),  # while scores were summed
        ("round", KEEP, KEEP_DIGEST),  # some updates of a round accepted, one unacknowledged
        ("torn", KEEP, KEEP_DIGEST),  # half of a record at the end of the journal
        ("refresh", KEEP, KEEP_DIGEST),  # second mask written, not yet in the journal
        ("finished", KEEP, KEEP_DIGEST),  # final model not yet delivered to every client
        ("lossy", LOSSY, LOSSY_DIGEST),
    ],
)
def test_a_stored_run_resumes_and_ends_with_the_digest_of_the_old_code(
    programs: Programs, name: str, flags: tuple[str, ...], digest: str
) -> None:
    unpack(name, programs.folder / ".ssfl/coordinator")
    accepted = {file.name for file in programs.folder.glob(".ssfl/coordinator/spool/*/*.bin")}
    coordinator = programs.coordinator(*flags)
    with LightRun(coordinator.port, CLIENTS) as light:
        assert light.finish() == {digest}
    assert coordinator.ends() == 0
    assert coordinator.history()["model_digest"] == digest
    assert coordinator.facts("StepVoided") == []
    if "--keep-uploads" in flags:
        kept = {file.name for file in coordinator.state_dir.glob("accepted/*/*.bin")}
        assert accepted <= kept, "an accepted upload was requested again"
    if name == "finished":
        audit = programs.run("ssfl", "audit", str(coordinator.state_dir))
        assert audit.ends() == ExitCode.DONE
        assert "same model: yes" in audit.out


def test_stored_clients_keep_their_names_and_send_the_upload_they_had_saved(
    sites: Programs,
) -> None:
    unpack("clients", sites.folder / ".ssfl")
    coordinator = sites.coordinator(*RUN)
    clients = [sites.client(shard, coordinator) for shard in SHARDS]
    finish(coordinator, clients)
    first = clients[0]
    assert first.err.index("values sent  step=3") < first.err.index("trained  round=2")
    for client in clients:
        assert "trained  round=1" not in client.err, f"{client.name} trained a round again"
