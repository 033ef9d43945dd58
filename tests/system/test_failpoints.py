"""kill -9 of real processes at every failpoint: the run resumes and ends with the same digest.

One federation of light clients covers all failpoints of the coordinator: every start arms the next
one, and the coordinator dies there. Scoring, rounds, evaluations, mask refreshes and the finish
are all interrupted. A federation of real clients covers the failpoints of clients. Strategies whose
clients keep memory, or that have stages, lose the coordinator and all clients in every step.
"""

import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from failpoint_names import (
    CLIENT_POINTS,
    COORDINATOR_POINTS,
    KEEP_POINTS,
    MEMORY_POINTS,
    REFRESH_POINTS,
)
from ssfl import api
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
    """A failpoint that kills a program, and whether a client's answer is complete by then."""

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
class Restarted:
    """A program that is killed at one failpoint after another and restarted each time."""

    name: str
    deaths: list[PlannedKill]
    start: Callable[..., Program]
    lives: list[Program] = field(default_factory=list)

    def over(self) -> bool:
        """Restart the program if it has ended; return True once it has exited with 0."""
        if self.lives and self.lives[-1].running:
            return False
        died = len(self.lives)
        if died > len(self.deaths):
            assert self.lives[-1].process.returncode == 0, self.lives[-1].err
            return True
        if self.lives:
            code, point = self.lives[-1].process.returncode, self.deaths[died - 1].point
            assert code == -signal.SIGKILL, f"{point} was not struck:\n{self.lives[-1].err}"
            self.died()
        trouble = {}
        if died < len(self.deaths):
            death = self.deaths[died]
            trouble = {"FAILPOINTS": f"{death.point}=kill@{death.passage}"}
        self.lives.append(self.start(**trouble))
        return False

    def died(self) -> None:
        """Look at what the last life has left."""


def all_end(programs: Sequence[Restarted]) -> None:
    """Wait until every program has died at all its failpoints and then exited with 0."""
    until(lambda: min([one.over() for one in programs]), "all programs end", 3 * DEADLINE_S)


class RestartedClient(Restarted):
    """A client that is killed."""

    def check(self) -> None:
        """Check that a new process first sends the complete answer and does not train again."""
        done: set[str] = set()
        before: PlannedKill | None = None
        for life, death in zip(self.lives, [*self.deaths, None], strict=True):
            events = re.findall(r"trained  round=\d+|scores sent|values sent", life.err)
            if before and before.finished and before.point != "client.dropped":
                assert not "".join(events[:1]).startswith("trained"), f"after {before}"
            trained = [event for event in events if event.startswith("trained")]
            assert not done & set(trained), f"{self.name} trained again after {before}"
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
        RestartedClient(shard, deaths, partial(sites.client, shard, coordinator))
        for shard, deaths in WALKS.items()
    ]
    all_end(clients)
    assert coordinator.ends() == 0
    history = coordinator.history()
    assert history["model_digest"] == undisturbed.digest
    for client in clients:
        client.check()
    facts = coordinator.facts("UploadAccepted")
    uploads = Counter((fact["step"], fact["client"]) for fact in facts)
    assert set(uploads.values()) == {1}, "counted twice"
    assert coordinator.facts("StepVoided") == []


class RestartedCoordinator(Restarted):
    """A coordinator that is killed; `struck` has the steps that were open when it died."""

    struck: set[int]

    def died(self) -> None:
        dead = self.lives[-1]
        assert isinstance(dead, Coordinator)
        self.struck.add(dead.facts("StepStarted")[-1]["step"])


@dataclass(frozen=True)
class KilledRun:
    """A run whose coordinator and clients are killed in every step."""

    strategy: str
    options: str = ""
    num_trainings: int = 2  # steps in which clients train
    scores: bool = False  # clients score before
    keeps: bool = True  # clients keep vectors or masks between their steps
    is_personal: bool = False  # clients test models of their own after the last round
    settings: dict[str, Any] = field(default_factory=dict)  # further ones

    @property
    def walks(self) -> dict[str, list[PlannedKill]]:
        """The kills of each client: one in every training step, and in its other work.

        A client that is killed before its answer is complete passes the failpoint once more.
        """
        count, again = self.num_trainings, self.num_trainings - 1
        scored = [PlannedKill("client.scored")] * self.scores
        tested = [PlannedKill("client.personalized")] * self.is_personal
        trained = [PlannedKill("client.trained"), *[PlannedKill("client.trained", 2)] * again]
        if not self.keeps:
            saved, sent = PlannedKill("client.saved"), PlannedKill("client.receipt")
            return dict(zip(SHARDS, (trained, [saved] * count, [sent] * count), strict=True))
        put = [PlannedKill("client.remembered"), *[PlannedKill("client.remembered", 2)] * again]
        settled = [PlannedKill("client.promoted")] * count
        return dict(zip(SHARDS, ([*scored, *trained, *tested], put, settled), strict=True))

    @property
    def coordinator_deaths(self) -> list[PlannedKill]:
        """A kill in every step before its result counts, and one after an upload of the last.

        A step that was not committed is summed again, and passes the failpoint once more.
        """
        between = self.num_trainings + self.scores - 2
        steps = [PlannedKill("sum.stored"), *[PlannedKill("sum.stored", 2)] * between,
                 PlannedKill("ack.upload", 2), PlannedKill("sum.stored")]  # fmt: skip
        tested = [PlannedKill("ack.evaluation", 2), PlannedKill("ack.evaluation", 3)]
        return steps + tested[: 1 + self.is_personal]


KILLED_RUNS = (
    KilledRun("ditto", scores=True, is_personal=True),
    KilledRun("scaffold", scores=True),
    KilledRun("ssfl", scores=True, settings={"value_type": "int8", "downloads": "values"}),
    KilledRun("sub-fedavg", "sub-fedavg.accuracy=0", is_personal=True),
    KilledRun(
        "flash-spdst", "flash-spdst.init_fraction=1,flash-spdst.init_epochs=2", 3, keeps=False,
    ),
    KilledRun("flash-jmwst", "flash-jmwst.init_fraction=1,flash-jmwst.init_epochs=2,"
              "flash-jmwst.every=2", 3, keeps=False),
)  # fmt: skip


@pytest.mark.parametrize("run", KILLED_RUNS, ids=lambda run: run.strategy)
def test_memory_and_stage_survive_kills_in_every_step(
    sites: Programs, shards: Path, run: KilledRun
) -> None:
    struck = {death.point for deaths in run.walks.values() for death in deaths}
    assert not run.is_personal or set(MEMORY_POINTS) <= struck, "a point is left out"
    undisturbed = api.simulate(
        api.read_shards(shards), strategy=run.strategy, strategy_options=run.options,
        local_epochs=3, rounds=2, model="mlp", sparsity="0.9", seed=7, evaluate_every=0,
        scoring_batches=1, **run.settings,
    )  # fmt: skip
    options = [f"--{option}" for option in run.options.split(",") if option]
    options += [f"--{name.replace('_', '-')}={value}" for name, value in run.settings.items()]
    flags = [*REAL_RUN, f"--strategy={run.strategy}", *options, "--rounds=2", "--local-steps=0",
             "--local-epochs=3"]  # fmt: skip
    port = free_port()
    coordinator = RestartedCoordinator(
        "coordinator", run.coordinator_deaths, partial(sites.try_coordinator, *flags, port=port)
    )
    coordinator.struck = set()
    clients = [
        RestartedClient(shard, deaths, partial(sites.client, shard, f"localhost:{port}"))
        for shard, deaths in run.walks.items()
    ]
    all_end([coordinator, *clients])
    last = coordinator.lives[-1]
    assert isinstance(last, Coordinator)
    assert coordinator.struck == {fact["step"] for fact in last.facts("StepStarted")}
    assert last.facts("StepVoided") == []
    history = last.history()
    assert history["model_digest"] == undisturbed.digest
    personal = api.RunHistory.of(history).personal
    assert personal.tolist() == undisturbed.history.personal.tolist(), "as if nothing had happened"
