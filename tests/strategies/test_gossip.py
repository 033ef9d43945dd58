"""What gossip rules share: topology, plan and refusals."""

from dataclasses import replace
from typing import Any

import pytest

from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientId, Plan, Position, Work
from ssfl.strategies.gossip import GossipOptions, chosen_neighbours
from ssfl.strategies.registry import check_settings, rule_for, strategy_for, strategy_names
from strategies.fakes import rule_of
from strategies.scripted_site import DictMemory

NAMES = [ClientId(f"c{number:02}") for number in range(20)]
GOSSIP = [name for name in strategy_names() if rule_for(name).is_gossip]


def chosen(round_number: int, client: ClientId, seed: int = 0, **options: Any) -> tuple[str, ...]:
    others = [name for name in NAMES if name != client]
    return chosen_neighbours(GossipOptions(**options), seed, round_number, client, others)


def test_the_gossip_strategies_are_those_of_the_comparison() -> None:
    assert GOSSIP == ["d-psgd", "dispfl", "fedfomo"]


def test_random_neighbours_follow_from_seed_round_and_client() -> None:
    first = chosen(3, NAMES[4], neighbours=5)
    assert first == chosen(3, NAMES[4], neighbours=5) and len(set(first)) == 5
    assert list(first) == sorted(first)
    others = [chosen(4, NAMES[4], neighbours=5), chosen(3, NAMES[5], neighbours=5),
              chosen(3, NAMES[4], seed=1, neighbours=5)]  # fmt: skip
    assert first not in others
    # A seed made of round + client would repeat the set at the next client a round before.
    rows = [(chosen(n, NAMES[k + 1], neighbours=5), chosen(n + 1, NAMES[k], neighbours=5))
            for n in range(5) for k in range(5)]  # fmt: skip
    assert sum(a == b for a, b in rows) < 2


@pytest.mark.parametrize("topology", ["random", "ring", "full"])
def test_a_client_is_never_its_own_neighbour(topology: str) -> None:
    for number in range(30):
        for client in NAMES:
            assert client not in chosen(number, client, topology=topology)


def test_ring_and_full_do_not_change() -> None:
    assert chosen(0, NAMES[0], topology="ring") == ("c01", "c19")
    assert chosen(7, NAMES[7], topology="ring") == ("c06", "c08")
    assert chosen(7, NAMES[7], topology="full") == tuple(n for n in NAMES if n != "c07")
    pair = chosen_neighbours(GossipOptions(topology="ring"), 0, 0, NAMES[0], NAMES[1:2])
    assert pair == ("c01",), "the only other client, once"
    assert chosen_neighbours(GossipOptions(topology="ring"), 0, 0, NAMES[0], []) == ()


def test_a_client_cannot_have_more_neighbours_than_there_are_others() -> None:
    assert chosen(0, NAMES[2], neighbours=99) == tuple(n for n in NAMES if n != "c02")
    rule = rule_of("d-psgd", neighbours=3)
    assert rule.neighbours(0, NAMES[0], [], DictMemory()) == ()
    assert len(rule.neighbours(5, NAMES[0], NAMES[1:], DictMemory())) == 3


@pytest.mark.parametrize("name", GOSSIP)
def test_every_client_trains_with_equal_weight_in_every_round(name: str) -> None:
    rule = rule_of(name, RunSettings(rounds=2))
    assert rule.plan(Position(0, 1, 0), NAMES) == Plan(Work.TRAIN, tuple(NAMES), equal_weights=True)
    assert rule.plan(Position(2, 1, 0), NAMES) is None
    assert rule.has_personal_models and strategy_for(rule.settings).has_client_half


@pytest.mark.parametrize("name", GOSSIP)
def test_the_service_refuses_with_the_reason(name: str) -> None:
    settings = RunSettings(strategy=name)
    check_settings(settings, simulated=True)
    with pytest.raises(SettingsError, match=f"--strategy {name} hands each site's update to other"):
        check_settings(settings)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"clients_per_round": 3}, "--clients-per-round"),
        ({"client_fraction": 0.5}, "--client-fraction"),
        ({"max_update_norm": 1.0}, "--max-update-norm"),
        ({"value_type": "int8"}, "--value-type int8"),
        ({"personalize_epochs": 1}, "--personalize-epochs"),
    ],
)
def test_settings_that_assume_one_shared_model_are_refused(
    changes: dict[str, Any], flag: str
) -> None:
    settings = replace(RunSettings(strategy="dispfl"), **changes)
    with pytest.raises(SettingsError, match=f"leave out {flag}"):
        check_settings(settings, simulated=True)


def test_only_d_psgd_can_fine_tune_the_mean() -> None:
    check_settings(RunSettings(strategy="d-psgd", personalize_epochs=2), simulated=True)
    with pytest.raises(SettingsError, match="leave out --personalize-epochs"):
        check_settings(RunSettings(strategy="fedfomo", personalize_epochs=2), simulated=True)
