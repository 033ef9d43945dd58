"""Rules whose clients receive each other's updates: what they share.

A round: every client receives the last updates of its neighbours, mixes them into its own model,
trains the result, and sends it. The updates of a round are handed out in the next one, so the order
in which clients work does not matter. All models start from the same initial weights, so the first
round hands out nothing.

The run's model is the plain mean of the clients' models. It is tested, and nothing starts from it.
A client's test results in a round are those of its own model, never of the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ssfl.method.errors import SettingsError
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.mask import Mask
from ssfl.method.settings import choice, setting
from ssfl.method.streams import Stream
from ssfl.strategies.contract import Answer, ClientId, Memory, Plan, Position, Rule, Work

MODEL = "model"  # in a client's memory: the values of its last update
NOT_TESTED = Evaluation(None, 0, 0.0)


@dataclass(frozen=True)
class GossipOptions:
    """Hyper-parameters of a gossip rule."""

    neighbours: int = setting(10, "clients whose models a client receives in a round", ge=1)
    topology: str = choice(
        "how neighbours are chosen; random: new ones in each round; ring: the client before and "
        "the one after; full: all others",
        "random",
        "ring",
        "full",
    )


def chosen_neighbours(
    options: GossipOptions,
    seed: int,
    round_number: int,
    client: ClientId,
    others: Sequence[ClientId],
) -> tuple[ClientId, ...]:
    """Return the neighbours of a client in a round, sorted.

    >>> names = [ClientId(name) for name in "abde"]
    >>> chosen_neighbours(GossipOptions(topology="ring"), 0, 5, ClientId("c"), names)
    ('b', 'd')
    """
    if options.topology == "full":
        return tuple(others)
    if options.topology == "ring":
        ring = sorted([*others, client])
        at = ring.index(client)
        return tuple(sorted({ring[at - 1], ring[(at + 1) % len(ring)]} - {client}))
    stream = Stream(seed, "neighbours", round_number, client)
    count = min(options.neighbours, len(others))
    return tuple(others[i] for i in stream.choose(len(others), count))


class GossipRule(Rule):
    """Every client trains its own model in every round. The run's model is the mean of all."""

    Options: ClassVar[type] = GossipOptions
    is_gossip = True
    has_personal_models = True
    fine_tunes_mean = False  # whether --personalize-epochs applies

    def check(self) -> None:
        settings = self.settings
        clashing = {
            "--clients-per-round": settings.clients_per_round,
            "--client-fraction": 0 < settings.client_fraction < 1,
            "--max-update-norm": settings.max_update_norm,
            f"--value-type {settings.value_type}": settings.value_type != "float32",
            "--personalize-epochs": settings.personalize_epochs and not self.fine_tunes_mean,
        }
        for name, given in clashing.items():
            if given:
                raise SettingsError(
                    f"--strategy {settings.strategy} trains a model of its own at every client in "
                    f"every round: leave out {name}"
                )

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        if position.rounds_done >= self.settings.rounds:
            return None
        return Plan(Work.TRAIN, tuple(sorted(clients)), equal_weights=True)

    def neighbours(
        self, round_number: int, client: ClientId, others: Sequence[ClientId], memory: Memory
    ) -> tuple[ClientId, ...]:
        return chosen_neighbours(self.options, self.settings.seed, round_number, client, others)


def own_answer(trained: LocalResult, bits: Mask | None = None) -> Answer:
    """Return the answer with a client's own model, which is not a test of the run's model."""
    return Answer(replace(trained, base=NOT_TESTED), bits=bits)
