"""The plan of strategies whose clients receive each other's updates."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.device import client_torch_settings
from ssfl.learning.load_task import load_task
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.simulator.federation import SimulatedFederation
from ssfl.study.data import DataSpec, build_shards
from ssfl.tools import main as tools
from ssfl.tools.plan.gossip import MAX_DRAWN, GossipPlan, plan_gossip
from ssfl.tools.plan.sizes import Coding, Size

CLIENTS, ROUNDS = 5, 3
SMALL = RunSettings(
    model="mlp", width=4, rounds=ROUNDS, clients=CLIENTS, local_steps=2, sparsity="0.5",
    reproducible=True, evaluate_every=2, seed=3,
)  # fmt: skip
OPTIONS = [
    "d-psgd.neighbours=2",
    "d-psgd.topology=ring",
    "dispfl.neighbours=2,dispfl.regrow=random",
    "dispfl.rounding=floor,dispfl.topology=full",
    "fedfomo.neighbours=2",
]


@pytest.fixture(scope="module")
def shards() -> dict[str, Shard]:
    return build_shards(DataSpec(clients=CLIENTS, samples_per_client=30, validation=0.2), seed=3)


def simulated(
    shards: dict[str, Shard], options: str, *, coded: bool
) -> tuple[SimulatedFederation, RunSettings]:
    settings = replace(SMALL, strategy=options.split(".")[0], strategy_options=options)
    with client_torch_settings():
        run = SimulatedFederation(load_task("image"), shards, settings, reference_coding=coded)
        while run.next_work is not None:
            run.run_step()
    return run, settings


@pytest.mark.parametrize("coded", [False, True], ids=["plain", "coded"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_simulated_run_sends_what_was_planned(
    shards: dict[str, Shard], options: str, coded: bool
) -> None:
    run, settings = simulated(shards, options, coded=coded)
    plan = plan_gossip(run.model.manifest, settings, Coding(settings, coded))
    document, sent = run.document(), Counter[str]()
    for row in document["ledger"]:
        sent[f"{row['phase']} {row['direction']}"] += row["payload_bytes"]
    gossip = document["gossip"]
    found = {
        "relay_up": sent.pop("relay up"),
        "relay_down": sent.pop("relay down"),
        "peers": gossip["bytes_peers"],
        "busiest_in": gossip["bytes_busiest_in"],
        "busiest": gossip["bytes_busiest"],
        "evaluation": sent.pop("evaluation down"),
    }
    assert not +sent
    for part, num_bytes in found.items():
        size: Size = getattr(plan, part)
        assert size.low <= num_bytes <= size.most, (part, size, num_bytes)
        # FedFOMO's candidates follow from losses, so how often the busiest client sends is open.
        is_open = part == "busiest" and settings.strategy == "fedfomo"
        assert coded or is_open or size == Size.fixed(num_bytes), part


LAYERS = Manifest(
    (
        TensorSpec("w", (10, 8), Role.MASKED, Init("normal", 0.1)),
        TensorSpec("b", (5,), Role.DENSE, Init("zeros")),
    )
)


def by_hand(options: str, clients: int, rounds: int) -> GossipPlan:
    settings = replace(
        SMALL, strategy=options.split(".")[0], strategy_options=options, clients=clients,
        rounds=rounds, evaluate_every=0,
    )  # fmt: skip
    return plan_gossip(LAYERS, settings, Coding(settings, reference=False))


def test_a_ring_of_four_for_three_rounds() -> None:
    """A dense update has 4 * 85 bytes. Half of 80 weights and a mask have 4 * 45 + 10."""
    for options, update in (("d-psgd.topology=ring", 340), ("dispfl.topology=ring", 190)):
        plan = by_hand(options, clients=4, rounds=3)
        assert plan.update == Size.fixed(update)
        assert plan.relay_up == Size.fixed(3 * 4 * update)
        assert plan.relay_down == plan.peers == Size.fixed(2 * 4 * 2 * update)
        assert plan.mean_in == plan.busiest_in == Size.fixed(2 * 2 * update)
        assert plan.busiest == Size.fixed(2 * 2 * 2 * update)
        assert plan.evaluation == Size.fixed(4 * 340), "the mean keeps all weights"


def test_the_busiest_is_a_range_if_neighbours_follow_from_losses_or_are_too_many() -> None:
    """Four in. On average each client sends four times; at most, all others take its update."""
    plan = by_hand("fedfomo.neighbours=2", clients=5, rounds=3)
    assert (plan.busiest.low, plan.busiest.high) == (8 * 340, 12 * 340)
    long = by_hand("d-psgd.topology=ring", clients=5, rounds=MAX_DRAWN)
    assert long.busiest_in == Size.fixed((MAX_DRAWN - 1) * 2 * 340)
    assert long.busiest.low == 2 * long.busiest_in.low < long.busiest.high


def test_a_run_of_one_round_hands_nothing_out() -> None:
    plan = by_hand("d-psgd.topology=full", clients=4, rounds=1)
    assert plan.relay_up == Size.fixed(4 * 340)
    assert plan.relay_down == plan.busiest == Size.fixed(0)


COMMAND = ["plan", "--model", "mlp", "--input", "1x8x8", "--clients", "4", "--rounds", "3"]


@pytest.mark.parametrize("strategy", ["d-psgd", "dispfl", "fedfomo"])
def test_the_command_says_that_they_are_simulated_only(
    strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.main([*COMMAND, "--strategy", strategy]) == ExitCode.DONE
    shown = " ".join(capsys.readouterr().out.split())
    assert "it runs in `ssfl simulate` only" in shown
    for text in ("relay, up", "relay, down", "from client to client", "busiest client, in and out"):
        assert text in shown
    assert tools.main([*COMMAND, "--strategy", strategy, "--json"]) == ExitCode.DONE
    document = json.loads(capsys.readouterr().out)
    (plan,) = document["plans"]
    assert document["simulated_only"] and plan["peers"] == plan["relay_down"]
    assert 0 < plan["busiest_in"]["low"] < plan["busiest"]["low"]


def test_dispfl_has_a_column_for_every_sparsity(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--strategy", "dispfl", "--sparsity", "0.5,0.9", "--reference-coding", "off"]
    assert tools.main([*COMMAND, *flags]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "dispfl, 0.5 sparse" in shown and "dispfl, 0.9 sparse" in shown


def test_seconds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--strategy", "dispfl", "--link", "20mbit/50ms"]
    assert tools.main([*COMMAND, *flags]) == ExitCode.USAGE
    assert "--link: strategy dispfl runs in `ssfl simulate` only" in capsys.readouterr().err
