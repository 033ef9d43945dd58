"""`api.simulate` without real processes; see also tests/system/test_simulated_digest.py."""

from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ssfl import api
from ssfl.api.data import by_client
from ssfl.api.simulation import run_settings
from ssfl.learning.device import client_torch_settings
from ssfl.learning.errors import DivergedError
from ssfl.learning.load_task import IMAGE, load_task
from ssfl.method.model_state import values_digest
from ssfl.method.settings import RunSettings
from ssfl.server.errors import BadValues, ModelUnusable
from ssfl.simulator.federation import SimulatedFederation

QUICK: dict[str, Any] = {"model": "mlp", "local_steps": 2, "batch_size": 8}
NUMBERS = Path(__file__).with_name("number_task.py")
GROWING = """
from api.number_task import build_model, load_shard

OWN_WEIGHTS = True

def loss(model, x, y):
    return -model(x + 1).mean()
"""


def test_the_default_number_of_rounds_comes_from_the_settings() -> None:
    assert signature(api.simulate).parameters["rounds"].default is None
    assert run_settings({}, 3).rounds == RunSettings().rounds
    assert run_settings({"profile": "paper"}, 3).rounds == 500


def test_digest_values_mask_and_model_agree(shards: list[api.Shard]) -> None:
    done = api.simulate(shards, rounds=2, **QUICK)
    assert done.digest == values_digest(done.values).hex() == done.history.digest
    assert done.history.finished and not done.model.training
    state = {name: tensor.numpy() for name, tensor in done.model.state_dict().items()}
    assert np.array_equal(done.mask.gather(done.manifest.flatten(state)), done.values)
    weights = done.manifest.flatten(state)[: done.mask.size]
    assert not weights[~done.mask.bools()].any()
    assert done.mask == api.find_mask(shards, **QUICK).mask


def test_results_have_a_short_repr(shards: list[api.Shard]) -> None:
    done = api.simulate(shards, rounds=2, **QUICK)
    accuracy = f"{100 * done.history.accuracy[-1]:.1f} %"
    assert repr(done.history) == f"<RunHistory simulated: 2 rounds, accuracy {accuracy}>"
    assert repr(done) == f"<Simulated {done.digest[:12]}: 2 rounds, accuracy {accuracy}>"
    assert repr(api.find_mask(shards, **QUICK)) == "<FoundMask: 5,480 of 54,800 weights kept>"


def test_the_digest_depends_on_the_seed_alone(shards: list[api.Shard]) -> None:
    first, again, other = (api.simulate(shards, rounds=1, seed=s, **QUICK) for s in (1, 1, 2))
    assert first.digest == again.digest != other.digest


def test_the_digest_depends_on_client_names_but_not_on_their_order(shards: list[api.Shard]) -> None:
    a, b, _ = shards
    listed = api.simulate([a, b], rounds=1, **QUICK)
    named = api.simulate({"shard_01": b, "shard_00": a}, rounds=1, **QUICK)
    others = api.simulate({"ann": a, "bob": b}, rounds=1, **QUICK)
    assert listed.digest == named.digest != others.digest
    assert others.history.clients["client"].tolist() == ["ann", "bob"]


def test_torch_threads_of_the_caller_do_not_change_the_digest(shards: list[api.Shard]) -> None:
    usual = api.simulate(shards, rounds=1, model="cnn", local_epochs=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(5)
        again = api.simulate(shards, rounds=1, model="cnn", local_epochs=1)
    finally:
        torch.set_num_threads(threads)
    assert usual.digest == again.digest


def test_every_round_is_reported_once_and_nothing_is_printed(
    shards: list[api.Shard], capfd: pytest.CaptureFixture[str]
) -> None:
    reported: list[tuple[int, int, bool, bool]] = []

    def on_round(number: int, history: api.RunHistory) -> None:
        known = np.isfinite(history.accuracy)
        reported.append((number, len(history.rounds), bool(known[:-1].all()), bool(known[-1])))

    api.simulate(shards, rounds=4, evaluate_every=2, on_round=on_round, **QUICK)
    assert reported == [
        (0, 1, True, False),  # the clients of the next round will test it
        (1, 2, True, True),  # tested by all clients
        (2, 3, True, False),
        (3, 4, True, True),  # the last model is always tested
    ]
    assert capfd.readouterr() == ("", "")


def test_an_exception_of_the_callback_ends_the_simulation(shards: list[api.Shard]) -> None:
    class Enough(Exception):
        pass

    def on_round(number: int, _history: api.RunHistory) -> None:
        if number == 1:
            raise Enough

    with pytest.raises(Enough):
        api.simulate(shards, rounds=50, on_round=on_round, **QUICK)


def test_payloads_are_counted_and_messages_are_not(shards: list[api.Shard]) -> None:
    settings = {"rounds": 3, "scores": "exact", "clients_per_round": 2, **QUICK}
    history = history_without_reference_coding(shards, settings)
    values = int(history.layers.kept.sum()) + 410  # biases of the mlp
    assert np.allclose(history.payloads.up_per_round, 2 * 4 * values / 1e6)
    assert history.payloads.up[-1] == pytest.approx((3 * 4 * 54800 + 6 * 4 * values) / 1e6)
    assert history.payloads.down_per_round[0] == 0, "the first base follows from mask and seed"
    assert history.payloads.one_off > 3 * 4 * 54800 / 1e6
    assert history.payloads.total_down > history.payloads.down[-1]
    assert np.isnan(history.messages.up).all() and np.isnan(history.messages.total_up)
    coded = api.simulate(shards, **settings).history
    assert coded.digest == history.digest
    assert coded.payloads.one_off == history.payloads.one_off
    assert (coded.payloads.up_per_round < 0.9 * history.payloads.up_per_round).all()


def history_without_reference_coding(
    shards: list[api.Shard], settings: dict[str, Any]
) -> api.RunHistory:
    federation = SimulatedFederation(
        load_task(IMAGE),
        by_client(shards),
        run_settings(settings, len(shards)),
        reference_coding=False,
    )
    with client_torch_settings():
        while federation.next_work is not None:
            federation.run_step()
    return api.RunHistory.of(federation.document())


def test_numbers_have_a_loss_and_metrics_but_no_accuracy(numbers: list[api.Shard]) -> None:
    done = api.simulate(
        numbers, task=NUMBERS, rounds=3, local_epochs=3, sparsity=0.5, learning_rate=0.05
    )
    history = done.history
    assert np.isnan(history.accuracy).all() and np.isnan(history.personal).all()
    assert np.isnan(history.clients["accuracy"]).all()
    assert list(history.metrics) == ["mean_error"]
    assert history.loss[-1] < history.initial_loss
    assert history.metrics["mean_error"][-1] < history.metrics["mean_error"][0]


@pytest.mark.parametrize("profile", ["paper", "released"])
def test_the_profiles_augment_and_scale_images_of_the_paper_only(
    shards: list[api.Shard], profile: str
) -> None:
    short: dict[str, Any] = QUICK | {"profile": profile, "rounds": 1, "personalize_epochs": 0}
    rules = {"paper": ("kaiming-normal", "paper"), "released": ("torch-default",) * 2}[profile]
    plain = {"augment": "none", "normalize": "none", "scoring_augment": False}
    own = {"augment": "crop-flip", "normalize": "cifar10", "scoring_augment": profile == "released"}

    def digest(data: list[api.Shard], **more: Any) -> str:
        return api.simulate(data, **short, **more).digest

    assert digest(shards) == digest(shards, **plain, initialization=rules[0])
    colour = [
        replace(shard, train_x=colours(shard.train_x), test_x=colours(shard.test_x),
                val_x=colours(shard.val_x))
        for shard in shards
    ]  # fmt: skip
    assert digest(colour) == digest(colour, **own, initialization=rules[1])
    assert digest(colour) != digest(colour, **plain, initialization=rules[1])


def colours(digits: np.ndarray) -> np.ndarray:
    """Return 8x8 digits as images of 3x32x32, with a little of each channel's own."""
    large: np.ndarray = digits.repeat(4, axis=2).repeat(4, axis=3)
    return np.concatenate([large, 0.5 * large, 1 - large], axis=1)


def test_diverging_training_is_reported_with_the_keyword(shards: list[api.Shard]) -> None:
    with pytest.raises(DivergedError, match="try a smaller learning_rate"):
        api.simulate(shards, rounds=2, learning_rate=1e38, clip_norm=0, **QUICK)


def test_a_model_that_the_coordinator_refuses_is_refused(shards: list[api.Shard]) -> None:
    batch_norm: dict[str, Any] = {"model": "resnet20", "norm": "batch", "width": 4}
    with pytest.raises(ModelUnusable, match=r"running statistics .* value_type int8"):
        api.simulate(shards, rounds=1, value_type="int8", **batch_norm)


def test_values_beyond_the_bound_are_refused_by_client_and_tensor(
    tmp_path: Path, numbers: list[api.Shard]
) -> None:
    task = tmp_path / "growing_task.py"
    task.write_text(GROWING)
    with pytest.raises(BadValues, match=r"shard_00 sent a value of size .* in ") as error:
        api.simulate(numbers, task=task, rounds=2, learning_rate=1e3, local_steps=3)
    assert "--" not in str(error.value)


def test_own_weights_of_a_task_come_from_the_first_client(
    tmp_path: Path, numbers: list[api.Shard]
) -> None:
    task = tmp_path / "growing_task.py"
    task.write_text(GROWING)
    found = api.find_mask(numbers, task=task, sparsity=0.5)
    done = api.simulate(numbers, task=task, rounds=1, sparsity=0.5, learning_rate=0.01)
    assert not found.manifest.rebuildable
    sent_up, size = 4, found.manifest.size
    assert done.history.payloads.one_off >= sent_up * size / 1e6, (
        "one client sends the weights, the others have them"
    )
