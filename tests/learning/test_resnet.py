import torch
from torch import nn

from ssfl.learning.describe import manifest_of
from ssfl.learning.resnet import Block, ResNet18


def test_the_papers_network_has_the_papers_numbers() -> None:
    manifest = manifest_of(ResNet18(3, 10), {})
    assert manifest.size == 11_173_962
    assert manifest.num_masked == 11_164_352
    assert manifest.num_unmasked == 9_610


def test_convolutions_have_no_bias_and_norms_have_thirty_two_groups() -> None:
    modules = list(ResNet18(3, 10).modules())
    assert all(m.bias is None for m in modules if isinstance(m, nn.Conv2d))
    assert {m.num_groups for m in modules if isinstance(m, nn.GroupNorm)} == {32}
    assert not any(isinstance(m, nn.BatchNorm2d) for m in modules)


def test_images_are_halved_three_times() -> None:
    model = ResNet18(3, 10)
    shapes = []
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        stage.register_forward_hook(lambda _module, _inputs, out: shapes.append(out.shape[1:]))
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))
    assert shapes == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def test_a_block_that_keeps_its_shape_adds_its_input_unchanged() -> None:
    block = Block(32, 32, stride=1)
    nn.init.zeros_(block.norm2.weight)
    x = torch.rand(1, 32, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block(x), x)
