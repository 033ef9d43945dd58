"""Prediction of a run whose clients receive each other's updates, as `ssfl simulate` counts it.

A client sends its update once in a round, and from the second round on receives the last updates of
its neighbours. They follow from the strategy's own topology, the seed, and the names that
`ssfl simulate` gives to clients. A strategy that chooses neighbours by what it has learned has none
before a run; then the bytes of the busiest client are a range.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import Vector
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientId
from ssfl.strategies.registry import strategy_for
from ssfl.study.data import DataSpec, client_names
from ssfl.tools.plan.rule_rounds import RuleRounds
from ssfl.tools.plan.sizes import Coding, Size
from ssfl.tools.plan.view import empty_table, format_size

MAX_DRAWN = 200_000  # choices of neighbours that are computed; more take many seconds


@dataclass(frozen=True)
class GossipPlan:
    """The payload bytes of a run."""

    settings: RunSettings
    num_masked: int
    num_unmasked: int
    num_kept: int
    update: Size  # of one client in one round: values and mask
    relay_up: Size  # through a server: every update once
    relay_down: Size  # and once for each client that receives it
    peers: Size  # from client to client, without a server
    mean_in: Size  # of a client on average
    busiest_in: Size
    busiest: Size  # in and out
    evaluation: Size  # tests of the mean of all models by all clients


@dataclass
class _EmptyMemory:
    """A client's memory before a run, which notes whether a strategy looks into it."""

    was_read: bool = False
    items: dict[str, Vector | Mask] = field(default_factory=dict)

    def vector(self, _name: str) -> Vector | None:
        self.was_read = True
        return None

    def mask(self, _name: str) -> Mask | None:
        self.was_read = True
        return None

    def put(self, _name: str, _value: Vector | Mask) -> None:
        raise NotImplementedError


def plan_gossip(manifest: Manifest, settings: RunSettings, coding: Coding) -> GossipPlan:
    """Return the prediction for a run with `settings.clients` clients."""
    rule = RuleRounds(manifest, settings, coding, settings.clients)
    parts = rule.parts(0)
    update = rule.update(parts) + rule.own_mask(parts)
    received, both = _exchanged(settings)
    mean = -(-received.total() // settings.clients)
    busiest_in = update * max(received.values(), default=0)
    least, most = (update * count for count in both)
    every, rounds = settings.evaluate_every, settings.rounds
    tests = sum(
        number == rounds or bool(every and number % every == 0)
        or number > rounds - settings.evaluate_last
        for number in range(1, rounds + 1)
    )  # fmt: skip
    relayed = update * received.total()
    return GossipPlan(
        settings,
        manifest.num_masked,
        manifest.num_unmasked,
        parts.max_kept or manifest.num_masked,
        update,
        update * (rounds * settings.clients),
        relayed,
        relayed,
        update * mean,
        busiest_in,
        least.union(most),
        coding.values(manifest.size, manifest.size) * (tests * settings.clients),
    )


def _exchanged(settings: RunSettings) -> tuple[Counter[ClientId], tuple[int, int]]:
    """Return the updates that each client receives, and those of the busiest, in and out.

    The latter are the fewest and the most.
    """
    rule, n = strategy_for(settings).rule, settings.clients
    names = [ClientId(name) for name in sorted(client_names(DataSpec(clients=n)))]
    others = {name: [other for other in names if other != name] for name in names}
    exchanges, memory = settings.rounds - 1, _EmptyMemory()
    received, sent = Counter[ClientId](), Counter[ClientId]()
    drawn = exchanges if exchanges * n <= MAX_DRAWN else 1
    for number in range(1, drawn + 1):
        for name in names:
            chosen = rule.neighbours(number, name, others[name], memory)
            received[name] += len(chosen)
            sent.update(chosen)
    if drawn < exchanges:
        received = Counter({name: count * exchanges for name, count in received.items()})
    if memory.was_read or drawn < exchanges:
        most_in = max(received.values(), default=0)
        mean_out = -(-received.total() // n)
        return received, (most_in + mean_out, most_in + exchanges * (n - 1))
    busiest = max((received[name] + sent[name] for name in names), default=0)
    return received, (busiest, busiest)


def gossip_table(model: str, plans: list[GossipPlan]) -> Table:
    """Return a column for every sparsity."""
    first = plans[0]
    table = empty_table(
        f"{model}: {first.num_masked:,} prunable and {first.num_unmasked:,} other values, "
        f"{first.settings.rounds} rounds, {first.settings.clients} clients",
        map(_heading, plans),
    )
    table.add_row("kept values", *(f"{plan.num_kept:,}" for plan in plans))
    for name, part in ROWS.items():
        table.add_row(name, *(format_size(getattr(plan, part)) for plan in plans))
    return table


ROWS = {
    "update": "update",
    "relay, up": "relay_up",
    "relay, down": "relay_down",
    "from client to client": "peers",
    "mean client, in": "mean_in",
    "busiest client, in": "busiest_in",
    "busiest client, in and out": "busiest",
    "tests of the mean, down": "evaluation",
}


def _heading(plan: GossipPlan) -> str:
    is_dense = strategy_for(plan.settings).is_dense
    return (
        f"{plan.settings.strategy}, {'dense' if is_dense else f'{plan.settings.sparsity} sparse'}"
    )


def gossip_notes(plans: list[GossipPlan]) -> Iterator[str]:
    """Yield the explanations of the table."""
    strategy = plans[0].settings.strategy
    yield (
        f"Strategy {strategy} hands each site's update to other sites: it runs in `ssfl simulate` "
        "only. These are the payload bytes that a simulation counts, without the framing of "
        "messages. MB are 1000² bytes."
    )
    yield (
        "A relay gets every update once and sends it to each client that receives it. Without a "
        "relay, clients send the same bytes to each other."
    )


def gossip_document(plans: list[GossipPlan]) -> dict[str, Any]:
    """Return the JSON document: bytes as low, high and most."""
    first = plans[0]
    return {
        "num_masked": first.num_masked,
        "num_unmasked": first.num_unmasked,
        "rounds": first.settings.rounds,
        "clients": first.settings.clients,
        "strategy": first.settings.strategy,
        "simulated_only": True,
        "plans": [
            {"sparsity": plan.settings.sparsity, "num_kept": plan.num_kept}
            | {part: asdict(getattr(plan, part)) for part in ROWS.values()}
            for plan in plans
        ],
    }
