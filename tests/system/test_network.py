"""Real programs over bad links (proxy.py): transfers resume, and the digest is the same.

Each of the three clients has its own proxy. An update has about 3 MB and takes several chunks, so
a cut in the middle falls into a transfer.
"""

import csv
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest

from ssfl.codec import MAX_CHUNK_BYTES
from ssfl.v1 import coordinator_pb2 as pb
from system.federation import ROUNDS, RUN, SHARDS, FinishedRun, finish
from system.programs import Coordinator, Program, Programs, until
from system.proxy import DOWN, UP, Proxy
from system.raw_client import TENSORS, RawClient, manifest_of, sha256
from system.raw_run import refused

pytestmark = pytest.mark.system

NO_PROGRESS_S = 3.0  # half-open connections are dropped after this time
FLAGS = (*RUN, "--width=1200", "--sparsity=0.5", f"--no-progress-s={NO_PROGRESS_S}")
UPDATE_BYTES = 4 * ((64 * 1200 + 1200 * 1200 + 1200 * 10) // 2 + 1200 + 1200 + 10)
IN_AN_UPLOAD = UPDATE_BYTES * 3 // 2  # bytes up: after the scores, in the second update
IN_A_DOWNLOAD = UPDATE_BYTES // 2  # bytes down: after the mask
IN_ANOTHER_DOWNLOAD = UPDATE_BYTES * 3 // 2
OVERHEAD_BYTES = 1 << 18  # joins, headers, frames, heartbeats: far below a chunk


@dataclass
class ProxiedFederation:
    """A federation whose clients reach the coordinator through proxies."""

    programs: Programs
    coordinator: Coordinator
    proxies: list[Proxy]
    clients: list[Program] = field(default_factory=list)

    def start_clients(self) -> None:
        addresses = [f"localhost:{proxy.port}" for proxy in self.proxies]
        self.clients = [
            self.programs.client(shard, address)
            for shard, address in zip(SHARDS, addresses, strict=True)
        ]
        for proxy, client in zip(self.proxies, self.clients, strict=True):
            proxy.receivers = {UP: self.coordinator.process.pid, DOWN: client.process.pid}

    def finish(self) -> FinishedRun:
        return finish(self.coordinator, self.clients)

    def passed(self, direction: str) -> list[int]:
        return [proxy.passed[direction] for proxy in self.proxies]


@contextmanager
def proxied_federation(programs: Programs, *flags: str) -> Iterator[ProxiedFederation]:
    """Start a coordinator and a proxy for every client; clients are not started."""
    coordinator = programs.coordinator(*FLAGS, *flags)
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(coordinator.port)) for _ in SHARDS]
        yield ProxiedFederation(programs, coordinator, proxies)


@pytest.fixture(scope="module")
def quiet(
    tmp_path_factory: pytest.TempPathFactory, shards: Any
) -> tuple[str, list[int], list[int]]:
    """The digest of the undisturbed run, and the bytes of every proxy, up and down."""
    folder = tmp_path_factory.mktemp("quiet")
    (folder / "shards").symlink_to(shards)
    programs = Programs(folder)
    try:
        with proxied_federation(programs) as run:
            run.start_clients()
            return run.finish().digest, run.passed(UP), run.passed(DOWN)
    finally:
        programs.end_all()


def received(run: ProxiedFederation, client: str) -> int:
    """Return the payload bytes of a client's updates in the ledger."""
    text = (run.coordinator.state_dir / "ledger.csv").read_text()
    rows = csv.DictReader(text.splitlines())
    return sum(
        int(row["payload_bytes"])
        for row in rows
        if (row["client"], row["phase"], row["direction"]) == (client, "values", UP)
    )


def test_cut_and_half_open_transfers_resume_at_the_committed_byte(
    sites: Programs, quiet: tuple[str, list[int], list[int]]
) -> None:
    digest, quiet_up, quiet_down = quiet
    with proxied_federation(sites) as run:
        run.proxies[0].cut_after(IN_AN_UPLOAD, UP)
        run.proxies[0].stall_after(IN_ANOTHER_DOWNLOAD, DOWN)
        run.proxies[1].cut_after(IN_A_DOWNLOAD, DOWN, reset=False)
        run.proxies[2].stall_after(IN_AN_UPLOAD, UP)
        run.start_clients()
        assert run.finish().digest == digest
        for number, proxy in enumerate(run.proxies):
            assert proxy.connections >= (3 if number == 0 else 2), "nothing happened on this wire"
            up = proxy.passed[UP] - quiet_up[number]
            down = proxy.passed[DOWN] - quiet_down[number]
            assert up <= MAX_CHUNK_BYTES + OVERHEAD_BYTES < UPDATE_BYTES
            assert down <= MAX_CHUNK_BYTES + OVERHEAD_BYTES < UPDATE_BYTES
    for shard in SHARDS:  # no chunk was received twice
        assert received(run, shard) == ROUNDS * UPDATE_BYTES
    for client in run.clients:  # nothing was trained twice
        assert client.err.count(" trained ") == ROUNDS


def test_random_cuts_and_restarts_of_the_coordinator_change_no_bit(
    sites: Programs, quiet: tuple[str, list[int], list[int]]
) -> None:
    chance = random.Random(11)
    with proxied_federation(sites) as run:
        for proxy in run.proxies:
            proxy.limit(4 << 20)  # so that cuts fall into transfers
        run.start_clients()
        cuts = 0
        while cuts < 12 and any(client.running for client in run.clients):
            chosen = chance.choice(run.proxies)
            before = sum(run.passed(UP)) + sum(run.passed(DOWN))
            wanted = before + chance.randrange(1, 2 * UPDATE_BYTES)
            until(moved(run, wanted), "bytes pass")
            if chance.random() < 0.2:
                run.coordinator.kill()
                run.coordinator = sites.coordinator(*FLAGS, port=run.coordinator.port)
            cuts += chosen.cut(reset=chance.random() < 0.5)
        assert cuts >= 6
        assert run.finish().digest == quiet[0]
    uploads = [(fact["step"], fact["client"]) for fact in run.coordinator.facts("UploadAccepted")]
    assert len(set(uploads)) == len(uploads)


def moved(run: ProxiedFederation, wanted: int) -> Any:
    """Return a condition: `wanted` bytes have passed, or the run is over."""
    return lambda: (
        sum(run.passed(UP)) + sum(run.passed(DOWN)) >= wanted
        or not any(client.running for client in run.clients)
    )


def test_a_client_that_stops_reading_is_dropped_and_can_resume(programs: Programs) -> None:
    """The no-progress deadline also applies to downloads."""
    masked = 4_000_000
    tensors = (("w", (masked,), "masked", "ones"), *TENSORS[1:2])
    coordinator = programs.coordinator("--clients=2", "--rounds=1", "--no-progress-s=1")
    manifest = manifest_of(tensors)
    ann, bob = (RawClient(coordinator.address, name, manifest=manifest) for name in ("ann", "bob"))
    ann.join()
    bob.join()
    assert ann.next_task().kind == "initialize"
    initial = np.r_[np.ones(masked), np.zeros(20)].astype("<f4")
    ann.upload(ann.initial_header(initial_digest=sha256(initial.tobytes())), [])
    call = ann.stub.NextTask(pb.NextTaskRequest(caller=ann.caller))
    first = next(part for part in call if part.WhichOneof("part") == "task")
    coordinator.says("the client read no byte of the answer for 1 s")
    got = 0
    with refused(grpc.StatusCode.DEADLINE_EXCEEDED, "no_progress", "resumes where it stopped"):
        for part in call:
            got += len(part.chunk.data)
    assert got < 4 * masked
    rest = ann.next_task(task_digest=first.task.task_digest, offset=got)
    assert rest.task.offset == got
    assert got + len(rest.data) == 4 * (masked + 20)
    ann.close()
    bob.close()
