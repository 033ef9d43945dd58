"""The models that can be stacked, and those that cannot."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ssfl.learning import image_task, table_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.load_task import load_task
from ssfl.learning.models import build_model
from ssfl.learning.stacked import trial
from ssfl.learning.stacked.trial import MAX_SIZE
from ssfl.learning.task import Task
from ssfl.method.settings import RunSettings

SHAPE = (1, 8, 8)
DESCRIBED = {"input_shape": list(SHAPE), "num_classes": 4}


def should_stack(model: nn.Module, task: Task | ModuleType = image_task) -> bool:
    return trial.should_stack(model, manifest_of(model, DESCRIBED), task)


@pytest.mark.parametrize(
    ("name", "width"), [("mlp", 0), ("cnn", 0), ("cnn-small", 0), ("resnet18", 4)]
)
def test_small_built_in_networks_are_stacked(name: str, width: int) -> None:
    assert should_stack(build_model(name, SHAPE, 4, width=width))


@pytest.mark.parametrize("statistics", ["0.4/0.2", "0.4:0.5:0.6/0.2:0.3:0.4"])
def test_networks_that_scale_pixels_are_stacked(statistics: str) -> None:
    shape = (3, 8, 8)
    model = build_model("cnn-small", shape, 4, normalize=statistics)
    manifest = manifest_of(model, DESCRIBED | {"input_shape": list(shape)})
    assert trial.should_stack(model, manifest, load_task("image"))


def test_user_networks_are_stacked_if_the_loss_is_built_in(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 6, 3, groups=1, bias=False), nn.Tanh(), nn.AvgPool2d(2))
    model.extend([nn.Flatten(), nn.Linear(54, 4, bias=False)])
    own = "from torch import nn\nfrom ssfl.learning.image_task import load_shard, {}\n"
    rest = "def build_model(settings, shard):\n    return nn.Linear(1, 1)\n"
    imported, half = tmp_path / "imported.py", tmp_path / "half.py"
    imported.write_text(own.format("loss, metrics") + rest)
    half.write_text(own.format("loss") + rest)
    assert should_stack(model, load_task(str(imported)))
    assert not should_stack(model, load_task(str(half)))  # it has no accuracy, stacked clients have
    assert should_stack(model, load_task("image"))


def test_classes_are_stacked_and_numbers_are_not() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    assert should_stack(model, table_task)
    numbers = manifest_of(model, DESCRIBED | {"num_classes": 0})
    assert not trial.should_stack(model, numbers, load_task("table"))
    assert not trial.should_stack(model, manifest_of(model, {}), load_task("image"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"optimizer": "SGD", "momentum": 0.0, "lr_schedule": "cosine"}, True),
        ({"optimizer": "adam"}, False),
        ({"optimizer_options": "nesterov=true"}, False),
        ({"optimizer_state": "keep"}, False),
    ],
)
def test_only_plain_sgd_is_stacked(changes: dict[str, Any], expected: bool) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    settings = RunSettings(**changes)
    manifest = manifest_of(model, DESCRIBED)
    assert trial.should_stack(model, manifest, load_task("image"), settings) == expected


class OwnWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(64, 4), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x.flatten(1)) * self.scale
        return out


class Mixing(nn.Module):
    """Mixes channels without weights."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.softmax(x, dim=1)


class Dropping(nn.Module):
    """Dropout without a dropout layer."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5, self.training)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(64, 4), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x.flatten(1))
        return out


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 4))
    model[1].requires_grad_(False)
    return model


def shared() -> nn.Module:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, second, nn.Linear(64, 4))


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *layers, nn.Linear(8, 4))


@pytest.mark.parametrize(
    "model",
    [
        build_model("resnet20", SHAPE, 4),  # its shortcuts add channels
        flat(nn.BatchNorm1d(8)),
        flat(nn.LayerNorm(8)),
        flat(nn.Dropout(0.5)),
        flat(Dropping()),
        flat(Mixing()),
        OwnWeights(),
        Unused(),
        frozen(),
        shared(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_models_that_cannot_be_stacked_are_not(model: nn.Module) -> None:
    assert not should_stack(model)


def test_the_same_models_without_the_obstacle_are_stacked() -> None:
    assert should_stack(flat())
    assert should_stack(flat(nn.Dropout(0.0), nn.ReLU()))


def test_large_models_are_not_worth_it() -> None:
    def wide(width: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 4))

    limit = (MAX_SIZE - 4) // (64 + 1 + 4)
    assert should_stack(wide(limit))
    assert not should_stack(wide(limit + 1))


def test_padding_of_another_mode_is_detected() -> None:
    rest = [nn.Flatten(), nn.Linear(256, 4)]
    assert should_stack(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *rest))
    circular = nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular")
    assert not should_stack(nn.Sequential(circular, *rest))


def test_a_trial_leaves_model_and_generator_alone() -> None:
    model = flat(Dropping())
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    assert not should_stack(model)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert model.training


def test_stacking_does_not_wait_for_torchs_compiler() -> None:
    code = """
import sys
import numpy as np
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.describe import manifest_of
from ssfl.learning.load_task import load_task
from ssfl.learning.models import build_model
from ssfl.learning.stacked.clients import StackedClients
from ssfl.learning.stacked.trial import should_stack
from ssfl.method.initialize import initial_vector
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings

model = build_model("cnn-small", (1, 8, 8), 4)
manifest = manifest_of(model, {"input_shape": [1, 8, 8], "num_classes": 4})
x, y = np.zeros((4, 1, 8, 8), np.float32), np.arange(4)
assert should_stack(model, manifest, load_task("image"))
mask = Mask.full(manifest.num_masked)
StackedClients(model, manifest, RunSettings()).train(
    [("a", Shard(x, y, x, y, 4))], [mask], [initial_vector(manifest, 0)], 0
)
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
