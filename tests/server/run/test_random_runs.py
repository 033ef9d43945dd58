"""Hundreds of runs with drops, duplicates, reorderings and crashes; each can be replayed by seed.

core_harness.py checks the promises: a commit never changes, no client counts twice, an acknowledged
upload counts, rounds are never undone. This file adds that a step closes at its deadline, and that
every run reaches its end once the faults stop.
"""

import os
import random
from typing import Any

import pytest

from server.core_harness import World, hashed
from ssfl.method.settings import RunSettings
from ssfl.server.run import events, facts
from ssfl.server.run.state import Phase
from ssfl.strategies.contract import ClientId, Work

# `make check` takes a sample in which every kind of fault happens.
SEEDS = range(140, 200) if os.environ.get("SAMPLE") else range(300)
NUM_RUNS = len(SEEDS)
TROUBLE = 150  # events


class Trouble:
    """A run in a world where all kinds of faults happen, in an order drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        clients = [ClientId(f"c{i}") for i in range(1, self.rng.randint(2, 6) + 1)]
        reproducible = self.rng.random() < 0.15
        strategy = self.rng.choice(["ssfl", "ssfl", "fedavg", "flash-spdst"])
        rounds = self.rng.randint(1, 8)
        self.world = World(
            RunSettings(
                strategy=strategy,
                rounds=rounds,
                clients=len(clients) if reproducible else self.rng.choice([0, 2]),
                clients_per_round=self.rng.choice([0, 2]),
                min_clients=self.rng.choice([1, 2]),
                evaluate_every=self.rng.choice([0, 1, 3]),
                evaluate_last=self.rng.choice([0, 0, 2]),
                personalize_epochs=self.rng.choice([0, 1]),
                **(self.of_the_mask(rounds) if strategy == "ssfl" else {}),
                reproducible=reproducible,
                round_deadline_s=100.0,
                seed=seed,
            ),
            clients,
        )
        self.world.settings.validate()
        self.uploads: list[tuple[int, ClientId, str]] = []  # those that can be sent again

    def of_the_mask(self, rounds: int) -> dict[str, Any]:
        """Return settings for the first mask and for its refreshes."""
        warmup = min(self.rng.choice([0, 0, 2]), rounds - 1)
        possible = [number for number in (1, 4) if warmup < number < rounds]
        return {
            "warmup_rounds": warmup,
            "criterion": self.rng.choice(["saliency", "saliency", "random", "one-client"]),
            "refresh_rounds": ",".join(map(str, self.rng.choice([[], possible]))),
            "refresh_every": self.rng.choice([0, 0, 2]),
            "refresh_on_loss_jump": self.rng.choice([0.0, 1.5]),
        }

    def run(self) -> World:
        """Inject faults, then let the run end."""
        world = self.world
        kinds, weights = zip(*self.kinds().items(), strict=True)
        for kind in self.rng.choices(kinds, weights, k=TROUBLE):
            getattr(self, kind)()
            if world.state.phase is not Phase.FINISHED and self.rng.random() < 0.05:
                self.check_deadline()
            if self.rng.random() < 0.01:
                self.check_pause()
        world.post(events.Signal.RESUME)
        world.finish_calmly()
        return world

    def kinds(self) -> dict[str, float]:
        return {
            "join": 15,
            "answer": 60,
            "killed_while_answering": 4,
            "repeat": 8,
            "other_bytes": 4,
            "stale": 4,
            "deliver": 30,
            "deliver_twice": 2,
            "lose": 6,
            "return_": 10,
            "leave": 2,
            "tick": 20,
            "restart": 3,
            "killed_while_joining": 2,
            "start": 3,
            "refresh": 1,
            "stop": 0.03,
            "pause": 1,
            "resume": 3,
        }

    def someone(self) -> ClientId:
        return self.rng.choice(self.world.clients)

    # -- what can happen

    def join(self) -> None:
        self.world.join(self.someone())

    def killed_while_joining(self) -> None:
        event = events.Joined(self.someone(), "token", 10, "m", "cpu")
        self.world.post(event, killed_after=self.rng.randint(0, 4))

    def answer(self, killed_after: int | None = None) -> None:
        step = self.world.state.step
        if step is None or not step.pending:
            return
        client = self.rng.choice(sorted(step.pending))
        if not step.work.is_test:
            digest = hashed(client, step.work, step.round_number, self.world.state.base_digest)
            self.uploads.append((step.number, client, digest))
        self.world.answer(client, step, killed_after=killed_after)

    def killed_while_answering(self) -> None:
        self.answer(killed_after=self.rng.randint(0, 4))

    def repeat(self) -> None:
        """Send an upload again, perhaps of a step that is over."""
        if self.uploads:
            self.world.upload(*self.rng.choice(self.uploads[-6:]))

    def other_bytes(self) -> None:
        if self.uploads:
            step, client, _ = self.rng.choice(self.uploads[-3:])
            self.world.upload(step, client, "other")

    def stale(self) -> None:
        step = self.world.state.last_step + self.rng.choice([-2, -1, 1, 2])
        self.world.upload(step, self.someone(), "stale")

    def deliver(self) -> None:
        self.world.deliver()

    def deliver_twice(self) -> None:
        self.world.results = [one for one in self.world.results for _ in range(2)]
        self.world.deliver()

    def lose(self) -> None:
        client = self.someone()
        if client in self.world.state.members:
            self.world.post(events.Lost(client))

    def return_(self) -> None:
        self.world.post(events.Returned(self.someone()))

    def leave(self) -> None:
        self.world.post(events.Left(self.someone(), finished=False))

    def tick(self) -> None:
        self.world.now_s += self.rng.choice([0.5, 5.0, 20.0, 60.0])
        self.world.post(events.Signal.TICK)

    def restart(self) -> None:
        self.world.restart()

    def start(self) -> None:
        self.world.post(events.Signal.START)

    def refresh(self) -> None:
        self.world.post(events.Signal.REFRESH)

    def pause(self) -> None:
        self.world.post(events.PauseAsked(1.7e9))

    def resume(self) -> None:
        self.world.post(events.Signal.RESUME)

    def stop(self) -> None:
        self.world.post(events.Signal.STOP)

    # -- what must hold at any time

    def check_deadline(self) -> None:
        """A step closes at its deadline, whichever clients are missing."""
        world, before = self.world, self.world.state.step
        if before is None or before.closed is not None:
            return
        if world.settings.reproducible and not before.work.is_test:
            return
        world.now_s = world.state.step_began_s + world.settings.round_deadline_s
        world.post(events.Signal.TICK)
        after = world.state.step
        assert after is None or after.number > before.number or after.closed is not None

    def check_pause(self) -> None:
        """A paused run does not wait for clients that are away: only a sum may be in progress."""
        self.pause()
        for client in self.world.state.members:
            self.world.post(events.Lost(client))
        step = self.world.state.step
        assert step is None or step.closed is not None
        assert self.world.state.stall is None


def check_end(world: World) -> None:
    state = world.state
    assert state.finished
    assert state.stopped or state.rounds_done == world.settings.rounds
    assert world.final_model == state.base_digest
    assert world.replayed().base_digest == state.base_digest
    trained = [step for step in world.committed if world.closed[step]]
    assert len(set(trained)) == len(trained)
    check_masks(world)
    if state.best:
        assert world.kept[state.best.step] == state.best.base_digest
    assert not world.void & set(world.committed)


def check_masks(world: World) -> None:
    """Mask epochs increase by one; without an operator, at most once between two rounds."""
    recorded = [facts.from_json(record) for record in world.journal]
    steps = [fact for fact in recorded if isinstance(fact, facts.StepStarted)]
    committed = [step for step in steps if step.step in world.committed]
    agreed = [step for step in committed if step.work is Work.SCORE]
    learned = [step for step in committed if not step.counts_as_round]
    has_mask = world.settings.strategy != "ssfl" or world.settings.warmup_rounds
    assert world.state.mask_epoch in (int(bool(has_mask)) + len(agreed) + len(learned), 0)
    by_itself = [step.round_number for step in agreed if "operator" not in step.reason]
    assert len(set(by_itself)) == len(by_itself)
    assert all(number < world.settings.rounds for number in by_itself)


def test_every_seed_keeps_the_promises_and_reaches_the_end() -> None:
    seen_rounds = seen_void = seen_stop = seen_renewed = seen_paused = seen_learned = 0
    for seed in SEEDS:
        try:
            world = Trouble(seed).run()
            check_end(world)
        except Exception as error:
            error.add_note(f"failing seed: {seed}; replay it with Trouble({seed}).run()")
            raise
        seen_rounds += world.state.rounds_done
        seen_void += len(world.void)
        seen_stop += world.state.stopped
        seen_renewed += world.state.mask_epoch > 2
        seen_paused += world.num_pauses
        seen_learned += world.settings.strategy == "flash-spdst" and world.state.rounds_done > 0
    # Faults did happen, and the runs made progress in spite of them.
    assert seen_rounds > NUM_RUNS
    assert seen_void > NUM_RUNS / 4
    assert 0 < seen_stop < NUM_RUNS / 4
    assert seen_renewed > NUM_RUNS / 6
    assert seen_paused > NUM_RUNS / 2
    assert seen_learned > NUM_RUNS / 10


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_seed_replays_exactly(seed: int) -> None:
    assert Trouble(seed).run().journal == Trouble(seed).run().journal
