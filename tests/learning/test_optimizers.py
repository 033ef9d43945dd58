"""Every optimizer inside the mask, compared with plain torch."""

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.batches import training_batches
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import ModelError
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.masked_training import train_locally
from ssfl.learning.optimizer_state import Vector
from ssfl.learning.optimizers import optimizer_for
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.optimizers import OPTIONS, REFUSED, WITH_MOMENTUM, WITHOUT_WEIGHT_DECAY
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

CLASSES: dict[str, Any] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name != "Optimizer"
}
OF_THE_RUN = {"lr", "momentum", "weight_decay"}
NOT_OFFERED = {"foreach", "fused", "capturable", "differentiable", "maximize"}  # the same result
NAMES = [name for name in OPTIONS if name in CLASSES]  # an older torch lacks muon


def settings_for(name: str, **changes: Any) -> RunSettings:
    settings = RunSettings(optimizer=name, local_epochs=2, momentum=0.9, learning_rate=0.01, seed=4)
    decay = 0.0 if name in WITHOUT_WEIGHT_DECAY else 0.01
    return replace(settings, **{"weight_decay": decay, **changes})


def started(name: str, shard: Shard) -> tuple[nn.Module, Manifest]:
    """Return a model that starts with every weight set; muon trains matrices only."""
    if name == "muon":
        layers = [nn.Linear(64, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False)]
        model: nn.Module = nn.Sequential(nn.Flatten(), *layers)
    else:
        model = image_task.build_model(RunSettings(model="cnn-small"), shard)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_vector(manifest, seed=0))
    return model, manifest


def random_mask(manifest: Manifest, share: float = 0.2) -> Mask:
    return Mask.from_bools(Stream(0, "mask").uniform(manifest.num_masked) < share)


def test_every_optimizer_of_torch_is_offered_or_refused() -> None:
    unknown = CLASSES.keys() - OPTIONS.keys() - REFUSED.keys()
    assert unknown == set(), "give it a line in ssfl.method.optimizers"
    for name, kind in CLASSES.items():
        closure = inspect.signature(inspect.unwrap(kind.step)).parameters["closure"]
        assert closure.default is None or name in REFUSED


@pytest.mark.parametrize("name", NAMES)
def test_the_options_are_those_of_torch(name: str) -> None:
    known = set(inspect.signature(CLASSES[name]).parameters) - {"params"} - NOT_OFFERED
    assert known - OF_THE_RUN == set(OPTIONS[name])
    assert ("momentum" in known) == (name in WITH_MOMENTUM)
    assert ("weight_decay" in known) == (name not in WITHOUT_WEIGHT_DECAY)


@pytest.mark.parametrize("name", NAMES)
def test_pruned_weights_are_exactly_zero_after_every_step(name: str, shard: Shard) -> None:
    model, manifest = started(name, shard)
    mask = random_mask(manifest)
    pruned, before = ~mask.bools(), read_vector(model, manifest)[: manifest.num_masked]
    seen = []

    def look(done: int, total: int) -> None:
        weights = read_vector(model, manifest)[: manifest.num_masked]
        assert not weights[pruned].any()
        assert (weights[~pruned] != before[~pruned]).any()
        seen.append((done, total))

    train_locally(
        model, manifest, mask, image_task, shard, settings_for(name), 0, "a", on_step=look
    )
    assert seen == [(step, 8) for step in range(1, 9)]


def test_a_step_of_zero_by_zero_leaves_pruned_weights_zero(shard: Shard) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))  # no gradient of a kept weight is zero
    manifest = manifest_of(model, {})
    mask = random_mask(manifest)
    settings = settings_for("adam", optimizer_options="eps=0", weight_decay=0.0, local_steps=3)
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    optimizer_for([weight], settings).step(0.01)
    assert weight.isnan().all(), "so that the test shows something"
    train_locally(model, manifest, mask, image_task, shard, settings, 0, "a")
    assert not read_vector(model, manifest)[: manifest.num_masked][~mask.bools()].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_of_ones_is_plain_torch_bit_for_bit(name: str, shard: Shard) -> None:
    settings = settings_for(name, lr_decay=0.5)
    model, manifest = started(name, shard)
    whole = Mask.full(manifest.num_masked)
    train_locally(model, manifest, whole, image_task, shard, settings, 3, "shard_00")

    plain, _ = started(name, shard)
    given: dict[str, Any] = {"momentum": 0.9} if name in WITH_MOMENTUM else {}
    if name not in WITHOUT_WEIGHT_DECAY:
        given["weight_decay"] = 0.01
    optimizer = CLASSES[name](plain.parameters(), lr=0.01 * 0.5**3, **given)
    for batch in training_batches(50, settings, 3, "shard_00"):
        x, y = torch.from_numpy(shard.train_x[batch]), torch.from_numpy(shard.train_y[batch])
        optimizer.zero_grad()
        functional.cross_entropy(plain(x), y).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(plain.parameters(), 10.0)
        optimizer.step()
    assert read_vector(model, manifest).tobytes() == read_vector(plain, manifest).tobytes()


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("sgd", "dampening=0.5", {"dampening": 0.5}),
        ("sgd", "nesterov=true", {"nesterov": True}),
        ("adamw", "betas=0.5:0.9,eps=1e-4,amsgrad=true", {
            "betas": (0.5, 0.9), "eps": 1e-4, "amsgrad": True,
        }),
        ("adafactor", "eps=none:0.01,d=2", {"eps": (None, 0.01), "d": 2}),
    ],
)  # fmt: skip
def test_options_have_their_effect_in_torch(name: str, text: str, options: dict[str, Any]) -> None:
    settings = settings_for(name, optimizer_options=text)
    ours, theirs = (nn.Parameter(torch.tensor([[1.0, -2.0], [3.0, 0.5]])) for _ in range(2))
    optimizer = optimizer_for([ours], settings)
    given: dict[str, Any] = {"momentum": 0.9} if name in WITH_MOMENTUM else {}
    plain = CLASSES[name]([theirs], lr=0.1, weight_decay=0.01, **given, **options)
    for number in range(4):
        for parameter in (ours, theirs):
            parameter.grad = torch.tensor([[0.5, 1.0], [-1.0, 0.1]]) * (number + 1)
        optimizer.step(0.1)
        plain.step()
    assert torch.equal(ours, theirs)


def test_the_state_begins_fresh_in_every_round(shard: Shard) -> None:
    settings = settings_for("adam", lr_decay=1.0)
    model, manifest = started("adam", shard)
    mask = random_mask(manifest)
    train_locally(model, manifest, mask, image_task, shard, settings, 0, "a")
    middle = read_vector(model, manifest)
    train_locally(model, manifest, mask, image_task, shard, settings, 1, "a")
    other, _ = started("adam", shard)
    write_vector(other, manifest, middle)
    train_locally(other, manifest, mask, image_task, shard, settings, 1, "a")
    assert read_vector(model, manifest).tobytes() == read_vector(other, manifest).tobytes()


def test_learning_with_adam_is_learning(shard: Shard) -> None:
    model, manifest = started("adamw", shard)
    settings = settings_for("adamw", local_epochs=8)
    mask = random_mask(manifest)
    first, second = (
        train_locally(model, manifest, mask, image_task, shard, settings, number, "a")
        for number in range(2)
    )
    assert second < first / 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adam", "betas=2:3", "--optimizer adam: Invalid beta parameter at index 0: 2"),
        ("adam", "betas=0.9", "--optimizer adam: "),
        ("adamw", "eps=tiny", "--optimizer adamw: "),
    ],
)
def test_an_option_that_torch_refuses_is_an_error_of_the_settings(
    name: str, options: str, message: str
) -> None:
    with pytest.raises(ModelError) as caught:
        optimizer_for([nn.Parameter(torch.ones(2))], settings_for(name, optimizer_options=options))
    assert str(caught.value).startswith(message)


@pytest.mark.skipif("muon" not in CLASSES, reason="this torch has no muon")
def test_muon_is_refused_for_a_model_with_other_tensors_than_matrices(shard: Shard) -> None:
    model, _ = started("adam", shard)
    with pytest.raises(ModelError, match="muon trains matrices only, and 6 tensors of the model"):
        optimizer_for(list(model.parameters()), settings_for("muon"))


def test_an_optimizer_that_this_torch_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Adamax")
    with pytest.raises(ModelError, match=r"torch \S+ has no optimizer adamax: install a newer"):
        optimizer_for([nn.Parameter(torch.ones(2))], settings_for("adamax"))


class Notes:
    """A memory of vectors."""

    def __init__(self) -> None:
        self.vectors: dict[str, Vector] = {}

    def vector(self, name: str) -> Vector | None:
        return self.vectors.get(name)

    def put(self, name: str, value: Vector) -> None:
        assert value.dtype == np.float32 and value.ndim == 1
        self.vectors[name] = value


@pytest.mark.parametrize("name", [name for name in NAMES if name != "adafactor"])
def test_a_kept_state_continues_bit_for_bit(name: str, shard: Shard) -> None:
    """Two epochs in one piece equal one epoch, and one more from the kept state."""
    settings = settings_for(name, optimizer_state="keep")
    once, manifest = started(name, shard)
    mask = random_mask(manifest)
    train_locally(once, manifest, mask, image_task, shard, settings, 0, "a", memory=Notes())

    twice, _ = started(name, shard)
    memory = Notes()
    for epoch in range(2):
        train_locally(
            twice, manifest, mask, image_task, shard, settings, 0, "a",
            epochs=range(epoch, epoch + 1), memory=memory,
        )  # fmt: skip
    assert read_vector(once, manifest).tobytes() == read_vector(twice, manifest).tobytes()
    fresh, _ = started(name, shard)
    for epoch in range(2):
        train_locally(
            fresh, manifest, mask, image_task, shard, settings, 0, "a",
            epochs=range(epoch, epoch + 1),
        )  # fmt: skip
    assert read_vector(once, manifest).tobytes() != read_vector(fresh, manifest).tobytes()


def test_only_parameters_with_a_gradient_have_a_state() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(64, 4), nn.Linear(3, 3)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.norm(self.used(x.flatten(1)))
            return out

    model = Model()
    manifest, memory = manifest_of(model, {}), Notes()
    settings = settings_for("adam", optimizer_state="keep")
    x, y = np.zeros((8, 64), dtype=np.float32), np.zeros(8, dtype=np.int64)
    shard = Shard(x, y, x[:0], y[:0], num_classes=4)
    whole = Mask.full(manifest.num_masked)
    for number in range(2):
        train_locally(model, manifest, whole, image_task, shard, settings, number, "a",
                      memory=memory)  # fmt: skip
    names = [name for name, _ in model.named_parameters()]
    held = dict(zip(names, memory.vectors["optimizer.held"].tolist(), strict=True))
    assert held == {name: float("unused" not in name) for name in names}
    steps = dict(zip(names, memory.vectors["optimizer.step"].tolist(), strict=True))
    assert steps == {name: 0.0 if "unused" in name else 4.0 for name in names}
    assert memory.vectors["optimizer.exp_avg"].size == manifest.size


def test_a_state_of_another_model_or_shape_is_refused(shard: Shard) -> None:
    model, manifest = started("adam", shard)
    mask, memory = random_mask(manifest), Notes()
    memory.put("optimizer.held", np.ones(3, dtype=np.float32))
    settings = settings_for("adam", optimizer_state="keep")
    with pytest.raises(ModelError, match="the optimizer's state at this client is of another"):
        train_locally(model, manifest, mask, image_task, shard, settings, 0, "a", memory=memory)
    settings = replace(settings, optimizer="adafactor")
    with pytest.raises(ModelError, match="keep is not available with adafactor: its row_var has"):
        train_locally(model, manifest, mask, image_task, shard, settings, 0, "a", memory=Notes())
