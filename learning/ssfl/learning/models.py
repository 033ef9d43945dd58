"""The built-in networks, by name. None has batch statistics, so an update is weights only."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

from torch import nn

from ssfl.learning.errors import ModelError
from ssfl.learning.resnet import ResNet18, ResNet50, ResNet110

Shape = tuple[int, ...]


def build_model(name: str, input_shape: Shape, num_classes: int) -> nn.Module:
    """Return the network for inputs of `input_shape`; ModelError says why one is impossible."""
    if name not in _BUILDERS:
        raise ModelError(f"the model must be one of {', '.join(_BUILDERS)}, got {name!r}")
    if num_classes < 2 or not input_shape or min(input_shape) < 1:
        raise ModelError(f"no model for inputs {_times(input_shape)} and {num_classes} classes")
    return _BUILDERS[name](input_shape, num_classes)


def mlp(input_shape: Shape, num_classes: int) -> nn.Module:
    """Two hidden layers of 200 (the 2NN of McMahan et al. 2017), for inputs of any shape."""
    size = 1
    for n in input_shape:
        size *= n
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise([size, 200, 200]):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(200, num_classes))


def cnn(input_shape: Shape, num_classes: int) -> nn.Module:
    """Two 3x3 convolutions of 16 and 32 channels, each halved by pooling, and 128 hidden units."""
    channels, height, width = _image("cnn", input_shape, least=4)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, 16, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            linear1=nn.Linear(32 * (height // 4) * (width // 4), 128),
            relu3=nn.ReLU(),
            linear2=nn.Linear(128, num_classes),
        )
    )


def lenet5(input_shape: Shape, num_classes: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling; 28x28 is padded to 32x32."""
    channels, height, width = _image("lenet5", input_shape, least=1)
    if (height, width) not in ((28, 28), (32, 32)):
        raise ModelError(
            f"lenet5 needs images of 28x28 or 32x32 pixels, these have {height}x{width}; "
            "--model cnn takes 4x4 and larger"
        )
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, 6, 5, padding=(32 - height) // 2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),  # (6, 14, 14)
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),  # (16, 5, 5)
            flatten=nn.Flatten(),
            linear1=nn.Linear(400, 120),
            relu3=nn.ReLU(),
            linear2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            linear3=nn.Linear(84, num_classes),
        )
    )


def resnet18(input_shape: Shape, num_classes: int) -> nn.Module:
    """ResNet-18 for small images, the paper's network: see `resnet.py`."""
    channels, _, _ = _image("resnet18", input_shape, least=8)
    return ResNet18(channels, num_classes)


def resnet50(input_shape: Shape, num_classes: int) -> nn.Module:
    """ResNet-50 for small images, the paper's network for CIFAR-100."""
    channels, _, _ = _image("resnet50", input_shape, least=8)
    return ResNet50(channels, num_classes)


def resnet110(input_shape: Shape, num_classes: int) -> nn.Module:
    """ResNet-110 for small images: deep and narrow, 1.7 million parameters."""
    channels, _, _ = _image("resnet110", input_shape, least=4)
    return ResNet110(channels, num_classes)


_BUILDERS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "lenet5": lenet5,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet110": resnet110,
}


def _image(name: str, input_shape: Shape, least: int) -> tuple[int, int, int]:
    """Return channels, height and width of image inputs of at least `least` pixels a side."""
    if len(input_shape) != 3:
        raise ModelError(
            f"{name} needs images (channels, height, width), the inputs are {_times(input_shape)}"
        )
    channels, height, width = input_shape
    if min(height, width) < least:
        raise ModelError(
            f"{name} needs images of at least {least}x{least} pixels, these have {height}x{width}"
        )
    return channels, height, width


def _times(shape: Shape) -> str:
    return "x".join(str(n) for n in shape) or "of no size"
