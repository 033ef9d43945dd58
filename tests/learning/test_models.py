import hashlib
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import ModelError
from ssfl.learning.models import build_model, own_width, smallest_side
from ssfl.method.manifest import Manifest, Role
from ssfl.method.settings import MODELS

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
RESNETS = ", ".join(name for name in MODELS if name.startswith("resnet"))
WITH_NORMS = [(name, "group") for name in MODELS] + [
    (name, "batch") for name in RESNETS.split(", ")
]

# Parameters are those of the literature: LeCun et al. for LeNet-5, He et al. (table 6, in millions:
# 0.27, 0.46, 0.66, 0.85, 1.7) for ResNet-20 to 110, the paper's for ResNet-18 and 50. Masked are
# convolution and linear weights; a BatchNorm has two running statistics for each channel.
COUNTS = [
    # model, inputs, classes, parameters, masked, running statistics
    ("mlp", GREY, 10, 199_210, 198_800, 0),
    ("mlp", COLOUR, 10, 656_810, 656_400, 0),
    ("cnn", (1, 8, 8), 10, 22_602, 22_416, 0),
    ("cnn", (1, 14, 14), 10, 43_082, 42_896, 0),
    ("cnn", GREY, 10, 206_922, 206_736, 0),
    ("cnn", COLOUR, 10, 268_650, 268_464, 0),
    ("cnn-small", (1, 14, 14), 10, 35_434, 35_272, 0),
    ("cnn-small", COLOUR, 10, 133_882, 133_720, 0),
    ("lenet5", GREY, 10, 61_706, 61_470, 0),
    ("lenet5", (1, 32, 32), 10, 61_706, 61_470, 0),
    ("lenet5", COLOUR, 10, 62_006, 61_770, 0),
    ("resnet18", COLOUR, 10, 11_173_962, 11_164_352, 9_600),
    ("resnet18", COLOUR, 100, 11_220_132, 11_210_432, 9_600),
    ("resnet50", COLOUR, 10, 23_520_842, 23_467_712, 53_120),
    ("resnet50", COLOUR, 100, 23_705_252, 23_652_032, 53_120),
    ("resnet8", COLOUR, 10, 75_290, 74_800, 480),
    ("resnet20", COLOUR, 10, 269_722, 268_336, 1_376),
    ("resnet32", COLOUR, 10, 464_154, 461_872, 2_272),
    ("resnet44", COLOUR, 10, 658_586, 655_408, 3_168),
    ("resnet56", COLOUR, 10, 853_018, 848_944, 4_064),
    ("resnet110", COLOUR, 10, 1_727_962, 1_719_856, 8_096),
    ("resnet110", (1, 9, 9), 10, 1_727_962 - 2 * 9 * 16, 1_719_856 - 2 * 9 * 16, 8_096),
    ("resnet110", COLOUR, 100, 1_733_812, 1_725_616, 8_096),
]


def describe(name: str, shape: tuple[int, ...], classes: int, norm: str = "group") -> Manifest:
    with torch.device("meta"):
        return manifest_of(build_model(name, shape, classes, norm=norm), {})


def sizes(manifest: Manifest) -> dict[Role, int]:
    return {
        role: sum(tensor.size for tensor in manifest.tensors if tensor.role is role)
        for role in Role
    }


@pytest.mark.parametrize(("name", "shape", "classes", "parameters", "masked", "running"), COUNTS)
def test_a_model_has_the_parameters_of_the_literature_with_any_norm(
    name: str, shape: tuple[int, ...], classes: int, parameters: int, masked: int, running: int
) -> None:
    for norm, buffers in (("group", 0), ("batch", running)):
        if norm == "group" or running:
            manifest = describe(name, shape, classes, norm)
            wanted = {Role.MASKED: masked, Role.DENSE: parameters - masked, Role.BUFFER: buffers}
            assert sizes(manifest) == wanted
            assert manifest.num_unmasked == parameters - masked + buffers


def test_every_model_of_the_settings_is_counted_above() -> None:
    assert {name for name, *_ in COUNTS} == set(MODELS)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "digest"),
    [
        ("mlp", (1, 8, 8), 10, "e3c591657e45c52e"),
        ("cnn", (1, 8, 8), 10, "a613e882af1b1c53"),
        ("lenet5", GREY, 10, "c8f5e28c687e4e05"),
        ("resnet18", COLOUR, 10, "462b836ffb258b1b"),
        ("resnet50", COLOUR, 100, "70494ae7f7a82efd"),
        ("resnet8", COLOUR, 10, "86705dff559264c0"),
        ("resnet110", COLOUR, 10, "fb3f8ec43a5f520b"),
    ],
)
def test_names_shapes_and_order_of_tensors_stay_those_of_stored_models(
    name: str, shape: tuple[int, ...], classes: int, digest: str
) -> None:
    with torch.device("meta"):
        tensors = build_model(name, shape, classes).state_dict()
    listed = json.dumps([[name, list(tensor.shape)] for name, tensor in tensors.items()])
    assert hashlib.sha256(listed.encode()).hexdigest()[:16] == digest, listed


@pytest.mark.parametrize(("name", "norm"), WITH_NORMS)
def test_a_model_learns_from_the_smallest_images_it_takes_even_one_at_a_time(
    name: str, norm: str
) -> None:
    side = smallest_side(name, norm) or 1
    model = build_model(name, (2, side, side), 5, norm=norm, width=3)  # odd: one group each
    x = torch.rand(1, 2, side, side, generator=torch.Generator().manual_seed(0))
    out = model.train()(x)
    assert out.shape == (1, 5)
    out.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(("name", "norm"), [pair for pair in WITH_NORMS if pair[0] != "mlp"])
def test_smaller_images_than_the_smallest_are_refused(name: str, norm: str) -> None:
    side = smallest_side(name, norm)
    with pytest.raises(ModelError, match=f"{name}.* needs images of .*{side}x{side} .*pixels"):
        build_model(name, (1, side, side - 1), 10, norm=norm)


def test_the_mlp_takes_inputs_of_any_shape() -> None:
    assert smallest_side("mlp") == 0
    assert build_model("mlp", (5,), 3)(torch.zeros(4, 5)).shape == (4, 3)


def test_tensor_names_can_be_read() -> None:
    names = [name for name, _ in build_model("cnn", (1, 8, 8), 10).named_parameters()]
    assert names[::2] == ["conv1.weight", "conv2.weight", "linear1.weight", "linear2.weight"]


def test_the_small_cnn_is_two_strided_convolutions_and_two_linear_layers() -> None:
    """14x14 pixels become 7x7, then 4x4; 16 channels of them are 256 inputs."""
    parts = [repr(part) for part in build_model("cnn-small", (1, 14, 14), 10).children()]
    assert parts == [
        "Conv2d(1, 8, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))",
        "ReLU()",
        "Conv2d(8, 16, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))",
        "ReLU()",
        "Flatten(start_dim=1, end_dim=-1)",
        "Linear(in_features=256, out_features=128, bias=True)",
        "ReLU()",
        "Linear(in_features=128, out_features=10, bias=True)",
    ]


# -- widths


def outputs(model: nn.Module) -> list[int]:
    """Return channels or units of each convolution and linear layer, in order."""
    return [
        module.weight.shape[0]
        for module in model.modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]


@pytest.mark.parametrize(
    ("name", "shape", "width", "wanted"),
    [
        ("mlp", GREY, 64, [64, 64, 10]),
        ("cnn", GREY, 8, [8, 16, 64, 10]),
        ("cnn", GREY, 20, [20, 40, 160, 10]),
        ("cnn-small", GREY, 4, [4, 8, 64, 10]),
        ("lenet5", GREY, 12, [12, 32, 240, 168, 10]),
        ("lenet5", GREY, 4, [4, 11, 80, 56, 10]),  # 10.67 channels
        ("lenet5", GREY, 1, [1, 3, 20, 14, 10]),
    ],
)
def test_all_layers_scale_with_the_width_of_the_first(
    name: str, shape: tuple[int, ...], width: int, wanted: list[int]
) -> None:
    assert outputs(build_model(name, shape, 10, width=width)) == wanted


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet20"])
def test_every_channel_of_a_resnet_follows_its_width(name: str, norm: str) -> None:
    own = build_model(name, COLOUR, 10, norm=norm)
    half = build_model(name, COLOUR, 10, norm=norm, width=own_width(name) // 2)
    assert outputs(half)[:-1] == [channels // 2 for channels in outputs(own)[:-1]]


@pytest.mark.parametrize("name", MODELS)
def test_a_width_of_zero_is_the_default(name: str) -> None:
    shape = GREY if name == "lenet5" else COLOUR
    with torch.device("meta"):
        own, given = (build_model(name, shape, 10, width=width) for width in (0, own_width(name)))
    assert outputs(own)[0] == own_width(name)
    assert repr(own) == repr(given)


@given(name=st.sampled_from(MODELS), width=st.integers(1, 130))
@settings(max_examples=40)
def test_any_width_makes_a_model_whose_groups_have_two_channels_or_more(
    name: str, width: int
) -> None:
    shape = GREY if name == "lenet5" else COLOUR
    with torch.device("meta"):
        model = build_model(name, shape, 10, width=width)
        assert model(torch.zeros(1, *shape)).shape == (1, 10)
    assert outputs(model)[0] == width
    for module in model.modules():
        if isinstance(module, nn.GroupNorm) and module.num_channels > 1:
            assert module.num_channels // module.num_groups >= 2


@pytest.mark.parametrize(
    ("name", "shape", "width", "complaint"),
    [
        ("cnn", GREY, -1, "--width must be 1 or more, or 0 for cnn's own, got -1"),
        (
            "resnet50",
            COLOUR,
            4096,
            "resnet50 of width 4096 .* 96,037,605,386 parameters, the limit",
        ),
    ],
)
def test_an_impossible_width_is_refused_before_allocation(
    name: str, shape: tuple[int, ...], width: int, complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint):
        build_model(name, shape, 10, width=width)


# -- impossible models


@pytest.mark.parametrize(
    ("name", "input_shape", "num_classes", "complaint"),
    [
        ("lenet5", (1, 8, 8), 10, "lenet5 needs images of 28x28 or 32x32 pixels, these have 8x8"),
        ("lenet5", (1, 28, 32), 10, "lenet5 needs images of 28x28 or 32x32 pixels"),
        ("cnn", (1, 3, 8), 10, "cnn needs images of at least 4x4 pixels, these have 3x8"),
        ("resnet18", (3, 4, 4), 10, "resnet18 needs images of at least 8x8 pixels"),
        ("resnet50", (3, 8, 7), 10, "resnet50 needs images of at least 8x8 pixels"),
        ("resnet110", (3, 3, 4), 10, "resnet110 needs images of at least 4x4 pixels"),
        ("cnn", (64,), 10, r"cnn needs images \(channels, height, width\), the inputs are 64"),
        ("mlp", (1, 0, 8), 10, "no model for inputs 1x0x8"),
        ("mlp", (), 10, "no model for inputs of no size"),
        ("mlp", (5,), 1, "and 1 classes"),
        ("vgg", (1, 8, 8), 10, f"one of mlp, cnn, cnn-small, lenet5, {RESNETS}, got 'vgg'"),
    ],
)
def test_an_impossible_model_is_refused_with_what_is_needed(
    name: str, input_shape: tuple[int, ...], num_classes: int, complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint):
        build_model(name, input_shape, num_classes)


@pytest.mark.parametrize(
    ("name", "norm", "complaint"),
    [
        ("mlp", "batch", f"mlp has no norm layers: --norm batch is for {RESNETS}"),
        ("cnn", "batch", f"cnn has no norm layers: --norm batch is for {RESNETS}"),
        ("cnn-small", "batch", f"cnn-small has no norm layers: --norm batch is for {RESNETS}"),
        ("lenet5", "batch", f"lenet5 has no norm layers: --norm batch is for {RESNETS}"),
        ("resnet18", "layer", "the norm must be one of group, batch, got 'layer'"),
        ("resnet18", "batch", "resnet18 with --norm batch needs images of at least 9x9 pixels"),
    ],
)
def test_a_norm_that_a_model_cannot_have_is_refused(name: str, norm: str, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        build_model(name, (1, 8, 8), 10, norm=norm)
