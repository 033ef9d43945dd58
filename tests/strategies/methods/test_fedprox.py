"""FedProx: FedAvg with a pull inside every gradient."""

import pytest
from torch import nn, no_grad

from ssfl.learning.pruned_weights import StepChange
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientHalf, Pull, Received, Rule
from ssfl.strategies.registry import strategy_for
from strategies.fakes import FakeMemory, FakeSite, floats, ignore, mask_of, rule_of, vector


def received(round_number: int = 0) -> Received:
    return Received(mask_of(1, 3), vector(2, 4, 5, 6), round_number)


def test_the_pull_is_towards_the_received_values_and_inside_the_gradient() -> None:
    (pull,) = rule_of("fedprox", mu=0.25).client().rules(received())
    assert isinstance(pull, Pull)
    assert (floats(pull.toward), pull.strength, pull.in_gradient) == ([2, 4, 5, 6], 0.25, True)


def test_a_client_trains_a_plain_round_with_the_pull_and_keeps_nothing() -> None:
    site, memory = FakeSite([vector(1, 1, 1, 1)]), FakeMemory()
    reply = rule_of("fedprox").client().train(received(3), site, memory, ignore)
    (call,) = site.calls
    assert (call.mask, call.round_number, call.epochs) == (mask_of(1, 3), 3, None)
    assert [type(rule) for rule in call.rules] == [Pull]
    assert floats(reply.trained.values) == [3, 5, 6, 7]
    assert (reply.bits, dict(reply.vectors), reply.numbers, memory.puts) == (None, {}, (), {})


def test_all_but_the_rules_of_training_is_fedavg() -> None:
    rule = rule_of("fedprox")
    for name in ("begin", "plan", "parts", "vectors", "finish", "deployed"):
        assert getattr(type(rule), name) is getattr(Rule, name)
    assert type(rule.client()).train is ClientHalf.train


@pytest.mark.parametrize("criterion", ["saliency", "none", "client-random"])
def test_it_runs_under_every_mask_source(criterion: str) -> None:
    strategy = strategy_for(RunSettings(strategy="fedprox", criterion=criterion))
    assert strategy.is_dense == (criterion == "none")
    assert strategy.has_own_masks == (criterion == "client-random")


def test_two_steps_by_hand() -> None:
    """F(w) = w^2 / 2, w_t = 4, rate 0.5, mu 1: 4 - 0.5 (4 + 0) = 2, then 2 - 0.5 (2 - 2) = 2."""
    network = nn.Linear(1, 1, bias=False)
    manifest = Manifest((TensorSpec("weight", (1, 1), Role.MASKED, Init("zeros")),))
    (pull,) = rule_of("fedprox", mu=1.0).client().rules(Received(Mask.full(1), vector(4), 0))
    change = StepChange(pull, network, manifest, Mask.full(1))
    found = []
    with no_grad():
        network.weight.fill_(4.0)
    for _ in range(2):
        network.weight.grad = network.weight.detach().clone()
        change.before_step()
        with no_grad():
            network.weight.sub_(network.weight.grad, alpha=0.5)
        change.after_step(0.5)
        found.append(network.weight.item())
    assert found == [2.0, 2.0]
