"""Every round ends: 200 rounds with a goal of 10 of 100 clients, each of which may drop out.

Only the pure core, in virtual time. A client that drops out falls silent and is lost after three
missed heartbeats. It returns when the round is over.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from ssfl.method.settings import RunSettings
from ssfl.server.loop.presence import LOST_AFTER_S
from ssfl.server.run import events, facts
from ssfl.server.run.events import Event
from ssfl.server.run.machine import advance
from ssfl.server.run.state import RunState
from ssfl.strategies.contract import ClientId

CLIENTS, GOAL, ROUNDS = 100, 10, 200
DEADLINE_S = 600.0
TICK_S = 5.0


def _itself(event: Event) -> Event:
    return event


@dataclass
class Federation:
    """A run whose clients drop out of a step with a given probability."""

    dropouts: float
    seed: int
    now_s: float = 0.0
    closed: list[int] = field(
        default_factory=list
    )  # number of reports of each committed training step
    voids: int = 0
    longest_s: float = 0.0  # of a training step
    _due: list[tuple[float, int, Callable[[], Event | None]]] = field(default_factory=list)
    _count: int = 0
    _gone: list[ClientId] = field(default_factory=list)  # clients that dropped out of the open step

    def run(self) -> RunState:
        settings = RunSettings(
            strategy="fedavg", rounds=ROUNDS, clients=CLIENTS, clients_per_round=GOAL,
            min_clients=5, evaluate_every=0, round_deadline_s=DEADLINE_S, seed=self.seed,
        )  # fmt: skip
        self.rng = random.Random(f"{self.seed} {self.dropouts}")
        self.state = RunState(settings)
        for number in range(CLIENTS):
            self._post(events.Joined(ClientId(f"c{number:03}"), "t", 10, "m", "cpu"))
        self._post(events.Initialized(ClientId("c000"), "m", "i", 1, "mask", 9, "base"))
        limit_s = ROUNDS * 10 * DEADLINE_S
        while not self.state.finished:
            assert self.now_s < limit_s, f"no end in sight: {self.state.step}"
            if self._due and self._due[0][0] <= self.now_s + TICK_S:
                self.now_s, _, happens = heapq.heappop(self._due)
                if (event := happens()) is not None:
                    self._post(event)
            else:
                self.now_s += TICK_S
                self._post(events.Signal.TICK)
        return self.state

    def _post(self, event: Event) -> None:
        self.state, actions, _ = advance(self.state, event, self.now_s)
        for action in actions:
            match action:
                case events.Persist(facts.StepStarted() as fact):
                    self._ask(fact.step, list(fact.cohort), drops=not fact.work.is_test)
                case events.Persist(facts.ClientsAdded() as fact):
                    self._ask(fact.step, list(fact.cohort), drops=True)
                case events.Persist(facts.StepVoided()):
                    self.voids += 1
                    self._return()
                case events.Persist(facts.StepClosed()):
                    self._return()
                case events.Reduce(step):
                    assert step.closed is not None
                    self.closed.append(len(step.closed))
                    self.longest_s = max(self.longest_s, self.now_s - self.state.step_began_s)
                    reduced = events.StepReduced(step.number, 1, "mask", 9, f"base {step.number}")
                    self._later(1.0, partial(_itself, reduced))

    def _ask(self, step: int, cohort: list[ClientId], *, drops: bool) -> None:
        for client in cohort:
            if drops and self.rng.random() < self.dropouts:
                silent_s = LOST_AFTER_S + self.rng.uniform(0, 10)
                self._later(silent_s, partial(self._silent, step, client))
            else:
                digest = f"{step} {client}".encode().hex()
                tested = {"correct": 1, "total": 2, "loss_sum": 1.0}
                report = {"training_loss": 1.0, "evaluation": tested}
                upload = events.UploadReceived(step, client, digest, 1.0, report)
                self._later(self.rng.uniform(5, 30), partial(_itself, upload))

    def _silent(self, step: int, client: ClientId) -> Event | None:
        """Mark a client as lost; it returns after the step."""
        if self.state.step is None or self.state.step.number != step:
            return None
        self._gone.append(client)
        return events.Lost(client)

    def _return(self) -> None:
        while self._gone:
            client = self._gone.pop()
            self._later(self.rng.uniform(0, 5), partial(_itself, events.Returned(client)))

    def _later(self, delay_s: float, happens: Callable[[], Event | None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now_s + delay_s, self._count, happens))


@pytest.mark.parametrize(("dropouts", "share"), [(0.1, 0.99), (0.3, 0.95)])
def test_nearly_all_rounds_commit_with_the_goal(dropouts: float, share: float) -> None:
    federation = Federation(dropouts, seed=1)
    assert federation.run().rounds_done == ROUNDS
    reached = sum(count >= GOAL for count in federation.closed)
    assert len(federation.closed) == ROUNDS
    assert reached >= share * ROUNDS, f"{reached} of {ROUNDS} rounds, {federation.voids} void"


def test_if_half_the_clients_drop_out_every_round_commits_with_a_quorum_or_is_retried() -> None:
    federation = Federation(0.5, seed=1)
    assert federation.run().rounds_done == ROUNDS
    assert len(federation.closed) == ROUNDS
    assert min(federation.closed) >= 5
    assert federation.longest_s <= DEADLINE_S + TICK_S
    reached = sum(count >= GOAL for count in federation.closed)
    assert reached >= 0.9 * ROUNDS, f"{reached} of {ROUNDS} rounds, {federation.voids} void"
