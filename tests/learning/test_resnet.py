from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from ssfl.learning.describe import manifest_of
from ssfl.learning.resnet import Block, Bottleneck, PaddedBlock, ResNet18, ResNet50, ResNet110
from ssfl.method.initialize import initial_vector

Network = Callable[[int, int], nn.Module]


@pytest.mark.parametrize(
    ("network", "num_classes", "size", "num_masked"),
    [
        (ResNet18, 10, 11_173_962, 11_164_352),
        (ResNet50, 100, 23_705_252, 23_652_032),
        (ResNet110, 10, 1_727_962, 1_719_856),
    ],
)
def test_the_networks_have_the_papers_numbers(
    network: Network, num_classes: int, size: int, num_masked: int
) -> None:
    manifest = manifest_of(network(3, num_classes), {})
    assert manifest.size == size
    assert manifest.num_masked == num_masked
    assert manifest.num_unmasked == size - num_masked


@pytest.mark.parametrize(("network", "groups"), [(ResNet18, 32), (ResNet50, 32), (ResNet110, 8)])
def test_convolutions_have_no_bias_and_every_norm_has_the_same_groups(
    network: Network, groups: int
) -> None:
    modules = list(network(3, 10).modules())
    assert all(m.bias is None for m in modules if isinstance(m, nn.Conv2d))
    assert {m.num_groups for m in modules if isinstance(m, nn.GroupNorm)} == {groups}
    assert not any(isinstance(m, nn.BatchNorm2d) for m in modules)


@pytest.mark.parametrize(
    ("network", "num_convolutions"),
    [
        # The linear layer is one more; the convolutions of shortcuts do not count.
        (ResNet18, 17 + 3),
        (ResNet50, 49 + 4),
        (ResNet110, 109),
    ],
)
def test_depth_is_the_number_in_the_name(network: Network, num_convolutions: int) -> None:
    assert sum(isinstance(m, nn.Conv2d) for m in network(3, 10).modules()) == num_convolutions


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (ResNet18, [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]),
        (ResNet50, [(256, 32, 32), (512, 16, 16), (1024, 8, 8), (2048, 4, 4)]),
        (ResNet110, [(16, 32, 32), (32, 16, 16), (64, 8, 8)]),
    ],
)
def test_images_are_halved_from_stage_to_stage(
    network: Network, expected: list[tuple[int, int, int]]
) -> None:
    model, shapes = network(3, 10), []
    for name, stage in model.named_children():
        if name.startswith("layer"):
            stage.register_forward_hook(lambda _module, _inputs, out: shapes.append(out.shape[1:]))
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))
    assert shapes == expected


@pytest.mark.parametrize(
    "block", [Block(32, 32, stride=1), PaddedBlock(32, 32, stride=1), Bottleneck(128, 32, stride=1)]
)
def test_a_block_that_keeps_its_shape_adds_its_input_unchanged(block: nn.Module) -> None:
    _silence_last_norm(block)
    channels = 128 if isinstance(block, Bottleneck) else 32
    x = torch.rand(1, channels, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block(x), x)


def test_the_shortcut_of_resnet_110_takes_every_second_pixel_and_pads_channels_with_zeros() -> None:
    block = PaddedBlock(16, 32, stride=2)
    _silence_last_norm(block)
    x = torch.rand(1, 16, 4, 4, generator=torch.Generator().manual_seed(0))
    out = block(x)
    assert out.shape == (1, 32, 2, 2)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


@pytest.mark.parametrize("network", [ResNet50, ResNet110])
def test_initial_weights_follow_from_the_seed(network: Network) -> None:
    manifest = manifest_of(network(3, 10), {})
    assert all(tensor.init.rule != "sent" for tensor in manifest.tensors)
    vector = initial_vector(manifest, seed=3)
    stem = vector[manifest.slices["conv1.weight"]]
    assert np.isclose(stem.std(), np.sqrt(2 / 27), rtol=0.1)  # N(0, 2 / fan_in), 432 draws or more
    assert np.all(vector[manifest.slices["norm1.weight"]] == 1)


def _silence_last_norm(block: nn.Module) -> None:
    last = "norm3" if isinstance(block, Bottleneck) else "norm2"
    nn.init.zeros_(block.get_submodule(last).weight)  # type: ignore[arg-type]  # a parameter
