import numpy as np
import pytest
import torch
from torch import nn

from ssfl.learning.describe import manifest_of
from ssfl.learning.resnet import RESNETS, Block, BlockLayers, Bottleneck, resnet
from ssfl.method.initialize import initial_vector

NORMS = ("group", "batch")
PROJECTED = BlockLayers(groups=8, padded=False)
PADDED = BlockLayers(groups=8, padded=True)


def build(name: str, norm: str = "group") -> nn.Sequential:
    design = RESNETS[name]
    return resnet(design, 3, 10, norm, design.width)


@pytest.mark.parametrize("name", RESNETS)
def test_convolutions_have_no_bias_and_every_norm_is_the_one_asked_for(name: str) -> None:
    own_groups = {"resnet18": 32, "resnet50": 32}.get(name, 8)
    for norm, wanted in (("group", {own_groups}), ("batch", {None})):
        with torch.device("meta"):
            modules = list(build(name, norm).modules())
        assert all(m.bias is None for m in modules if isinstance(m, nn.Conv2d))
        norms = [m for m in modules if isinstance(m, nn.GroupNorm | nn.BatchNorm2d)]
        assert len(norms) == sum(isinstance(m, nn.Conv2d) for m in modules)
        assert {getattr(m, "num_groups", None) for m in norms} == wanted


@pytest.mark.parametrize("name", RESNETS)
def test_depth_is_the_number_in_the_name(name: str) -> None:
    with torch.device("meta"):
        named = build(name).named_modules()
    weighted = [n for n, m in named if isinstance(m, nn.Conv2d | nn.Linear)]
    assert f"resnet{sum('shortcut' not in name for name in weighted)}" == name


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]),
        ("resnet50", [(256, 32, 32), (512, 16, 16), (1024, 8, 8), (2048, 4, 4)]),
        ("resnet8", [(16, 32, 32), (32, 16, 16), (64, 8, 8)]),
        ("resnet20", [(16, 32, 32), (32, 16, 16), (64, 8, 8)]),
        ("resnet110", [(16, 32, 32), (32, 16, 16), (64, 8, 8)]),
    ],
)
def test_images_are_halved_from_stage_to_stage(
    name: str, norm: str, expected: list[tuple[int, int, int]]
) -> None:
    shapes = []
    with torch.device("meta"):
        model, x = build(name, norm), torch.zeros(1, 3, 32, 32)
    for child, stage in model.named_children():
        if child.startswith("layer"):
            stage.register_forward_hook(lambda _module, _inputs, out: shapes.append(out.shape[1:]))
    model(x)
    assert shapes == expected


@pytest.mark.parametrize(
    "block",
    [Block(32, 32, 1, PROJECTED), Block(32, 32, 1, PADDED), Bottleneck(128, 32, 1, PROJECTED)],
)
def test_a_block_that_keeps_its_shape_adds_its_input_unchanged(block: nn.Module) -> None:
    _silence_last_norm(block)
    channels = 128 if isinstance(block, Bottleneck) else 32
    x = torch.rand(1, channels, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block(x), x)


def test_a_padded_shortcut_takes_every_second_pixel_and_pads_channels_with_zeros() -> None:
    block = Block(16, 32, 2, PADDED)
    _silence_last_norm(block)
    x = torch.rand(1, 16, 4, 4, generator=torch.Generator().manual_seed(0))
    out = block(x)
    assert out.shape == (1, 32, 2, 2)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


def test_a_projected_shortcut_is_a_normed_convolution_of_every_second_pixel() -> None:
    block = Block(16, 32, 2, PROJECTED)
    _silence_last_norm(block)
    x = torch.rand(1, 16, 4, 4, generator=torch.Generator().manual_seed(0))
    weight = block.get_parameter("shortcut.0.weight")[:, :, 0, 0]
    projected = torch.einsum("oc,bchw->bohw", weight, x[:, :, ::2, ::2])
    wanted = torch.nn.functional.group_norm(projected, 8).relu()
    torch.testing.assert_close(block(x), wanted)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["resnet50", "resnet20"])
def test_initial_weights_follow_from_the_seed(name: str, norm: str) -> None:
    with torch.device("meta"):
        manifest = manifest_of(build(name, norm), {})
    assert all(tensor.init.rule != "sent" for tensor in manifest.tensors)
    vector = initial_vector(manifest, seed=3)
    stem = vector[manifest.slices["conv1.weight"]]
    assert np.isclose(stem.std(), np.sqrt(2 / 27), rtol=0.1)  # N(0, 2 / fan_in), 432 draws or more
    assert np.all(vector[manifest.slices["norm1.weight"]] == 1)


def _silence_last_norm(block: nn.Module) -> None:
    last = "norm3" if isinstance(block, Bottleneck) else "norm2"
    nn.init.zeros_(block.get_submodule(last).weight)  # type: ignore[arg-type]  # a parameter
