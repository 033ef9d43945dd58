"""kill -9 of real processes at every failpoint: the run resumes and ends with the same digest.

One federation of light clients covers all failpoints of the coordinator: every start arms the next
one, and the coordinator dies there. Scoring, rounds, evaluations, mask refreshes and the finish
are all interrupted. A federation of real clients covers the failpoints of clients.
"""

import re
import shutil
import signal
from collections import Counter
from dataclasses import dataclass, field

import pytest

from failpoint_names import CLIENT_POINTS, COORDINATOR_POINTS, KEEP_POINTS, REFRESH_POINTS
from ssfl.v1 import transfer_pb2
from system.federation import ROUNDS, SHARDS, FinishedRun
from system.federation import RUN as REAL_RUN
from system.light_run import LightRun
from system.programs import DEADLINE_S, Coordinator, Program, Programs, free_port, until

pytestmark = pytest.mark.system

EVERY_POINT = (*COORDINATOR_POINTS, *KEEP_POINTS, *REFRESH_POINTS)
CLIENTS = 4
RUN = (
    f"--clients={CLIENTS}", "--reproducible", "--rounds=50", "--sparsity=0.75",
    "--evaluate-every=5", "--refresh-every=10", "--keep-uploads", "--exit-when-done",
)  # fmt: skip

# The order in which a run reaches the failpoints; those not listed are reached in every round.
FIRST = (
    "journal.created",
    *("manifest.written", "manifest.synced", "manifest.renamed", "manifest.named"),
    *("ack.initial", "ack.join"),
)
IN_SCORING = ("spool.chunk", "sum.open", "mask.written", "mask.synced", "mask.renamed")
IN_REFRESH = ("mask.named", *REFRESH_POINTS)  # a mask file that has its name is not written again
LAST = ("ack.leave",)
# Which passage of the failpoint kills, where it is not the first.
PASSAGES = {"spool.chunk": 7, "spool.chunk-written": 6, "ack.join": 3, "ack.upload": 2,
            "journal.torn": 4, "journal.synced": 5, "sum.fold": 3}  # fmt: skip


def walk() -> list[str]:
    """Return every failpoint in the order in which it is armed."""
    placed = {*FIRST, *IN_SCORING, *IN_REFRESH, *LAST}
    in_rounds = [point for point in COORDINATOR_POINTS if point not in placed]
    return [*FIRST, *IN_SCORING, *in_rounds, *KEEP_POINTS, *IN_REFRESH, *LAST]


def undisturbed(programs: Programs) -> str:
    coordinator = programs.coordinator(*RUN)
    with LightRun(coordinator.port, CLIENTS) as light:
        (digest,) = light.finish()
    assert coordinator.ends() == 0
    assert coordinator.history()["model_digest"] == digest
    return digest


def start_and_die_at(programs: Programs, light: LightRun, point: str, port: int) -> None:
    """Start the coordinator with a failpoint armed; SIGKILL must end it there."""
    armed = f"{point}=kill@{PASSAGES.get(point, 1)}"
    coordinator = programs.try_coordinator(*RUN, port=port, FAILPOINTS=armed)
    assert coordinator.ends() == -signal.SIGKILL, f"{point} was not struck:\n{coordinator.err}"
    light.check()


def test_a_run_survives_a_kill_at_every_failpoint_of_the_coordinator(programs: Programs) -> None:
    assert sorted(walk()) == sorted(EVERY_POINT), "a point is left out"
    expected = undisturbed(programs)
    shutil.rmtree(programs.folder / ".ssfl")
    shutil.rmtree(programs.folder / "runs")
    port = free_port()
    with LightRun(port, CLIENTS) as light:
        for point in walk():
            start_and_die_at(programs, light, point, port)
        last = programs.coordinator(*RUN, port=port)
        assert light.finish() == {expected}
    assert last.ends() == 0
    check_nothing_counts_twice(last, light)


def test_a_client_exits_if_its_leave_call_gets_no_answer(programs: Programs) -> None:
    run = ("--clients=1", "--min-clients=1", "--rounds=1", "--exit-when-done")
    coordinator = programs.coordinator(*run, FAILPOINTS="ack.leave=kill@1")
    with LightRun(coordinator.port, 1) as light:
        assert coordinator.ends() == -signal.SIGKILL
        (digest,) = light.finish()
    assert digest


def check_nothing_counts_twice(coordinator: Coordinator, light: LightRun) -> None:
    """Check that an upload counts once, and that acknowledged ones are not requested again."""
    facts = coordinator.facts("UploadAccepted")
    uploads = Counter((fact["step"], fact["client"]) for fact in facts)
    assert set(uploads.values()) == {1}
    assert coordinator.facts("StepVoided") == []
    for client in light.clients:
        acknowledged: set[int] = set()
        for event in client.events:
            if event.what in ("train", "score", "grant"):
                assert event.step not in acknowledged, f"{client.client_id} was asked again"
            if event.what == "receipt" and event.step:
                assert event.number in (
                    transfer_pb2.OUTCOME_ACCEPTED,
                    transfer_pb2.OUTCOME_ALREADY_ACCEPTED,
                )
                acknowledged.add(event.step)


@dataclass(frozen=True)
class PlannedKill:
    """A failpoint that kills a client, and whether its answer is complete by then."""

    point: str
    passage: int = 1  # answer.*: two files per answer; the second completes it
    finished: bool = True


WALKS = {
    SHARDS[0]: [
        PlannedKill("client.scored", finished=False),
        PlannedKill("answer.synced", 2, finished=False),
        PlannedKill("client.saved"),
        PlannedKill("client.chunk"),
    ],
    SHARDS[1]: [
        PlannedKill("client.trained", finished=False),
        PlannedKill("answer.written", finished=False),
        PlannedKill("answer.renamed", 2),
        PlannedKill("client.receipt"),
    ],
    SHARDS[2]: [PlannedKill("client.dropped", 2), PlannedKill("answer.named", 2)],
}


@dataclass
class RestartedClient:
    """A client that is killed at one failpoint after another and restarted each time."""

    shard: str
    deaths: list[PlannedKill]
    programs: Programs
    coordinator: Coordinator
    lives: list[Program] = field(default_factory=list)

    def over(self) -> bool:
        """Restart the client if it has ended; return True once it has exited with 0."""
        if self.lives and self.lives[-1].running:
            return False
        died = len(self.lives)
        if died > len(self.deaths):
            assert self.lives[-1].process.returncode == 0, self.lives[-1].err
            return True
        if self.lives:
            code, point = self.lives[-1].process.returncode, self.deaths[died - 1].point
            assert code == -signal.SIGKILL, f"{point} was not struck:\n{self.lives[-1].err}"
        trouble = {}
        if died < len(self.deaths):
            death = self.deaths[died]
            trouble = {"FAILPOINTS": f"{death.point}=kill@{death.passage}"}
        self.lives.append(self.programs.client(self.shard, self.coordinator, **trouble))
        return False

    def check(self) -> None:
        """Check that a new process first sends the complete answer and does not train again."""
        done: set[str] = set()
        before: PlannedKill | None = None
        for life, death in zip(self.lives, [*self.deaths, None], strict=True):
            events = re.findall(r"trained  round=\d+|scores sent|values sent", life.err)
            if before and before.finished and before.point != "client.dropped":
                assert not "".join(events[:1]).startswith("trained"), f"after {before}"
            trained = [event for event in events if event.startswith("trained")]
            assert not done & set(trained), f"{self.shard} trained again after {before}"
            if death and not death.finished and death.point.startswith("answer"):
                trained = trained[:-1]  # killed while it saved that answer
            done.update(trained)
            before = death
        assert len(done) == ROUNDS


def test_a_run_survives_a_kill_at_every_failpoint_of_a_client(
    sites: Programs, undisturbed: FinishedRun
) -> None:
    walked = [death.point for deaths in WALKS.values() for death in deaths]
    assert sorted(walked) == sorted(CLIENT_POINTS), "a point is left out"
    coordinator = sites.coordinator(*REAL_RUN)
    clients = [
        RestartedClient(shard, deaths, sites, coordinator) for shard, deaths in WALKS.items()
    ]
    until(lambda: min(map(RestartedClient.over, clients)), "all clients end", 3 * DEADLINE_S)
    assert coordinator.ends() == 0
    history = coordinator.history()
    assert history["model_digest"] == undisturbed.digest
    for client in clients:
        client.check()
    facts = coordinator.facts("UploadAccepted")
    uploads = Counter((fact["step"], fact["client"]) for fact in facts)
    assert set(uploads.values()) == {1}, "counted twice"
    assert coordinator.facts("StepVoided") == []
