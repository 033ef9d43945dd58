"""Tasks with their own training loop, written as a user writes them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

from learning.own_loops import (
    ACCUMULATED,
    BUILT_IN,
    BY_HAND,
    LBFGS,
    OWN_LOADER,
    TWO,
    task_with,
)
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import DivergedError, TaskError
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.load_task import LoadedTask
from ssfl.learning.masked_training import train_locally
from ssfl.learning.stacked.trial import should_stack
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.method.training_rules import Correction, Pull, TrainingRule

SETTINGS = RunSettings(
    local_epochs=2, momentum=0.9, weight_decay=0.01, learning_rate=0.05, clip_norm=0.3, seed=4
)


@pytest.fixture
def task_of(tmp_path: Path) -> Callable[[str], LoadedTask]:
    return partial(task_with, tmp_path)


@pytest.fixture(autouse=True)
def no_hook_is_left() -> Any:
    yield
    assert not _global_optimizer_pre_hooks and not _global_optimizer_post_hooks


def started(task: LoadedTask, shard: Shard) -> tuple[nn.Module, Manifest]:
    model = task.build_model(SETTINGS, shard)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_vector(manifest, seed=0))
    return model, manifest


def random_mask(manifest: Manifest) -> Mask:
    return Mask.from_bools(Stream(0, "mask").uniform(manifest.num_masked) < 0.3)


def trained(
    task: LoadedTask,
    shard: Shard,
    settings: RunSettings = SETTINGS,
    rules: Callable[[Manifest, Mask], list[TrainingRule]] = lambda _manifest, _mask: [],
    **more: Any,
) -> tuple[bytes, float]:
    model, manifest = started(task, shard)
    mask = random_mask(manifest)
    mean_loss = train_locally(
        model, manifest, mask, task, shard, settings, 3, "a", rules=rules(manifest, mask), **more
    )
    vector = read_vector(model, manifest)
    assert not vector[: manifest.num_masked][~mask.bools()].any()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    return mask.gather(vector).tobytes(), mean_loss


def test_the_built_in_loop_as_an_own_loop_gives_the_same_bits(
    task_of: Callable[[str], LoadedTask], shard: Shard
) -> None:
    assert trained(task_of(BUILT_IN), shard) == trained(task_of(""), shard)
    cosine = RunSettings(local_steps=5, local_schedule="cosine", lr_schedule="step:2:0.5")
    assert trained(task_of(BUILT_IN), shard, cosine) == trained(task_of(""), shard, cosine)
    part: dict[str, Any] = {"epochs": range(1, 2)}
    assert trained(task_of(BUILT_IN), shard, **part) == trained(task_of(""), shard, **part)


def pulls_and_correction(manifest: Manifest, mask: Mask) -> list[TrainingRule]:
    size = mask.num_kept + manifest.num_unmasked
    vector = Stream(1, "rule").uniform(size).astype(np.float32) - 0.5
    return [Pull(vector, 0.3), Correction(vector * 0.01), Pull(-vector, 0.2, in_gradient=True)]


def test_the_rules_of_a_strategy_apply_to_an_own_loop(
    task_of: Callable[[str], LoadedTask], shard: Shard
) -> None:
    unclipped = RunSettings(local_epochs=2, learning_rate=0.05, clip_norm=0.0, seed=4)
    body = BUILT_IN.replace("nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)", "")
    own = trained(task_of(body), shard, unclipped, pulls_and_correction)
    assert own == trained(task_of(""), shard, unclipped, pulls_and_correction)
    assert own != trained(task_of(""), shard, unclipped)
    halves = body.replace(
        "optimizer = torch.optim.SGD(\n        model.parameters(), lr",
        "optimizer = torch.optim.SGD(\n        [{'params': [p]} for p in model.parameters()], lr",
    )
    assert halves != body
    assert trained(task_of(halves), shard, unclipped, pulls_and_correction) == own
    with pytest.raises(TaskError, match=r"optimizer\.step\(closure\) hides the gradients"):
        trained(task_of(LBFGS), shard, unclipped, pulls_and_correction)


@pytest.mark.parametrize(
    "body", [ACCUMULATED, TWO, LBFGS, OWN_LOADER, BY_HAND],
    ids=["accumulated", "two", "closure", "loader", "by hand"],
)  # fmt: skip
def test_pruned_weights_are_zero_after_every_step_of_any_loop(
    task_of: Callable[[str], LoadedTask], shard: Shard, body: str
) -> None:
    task = task_of(body)
    model, manifest = started(task, shard)
    mask = random_mask(manifest)
    start, seen = mask.gather(read_vector(model, manifest)), []

    def look(done: int, total: int) -> None:
        weights = read_vector(model, manifest)[: manifest.num_masked]
        assert not weights[~mask.bools()].any()
        seen.append((done, total))

    train_locally(model, manifest, mask, task, shard, SETTINGS, 0, "a", on_step=look)
    assert seen[-1] == (8, 8) and seen == sorted(seen)
    after = read_vector(model, manifest)
    assert not after[: manifest.num_masked][~mask.bools()].any()
    assert np.mean(mask.gather(after) != start) > 0.5
    assert trained(task, shard) == trained(task, shard), "torch is seeded"


def test_a_closure_never_sees_a_pruned_weight_that_moved(
    task_of: Callable[[str], LoadedTask], shard: Shard
) -> None:
    body = LBFGS.replace(
        "value.backward()",
        "value.backward()\n            SEEN.append([p.detach().clone() for p in "
        "model.parameters()])",
    )
    task = task_of("SEEN = []\n" + body)
    model, manifest = started(task, shard)
    mask = random_mask(manifest)
    train_locally(model, manifest, mask, task, shard, SETTINGS, 0, "a")
    names = [name for name, _ in model.named_parameters()]
    assert len(task.module.SEEN) > 8, "more than one in a step"
    for tensors in task.module.SEEN:
        arrays = {name: t.numpy() for name, t in zip(names, tensors, strict=True)}
        weights = manifest.flatten(arrays)[: manifest.num_masked]
        assert not weights[~mask.bools()].any() and weights[mask.bools()].any()


def test_gradients_that_a_loop_sets_by_hand_are_masked_before_the_step(
    task_of: Callable[[str], LoadedTask], shard: Shard
) -> None:
    body = BY_HAND.replace("lr=0.1)", "lr=0.1, momentum=0.9)\n    USED.append(optimizer)")
    task = task_of("USED = []\n" + body)
    model, manifest = started(task, shard)
    mask = random_mask(manifest)
    train_locally(model, manifest, mask, task, shard, SETTINGS, 0, "a")
    state = task.module.USED[0].state
    named = dict(model.named_parameters()).items()
    momentum = manifest.flatten({name: state[p]["momentum_buffer"].numpy() for name, p in named})
    assert not momentum[: manifest.num_masked][~mask.bools()].any()
    assert momentum[: manifest.num_masked][mask.bools()].any()


def test_steps_of_other_models_are_left_alone(
    task_of: Callable[[str], LoadedTask], shard: Shard
) -> None:
    task = task_of(
        """
        def fit(model, batches, settings):
            other = nn.Linear(2, 2)
            optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
            for x, y in batches:
                other(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            return 0.0
        """
    )
    with pytest.raises(TaskError, match="fit took no step: it must call the step of a"):
        trained(task, shard)


BROKEN = {
    "def fit(model, batches, settings):\n    return 0.5\n": "task task_0: fit took no step",
    BUILT_IN.replace("total / seen", "None"): (
        "task task_0: fit must return the mean training loss, one number, not NoneType"
    ),
    BUILT_IN.replace("total / seen", "[total]"): "one number, not list",
    BUILT_IN.replace("for x, y in batches", "for epoch in (0, 1):\n      for x, y in batches"): (
        "for a loop over epochs use `for epoch in batches.epochs()`"
    ),
    BUILT_IN.replace("optimizer.step()", "raise KeyError('gone')"): (
        "task task_0: fit raised KeyError: 'gone'\n  File "
    ),
    BUILT_IN.replace("return total", "model[3] = nn.Linear(144, 8)\n    return total"): (
        "fit replaced the parameter 3.bias: it must train the parameters of the model it was given"
    ),
    BUILT_IN.replace("return total", "model.half()\n    return total"): (
        "fit replaced the parameter 0.bias: it must train"
    ),
    BUILT_IN.replace("optimizer = ", "model = copy.deepcopy(model)\n    optimizer = "): (
        "fit took no step: it must call the step of a torch.optim optimizer that has the parameters"
    ),
    "def fit(model, batches):\n    pass\n": (
        "task task_0: fit raised TypeError: fit() takes 2 positional arguments but 3 were given"
    ),
}  # fmt: skip


@pytest.mark.parametrize("body", BROKEN)
def test_a_loop_that_is_wrong_is_explained(
    task_of: Callable[[str], LoadedTask], shard: Shard, body: str
) -> None:
    with pytest.raises(TaskError) as caught:
        trained(task_of(body), shard)
    assert BROKEN[body] in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (BUILT_IN.replace("total / seen", "float('nan')"), "round 3: the loss of fit is nan; try"),
        (BUILT_IN.replace("return total", "model[0].bias.data[0] = torch.inf\n    return total"),
         "round 3: a trained weight is not a finite number"),
    ],
)  # fmt: skip
def test_a_loop_that_diverges_is_named(
    task_of: Callable[[str], LoadedTask], shard: Shard, body: str, message: str
) -> None:
    with pytest.raises(DivergedError, match=message):
        trained(task_of(body), shard)


class Stop(Exception):
    """Raised by the caller."""


@pytest.mark.parametrize("swallows", [False, True])
def test_a_loop_stops_when_the_caller_asks_even_if_it_catches_everything(
    task_of: Callable[[str], LoadedTask], shard: Shard, swallows: bool
) -> None:
    body = BUILT_IN
    if swallows:
        body = body.replace(
            "optimizer.step()",
            "try:\n            optimizer.step()\n        except Exception:\n            pass",
        )

    def stop(done: int, _total: int) -> None:
        if done >= 3:
            raise Stop

    with pytest.raises(Stop):
        trained(task_of(body), shard, on_step=stop)


def test_what_a_loop_freezes_is_thawed(task_of: Callable[[str], LoadedTask], shard: Shard) -> None:
    frozen = "model[0].requires_grad_(False)\n    total, seen = 0.0, 0"
    task = task_of(BUILT_IN.replace("total, seen = 0.0, 0", frozen))
    model, manifest = started(task, shard)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    mask = Mask.full(manifest.num_masked)
    train_locally(model, manifest, mask, task, shard, SETTINGS, 0, "a")
    assert all(parameter.requires_grad for parameter in model.parameters())
    same = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
    assert same == {"0.weight", "0.bias"}


def test_batches_know_their_number_epoch_rate_and_round(
    task_of: Callable[[str], LoadedTask], shard: Shard
) -> None:
    task = task_of(
        """
        SEEN = []


        def fit(model, batches, settings):
            optimizer = torch.optim.SGD(model.parameters(), lr=batches.rate)
            SEEN.append((len(batches), batches.round_number, batches.rate, settings.local_steps))
            for epoch in batches.epochs():
                sizes = []
                for x, y in epoch:
                    sizes.append((len(x), round(batches.rate, 6)))
                    functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                SEEN.append(sizes)
            return 0
        """
    )
    settings = RunSettings(local_steps=6, local_schedule="cosine", learning_rate=0.2, lr_decay=1.0)
    trained(task, shard, settings)
    half = round(1e-5 + (0.2 - 1e-5) / 2, 6)
    first = [(16, 0.2), (16, 0.2), (16, 0.2), (2, 0.2)]
    second = [(16, half), (16, half)]
    assert task.module.SEEN == [(6, 3, 0.2, 6), first, second]  # noqa: SIM300


def test_a_task_with_its_own_loop_is_not_stacked(
    task_of: Callable[[str], LoadedTask], shard: Shard
) -> None:
    for body, is_stacked in (("", True), (BUILT_IN, False)):
        task = task_of(body)
        model = task.build_model(SETTINGS, shard)
        described = {"input_shape": list(shard.input_shape), "num_classes": 4}
        assert should_stack(model, manifest_of(model, described), task) == is_stacked
