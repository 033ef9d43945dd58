"""Ditto: the global branch, the personal branch, and the personal model under changing masks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ssfl.client.local_work import Site
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.load_task import load_task
from ssfl.method.errors import SettingsError
from ssfl.method.evaluation import Evaluation
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientHalf, Pull, Received, Rule
from ssfl.strategies.registry import check_settings
from strategies.fakes import FakeMemory, FakeSite, floats, ignore, mask_of, rule_of, vector

ONE = vector(1, 1, 1, 1)


def client(**options: Any) -> ClientHalf:
    return rule_of("ditto", **options).client()


def received(*places: int, values: tuple[float, ...] = (20, 40, 50, 60)) -> Received:
    return Received(mask_of(*places), vector(*values), 7)


def test_the_upload_is_that_of_the_global_branch() -> None:
    site = FakeSite([ONE, 5 * ONE])
    reply = client().train(received(1, 3), site, FakeMemory(), ignore)
    assert floats(reply.trained.values) == [21, 41, 51, 61]
    assert (reply.trained.training_loss, reply.bits, dict(reply.vectors)) == (1, None, {})
    first = site.calls[0]
    assert (floats(first.values), first.epochs, first.rules) == ([20, 40, 50, 60], None, ())


def test_the_personal_branch_starts_at_the_initial_weights_and_is_pulled_to_the_received() -> None:
    site = FakeSite([ONE, 5 * ONE])
    client(strength=0.75, personal_epochs=2).train(received(1, 3), site, FakeMemory(), ignore)
    second = site.calls[1]
    assert (floats(second.values), second.epochs) == ([2, 4, 5, 6], range(2))
    assert second.round_number == site.calls[0].round_number == 7, "other minibatches"
    (pull,) = second.rules
    assert isinstance(pull, Pull)
    assert (floats(pull.toward), pull.strength, pull.in_gradient) == ([20, 40, 50, 60], 0.75, True)


def test_the_result_reports_tests_of_the_received_and_of_the_personal_model() -> None:
    reply = client().train(received(1, 3), FakeSite([ONE, ONE]), FakeMemory(), ignore)
    assert reply.trained.base == Evaluation(1, 100, 0.0)
    assert reply.trained.personal == Evaluation(20, 100, 0.0), "of the second training"


def test_the_global_branch_may_have_fewer_epochs() -> None:
    site = FakeSite([ONE, ONE])
    client(global_epochs=2).train(received(1, 3), site, FakeMemory(), ignore)
    assert [call.epochs for call in site.calls] == [range(2), None]
    site = FakeSite([ONE, ONE])
    client(personal_epochs=3).train(received(1, 3), site, FakeMemory(), ignore)
    assert [call.epochs for call in site.calls] == [None, range(3)]


def test_progress_covers_both_branches() -> None:
    seen: list[tuple[int, int]] = []

    def on_step(done: int, total: int) -> None:
        seen.append((done, total))

    client().train(received(1, 3), FakeSite([ONE, ONE]), FakeMemory(), on_step)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_personal_model_continues_where_it_was() -> None:
    memory, site = FakeMemory(), FakeSite([ONE, 5 * ONE, ONE, ONE])
    client().train(received(1, 3), site, memory, ignore)
    memory.items = memory.puts
    client().train(received(1, 3), site, memory, ignore)
    assert floats(site.calls[3].values) == [7, 9, 10, 11]


@pytest.mark.parametrize(("deactivated", "returns_at"), [("keep", 7.0), ("reset", 2.0)])
def test_a_weight_that_a_mask_drops_and_a_later_one_adds(
    deactivated: str, returns_at: float
) -> None:
    """Weight 1 is trained to 7 and dropped; weight 0 is added at its initial value 1."""
    settings = RunSettings(deactivated=deactivated)
    memory, site = FakeMemory(), FakeSite([ONE, 5 * ONE] * 3, settings)
    for places in ((1, 3), (0, 3), (0, 1)):
        client().train(received(*places), site, memory, ignore)
        memory.items = {**memory.items, **memory.puts}
    assert floats(site.calls[3].values) == [1, 9, 10, 11], "0 is new, 3 was trained once"
    assert floats(site.calls[5].values) == [6, returns_at, 15, 16]


def test_a_client_that_never_trained_has_no_personal_model() -> None:
    assert client().personal(received(1, 3), FakeSite([]), FakeMemory()) is None


def test_the_personal_model_is_zero_where_it_was_not_trained() -> None:
    memory, site = FakeMemory(), FakeSite([ONE, 5 * ONE])
    client().train(received(1, 3), site, memory, ignore)
    memory.items = memory.puts
    assert floats(client().personal(received(1, 3), site, memory)) == [7, 9, 10, 11]
    everything = received(0, 1, 2, 3, values=(0,) * 6)
    assert floats(client().personal(everything, site, memory)) == [0, 7, 0, 9, 10, 11]
    assert floats(client().personal(received(0, 3), site, memory)) == [0, 9, 10, 11]


def test_the_coordinator_does_what_fedavg_does() -> None:
    kind = type(rule_of("ditto"))
    assert kind.has_personal_models
    for name in ("begin", "plan", "parts", "vectors", "finish", "deployed"):
        assert getattr(kind, name) is getattr(Rule, name)


def test_more_epochs_than_a_round_has_are_refused() -> None:
    check_settings(RunSettings(strategy="ditto", local_epochs=1))
    few = RunSettings(local_epochs=3)
    with pytest.raises(
        SettingsError, match=r"--ditto\.personal_epochs 4 is more than --local-epochs 3"
    ):
        rule_of("ditto", few, personal_epochs=4).check()
    rule_of("ditto", few, global_epochs=3).check()
    with pytest.raises(SettingsError, match="global_epochs 4"):
        rule_of("ditto", few, global_epochs=4).check()
    check_settings(RunSettings(strategy="ditto", local_epochs=1, local_steps=9))


def test_fine_tuning_is_refused_because_every_client_keeps_its_own_model() -> None:
    with pytest.raises(SettingsError, match=r"own at every client.*leave out --personalize-epochs"):
        check_settings(RunSettings(strategy="ditto", personalize_epochs=1))


# -- with a real network


def real_site(**changes: Any) -> Site:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 1, 4, 4)).astype(np.float32), np.arange(30) % 3
    settings = RunSettings(model="mlp", width=4, batch_size=5, local_epochs=3, seed=2)
    settings = replace(settings, **changes)
    shard = Shard(x, y, x[:9], y[:9], 3)
    return Site.build(load_task("image"), shard, settings, "c1", torch.device("cpu"))


def test_without_a_pull_both_branches_give_the_same_bits() -> None:
    site, memory = real_site(), FakeMemory()
    start = Received(Mask.full(site.manifest.num_masked), site.initial, 0)
    reply = client(strength=0.0).train(start, site, memory, ignore)
    own = memory.puts["personal"]
    assert isinstance(own, np.ndarray)
    assert own.tobytes() == reply.trained.values.tobytes()


@pytest.mark.parametrize("pull", ["gradient", "step"])
def test_the_pull_of_one_step(pull: str) -> None:
    """The first v is w0, and w is w0 + 0.5. Without the pull a step reaches v'.

    In the gradient: v' - rate * lambda * (v - w), which adds 0.1 * 2 * 0.5 to every weight.
    After the step: v' - rate * lambda * (v' - w).
    """
    plain = {"momentum": 0.0, "weight_decay": 0.0, "clip_norm": 0.0}
    site = real_site(local_steps=1, learning_rate=0.1, **plain)
    w, moved = site.initial + np.float32(0.5), []
    start = Received(Mask.full(site.manifest.num_masked), w, 0)
    for strength in (0.0, 2.0):
        memory = FakeMemory()
        client(strength=strength, pull=pull).train(start, site, memory, ignore)
        moved.append(memory.puts["personal"])
    free, pulled = moved
    assert isinstance(free, np.ndarray) and isinstance(pulled, np.ndarray)
    expected = free + np.float32(0.1) if pull == "gradient" else free - 0.2 * (free - w)
    np.testing.assert_allclose(pulled, expected, atol=1e-6)
    assert np.abs(free - site.initial).max() > 0.01, "the two differ"


def test_a_stronger_pull_keeps_the_personal_model_closer_to_the_global_one() -> None:
    site = real_site()
    target = site.initial + np.float32(0.5)
    distances = []
    for strength in (0.0, 0.5, 2.0):
        memory = FakeMemory()
        start = Received(Mask.full(site.manifest.num_masked), target, 0)
        client(strength=strength).train(start, site, memory, ignore)
        own = memory.puts["personal"]
        assert isinstance(own, np.ndarray)
        distances.append(float(np.linalg.norm(own - target)))
    assert distances == sorted(distances, reverse=True)
    assert distances[2] < distances[0] / 4


def test_it_trains_inside_a_mask() -> None:
    site, memory, half = real_site(), FakeMemory(), client()
    num_masked = site.manifest.num_masked
    mask = Mask.from_bools(np.arange(num_masked) % 2 == 0)
    half.train(Received(mask, mask.gather(site.initial), 0), site, memory, ignore)
    memory.items = memory.puts
    whole, off = memory.vector("personal"), ~mask.bools()
    assert whole is not None
    assert whole[:num_masked][off].tobytes() == site.initial[:num_masked][off].tobytes()
    assert not np.array_equal(mask.gather(whole), mask.gather(site.initial))
    everything = Received(Mask.full(num_masked), site.initial, 1)
    own = half.personal(everything, site, memory)
    assert own is not None and not own[:num_masked][off].any()
