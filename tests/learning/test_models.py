import pytest
import torch
from torch import nn

from ssfl.learning.errors import ModelError
from ssfl.learning.models import build_model


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "input_shape", "parameters"),
    [
        ("mlp", (1, 8, 8), 64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        ("cnn", (1, 8, 8), 160 + 4640 + 128 * 128 + 128 + 1290),
        ("cnn", (1, 14, 14), 160 + 4640 + 288 * 128 + 128 + 1290),
        ("cnn", (1, 28, 28), 160 + 4640 + 1568 * 128 + 128 + 1290),
        ("cnn", (3, 32, 32), 448 + 4640 + 2048 * 128 + 128 + 1290),
        ("lenet5", (1, 28, 28), 61_706),
        ("lenet5", (1, 32, 32), 61_706),
        ("resnet18", (3, 32, 32), 11_173_962),
        ("resnet50", (3, 32, 32), 23_705_252 - 90 * 2049),  # of 100 classes, less 90
        ("resnet110", (3, 32, 32), 1_727_962),
        ("resnet110", (1, 4, 4), 1_727_962 - 2 * 9 * 16),
    ],
)
def test_a_model_has_the_parameters_it_should_and_takes_its_inputs(
    name: str, input_shape: tuple[int, ...], parameters: int
) -> None:
    model = build_model(name, input_shape, num_classes=10)
    assert count(model) == parameters
    with torch.no_grad():
        assert model(torch.zeros(2, *input_shape)).shape == (2, 10)


def test_the_mlp_takes_inputs_of_any_shape() -> None:
    assert build_model("mlp", (5,), 3)(torch.zeros(4, 5)).shape == (4, 3)


def test_tensor_names_can_be_read() -> None:
    names = [name for name, _ in build_model("cnn", (1, 8, 8), 10).named_parameters()]
    assert names[::2] == ["conv1.weight", "conv2.weight", "linear1.weight", "linear2.weight"]


@pytest.mark.parametrize(
    ("name", "input_shape", "num_classes", "complaint"),
    [
        ("lenet5", (1, 8, 8), 10, "lenet5 needs images of 28x28 or 32x32 pixels, these have 8x8"),
        ("cnn", (1, 3, 8), 10, "cnn needs images of at least 4x4 pixels, these have 3x8"),
        ("resnet18", (3, 4, 4), 10, "resnet18 needs images of at least 8x8 pixels"),
        ("resnet50", (3, 8, 7), 10, "resnet50 needs images of at least 8x8 pixels"),
        ("resnet110", (3, 3, 4), 10, "resnet110 needs images of at least 4x4 pixels"),
        ("cnn", (64,), 10, r"cnn needs images \(channels, height, width\), the inputs are 64"),
        ("mlp", (1, 0, 8), 10, "no model for inputs 1x0x8"),
        ("mlp", (), 10, "no model for inputs of no size"),
        ("mlp", (5,), 1, "and 1 classes"),
        ("vgg", (1, 8, 8), 10, "one of mlp, cnn, lenet5, resnet18, resnet50, resnet110, got 'vgg'"),
    ],
)
def test_an_impossible_model_is_refused_and_told_what_is_needed(
    name: str, input_shape: tuple[int, ...], num_classes: int, complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint):
        build_model(name, input_shape, num_classes)
