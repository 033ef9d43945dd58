"""The plan of a seed: a federation and the faults injected into it.

Each seed targets one failpoint, in turn, so that a range of seeds hits all of them equally often.
"""

import random
from dataclasses import dataclass, replace
from typing import Any

from failpoint_names import COORDINATOR_POINTS, REFRESH_POINTS
from ssfl.method.settings import RunSettings
from ssfl.strategies.registry import check_settings

POINTS = (*COORDINATOR_POINTS, *REFRESH_POINTS)
# Failpoints passed about once per run; others may also be hit at a later passage.
ONCE = (
    "journal.created",
    "ack.initial",
    "ack.evaluation",
    "ack.leave",
    "manifest.",
    "mask.",
    "scored.",
)
AFTER_A_CRASH = ("journal.taken",)  # passed only if a journal exists

# Possible faults and their relative frequencies.
KINDS = {
    "cut": 12,  # a connection breaks
    "silence": 6,  # a connection is half open
    "partition": 4,  # some clients cannot be reached for a while
    "client crash": 8,
    "client leaves": 2,
    "coordinator crash": 4,
    "second coordinator": 2,  # on the same state directory, while the first still runs
    "slow disk": 4,
    "full disk": 4,
    "slow network": 4,
    "clock jump": 1,
    "again": 8,  # an old upload is sent again
    "stale": 6,  # an old update is sent for the newest step
    "old session": 4,  # a replaced process sends a message
    "other bytes": 6,
    "not a number": 3,
}
PAUSED = 0.3  # share of runs that their operator pauses
KEEPING, MOVING = 0.25, 0.2  # shares of sparse runs whose clients keep memory, or move the mask
VOIDING = 0.6  # share of the former that need every client soon, so that many steps are void


@dataclass(frozen=True)
class Episode:
    """A fault with its start and duration."""

    at_s: float
    kind: str
    for_s: float


@dataclass(frozen=True)
class Client:
    """A site of the plan."""

    name: str
    num_samples: int
    host: str
    knows_references: bool
    begins_s: float


@dataclass(frozen=True)
class Plan:
    """One federation and its faults."""

    seed: int
    settings: RunSettings
    clients: tuple[Client, ...]
    initial_is_sent: bool
    upload_slots: int
    aim: str  # the failpoint where the coordinator dies; empty: nowhere
    passage: int
    episodes: tuple[Episode, ...]
    trouble_s: float  # no faults are injected after this time
    chance: float = 0.0  # of a crash at any passage of any failpoint

    @property
    def bound_s(self) -> float:
        """The seconds within which every run ends after the last fault."""
        return 20 * (self.settings.round_deadline_s + 60)


def plan_of(seed: int, *, quiet: bool = False, points: tuple[str, ...] = POINTS) -> Plan:
    """Return the plan of a seed; `quiet`: the same federation without faults."""
    rng = random.Random(f"federation {seed}")
    aim = points[seed % len(points)]
    clients = tuple(
        Client(
            f"c{number}",
            rng.randint(1, 60),
            rng.choice(["127.0.0.1", "10.0.0.5"]),
            rng.random() < 0.5,
            rng.uniform(0, 5) if rng.random() < 0.8 else rng.uniform(5, 60),
        )
        for number in range(1, rng.randint(2, 5) + 1)
    )
    settings = _settings(rng, seed, len(clients), renews=aim in REFRESH_POINTS)
    sent = aim.startswith("initial.") or rng.random() < 0.3
    slots = rng.choice([1, 2, 8])
    if quiet:
        return Plan(seed, settings, clients, sent, slots, "", 0, (), 0.0)
    trouble_s = rng.uniform(30, 150)
    kinds, weights = zip(*KINDS.items(), strict=True)
    episodes = [
        Episode(rng.uniform(0, trouble_s), kind, rng.uniform(1, 60))
        for kind in rng.choices(kinds, weights, k=rng.randint(0, 14))
    ]
    if aim in AFTER_A_CRASH:
        episodes.append(Episode(rng.uniform(0, 20), "coordinator crash", 0))
    operator = random.Random(f"operator {seed}")
    if operator.random() < PAUSED:
        episodes.append(Episode(operator.uniform(0, 30), "pause", operator.uniform(5, 60)))
    episodes.sort(key=lambda episode: episode.at_s)
    passage = 1 if aim.startswith((*ONCE, *AFTER_A_CRASH)) else rng.randint(1, 2)
    chance = rng.choice([0.0, 0.0, 0.004])
    return Plan(
        seed, settings, clients, sent, slots, aim, passage, tuple(episodes), trouble_s, chance
    )


def _settings(rng: random.Random, seed: int, num_clients: int, *, renews: bool) -> RunSettings:
    reproducible = rng.random() < 0.5
    sparse = renews or rng.random() < 0.75
    rounds = rng.randint(3, 5) if renews else rng.randint(2, 4)
    of_the_mask: dict[str, Any] = {}
    if sparse:
        of_the_mask = {
            "warmup_rounds": rng.choice([0, 0, 0, 1]),
            "deactivated": rng.choice(["keep", "reset"]),
            "sparsity": rng.choice(["0.5", "0.75", "0.9"]),
        }
        if renews or rng.random() < 0.3:
            of_the_mask["refresh_rounds"] = str(rounds - 1)
            of_the_mask["warmup_rounds"] = 0
    settings = RunSettings(
        strategy="ssfl" if sparse else "fedavg",
        rounds=rounds,
        clients=num_clients if reproducible else rng.choice([0, 2]),
        clients_per_round=rng.choice([0, 0, 2]),
        min_clients=rng.choice([1, 2]),
        evaluate_every=rng.choice([0, 1, 2]),
        personalize_epochs=rng.choice([0, 0, 1]),
        update_weights=rng.choice(["samples", "samples", "equal"]),
        reproducible=reproducible,
        round_deadline_s=rng.choice([40.0, 100.0]),
        no_progress_s=rng.choice([20.0, 60.0]),
        scores="exact",
        seed=seed,
        **of_the_mask,
    )
    settings = _with_strategy(settings, num_clients, random.Random(f"strategy {seed}"))
    check_settings(settings)
    return settings


def _with_strategy(settings: RunSettings, num_clients: int, rng: random.Random) -> RunSettings:
    """Return the settings, some with a strategy whose clients keep memory or move the mask."""
    drawn = rng.random()
    if settings.strategy == "ssfl" and drawn < KEEPING:
        if rng.random() < VOIDING:
            settings = replace(
                settings, reproducible=False, clients=num_clients, min_clients=num_clients,
                clients_per_round=0, round_deadline_s=20.0,
            )  # fmt: skip
        return replace(settings, strategy="ditto", personalize_epochs=0)
    if settings.strategy == "ssfl" and not settings.refreshes and drawn < KEEPING + MOVING:
        own = {"every": rng.choice([1, 1, 2]), "until_round": settings.rounds, "alpha": 0.25}
        options = ",".join(f"feddst.{name}={value}" for name, value in own.items())
        return replace(settings, strategy="feddst", strategy_options=options, warmup_rounds=0)
    return settings
