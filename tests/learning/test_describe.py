import math

import pytest
import torch
from torch import nn

from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import ModelError
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.models import build_model
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Init, Manifest, Role


def rules(manifest: Manifest) -> dict[str, tuple[str, str]]:
    return {t.name: (t.role.value, t.init.rule) for t in manifest.tensors}


def test_weights_are_masked_and_everything_else_is_sent_whole() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(4, 8), nn.Flatten(), nn.Linear(8, 2)
    )
    assert rules(manifest_of(model, {})) == {
        "0.weight": ("masked", "normal"),
        "0.bias": ("dense", "zeros"),
        "1.weight": ("dense", "ones"),
        "1.bias": ("dense", "zeros"),
        "2.weight": ("dense", "ones"),
        "2.bias": ("dense", "zeros"),
        "4.weight": ("masked", "normal"),
        "4.bias": ("dense", "zeros"),
        "1.running_mean": ("buffer", "zeros"),
        "1.running_var": ("buffer", "ones"),
    }


def test_masked_weights_start_kaiming_normal() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Conv1d(2, 5, 7), nn.Linear(6, 2))
    scales = {t.name: t.init for t in manifest_of(model, {}).tensors if t.role is Role.MASKED}
    assert scales == {
        "0.weight": Init("normal", math.sqrt(2 / (2 * 9))),
        "1.weight": Init("normal", math.sqrt(2 / (2 * 7))),
        "2.weight": Init("normal", math.sqrt(2 / 6)),
    }


def test_the_torch_default_rule_is_uniform_within_one_over_the_root_of_fan_in() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2), nn.Conv1d(2, 5, 7), nn.Linear(16, 2), nn.LayerNorm(2)
    )
    manifest = manifest_of(model, {}, initialization="torch-default")
    assert {t.name: t.init for t in manifest.tensors} == {
        "0.weight": Init("uniform", 1 / math.sqrt(2 * 9)),
        "0.bias": Init("uniform", 1 / math.sqrt(2 * 9)),
        "1.weight": Init("uniform", 1 / math.sqrt(2 * 7)),
        "1.bias": Init("uniform", 1 / math.sqrt(2 * 7)),
        "2.weight": Init("uniform", 0.25),
        "2.bias": Init("uniform", 0.25),
        "3.weight": Init("ones"),
        "3.bias": Init("zeros"),
    }
    assert [t.role for t in manifest.tensors] == [t.role for t in manifest_of(model, {}).tensors]


def test_the_rule_of_the_paper_is_normal_for_convolutions_and_torchs_own_for_all_others() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(16, 2)
    )
    manifest = manifest_of(model, {}, initialization="paper")
    assert {t.name: t.init for t in manifest.tensors} == {
        "0.weight": Init("normal", math.sqrt(2 / (2 * 9))),
        "0.bias": Init("uniform", 1 / math.sqrt(2 * 9)),
        "1.weight": Init("ones"),
        "1.bias": Init("zeros"),
        "3.weight": Init("uniform", 0.25),
        "3.bias": Init("uniform", 0.25),
    }
    assert manifest.rebuildable


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(50, 2000), nn.Conv2d(6, 2000, 3, groups=2), nn.ConvTranspose2d(200, 150, 3)],
    ids=["linear", "conv", "transposed"],
)
def test_the_torch_default_rule_equals_torch(layer: nn.Module) -> None:
    """Compare the largest values and deviations of torch's weights and ours."""
    torch.manual_seed(0)
    layer.reset_parameters()  # type: ignore[operator]
    manifest = manifest_of(layer, {}, initialization="torch-default")
    ours = initial_vector(manifest, seed=0)
    theirs = read_vector(layer, manifest)
    for tensor in manifest.tensors:
        place = manifest.slices[tensor.name]
        mine, torchs = abs(ours[place]).max(), abs(theirs[place]).max()
        assert max(mine, torchs) <= tensor.init.scale * 1.000001
        assert min(mine, torchs) > 0.97 * tensor.init.scale
        assert abs(ours[place].std() / theirs[place].std() - 1) < 0.1


def test_a_bias_follows_a_parametrized_weight() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    model = nn.Sequential(layer, nn.Linear(2, 2))
    manifest = manifest_of(model, {}, initialization="torch-default")
    inits = {t.name: t.init for t in manifest.tensors}
    assert inits["0.bias"] == Init("uniform", 0.5)
    assert inits["0.parametrizations.weight.original1"] == Init("sent")


def test_an_unknown_initialization_is_refused() -> None:
    with pytest.raises(ModelError, match="torch-default, paper, got 'xavier'"):
        manifest_of(nn.Linear(2, 2), {}, initialization="xavier")


def test_parameters_of_other_layers_are_dense_and_sent() -> None:
    words = nn.Embedding(5, 4, padding_idx=0)  # its first row is zero
    model = nn.ModuleDict({"words": words, "out": nn.Linear(4, 5)})
    model.register_parameter("temperature", nn.Parameter(torch.tensor(1.0)))
    manifest = manifest_of(model, {})
    assert rules(manifest)["words.weight"] == ("dense", "sent")
    assert rules(manifest)["temperature"] == ("dense", "sent")
    assert not manifest.rebuildable


def test_an_embedding_is_dense_and_follows_from_the_seed() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(500, 40), "out": nn.Linear(40, 5)})
    manifest = manifest_of(model, {})
    assert rules(manifest)["words.weight"] == ("dense", "normal")
    vector = initial_vector(manifest, seed=0)[manifest.slices["words.weight"]]
    assert abs(vector.mean()) < 0.02 and abs(vector.std() - 1) < 0.02


def test_a_shared_parameter_appears_once_under_its_first_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    manifest = manifest_of(model, {})
    assert [t.name for t in manifest.tensors] == ["0.weight", "0.bias", "2.bias"]
    vector = initial_vector(manifest, seed=0)
    write_vector(model, manifest, vector)
    assert read_vector(model, manifest).tobytes() == vector.tobytes()


def test_counters_and_unsaved_buffers_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.register_buffer("table", torch.ones(3), persistent=False)
    model.register_buffer("average", torch.ones(3))
    manifest = manifest_of(model, {})
    buffers = {t.name: t.init.rule for t in manifest.tensors if t.role is Role.BUFFER}
    assert buffers == {"1.running_mean": "zeros", "1.running_var": "ones", "average": "sent"}


def test_a_model_with_its_own_weights_sends_them_all() -> None:
    manifest = manifest_of(build_model("cnn", (1, 8, 8), 10), {}, own_weights=True)
    assert {t.init.rule for t in manifest.tensors} == {"sent"}
    assert manifest.num_masked == 144 + 4608 + 16384 + 1280


@pytest.mark.parametrize(
    ("name", "input_shape"),
    [("mlp", (1, 8, 8)), ("cnn", (1, 8, 8)), ("lenet5", (1, 28, 28)), ("resnet18", (3, 32, 32))],
)
def test_every_built_in_model_is_rebuilt_from_a_seed(
    name: str, input_shape: tuple[int, ...]
) -> None:
    model = build_model(name, input_shape, 10)
    manifest = manifest_of(model, {"name": name, "input_shape": list(input_shape)})
    assert manifest.rebuildable
    assert Manifest.from_json(manifest.json).digest == manifest.digest
    vector = initial_vector(manifest, seed=3)
    write_vector(model, manifest, vector)
    assert read_vector(model, manifest).tobytes() == vector.tobytes()
    with torch.no_grad():
        assert model(torch.ones(2, *input_shape)).isfinite().all()


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (nn.Linear(4, 2).double(), "weight is torch.float64: build the model in float32"),
        (nn.Sequential(nn.LazyLinear(3)), r"0\.weight has no shape yet"),
        (nn.LayerNorm(4), "no conv or linear weight to mask"),
    ],
)
def test_a_model_that_cannot_be_masked_is_refused(model: nn.Module, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        manifest_of(model, {})


def test_frozen_weights_are_dense_and_start_like_others() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    assert rules(manifest_of(model, {}))["0.weight"] == ("dense", "normal")
    assert rules(manifest_of(model, {}))["2.weight"] == ("masked", "normal")
    model.requires_grad_(False)
    with pytest.raises(ModelError, match="or all are frozen"):
        manifest_of(model, {})
