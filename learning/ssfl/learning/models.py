"""The built-in networks, by name.

`width` is the number of channels or units of a network's first layer; 0 is the network's default.
The other layers scale in proportion. Only ResNets have norms: with GroupNorm an update has
weights only, BatchNorm adds its running statistics. docs/models.md lists all sizes.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from ssfl.learning.errors import ModelError
from ssfl.learning.normalize import normalized
from ssfl.learning.resnet import RESNETS, resnet
from ssfl.method.image_settings import NONE, resolve_normalize
from ssfl.method.manifest import MAX_PARAMETERS, format_shape
from ssfl.method.settings import MODELS, NORMS

Shape = tuple[int, ...]


def build_model(
    name: str,
    input_shape: Shape,
    num_classes: int,
    *,
    norm: str = "group",
    width: int = 0,
    normalize: str = NONE,
) -> nn.Module:
    """Return the network for inputs of `input_shape`; raise ModelError if it is impossible.

    `norm`, `width` and `normalize` are the run settings of these names.
    """
    if name not in MODELS:
        raise ModelError(f"the model must be one of {', '.join(MODELS)}, got {name!r}")
    if num_classes < 2 or not input_shape or min(input_shape) < 1:
        shape = format_shape(input_shape, scalar="of no size")
        raise ModelError(f"no model for inputs {shape} and {num_classes} classes")
    if width < 0:
        raise ModelError(f"--width must be 1 or more, or 0 for {name}'s own, got {width}")
    smallest, width = smallest_side(name, norm), width or own_width(name)
    if smallest:
        _check_image(name, norm, input_shape, smallest)

    statistics = resolve_normalize(normalize, input_shape, num_classes)

    def build() -> nn.Module:
        if name in RESNETS:
            network = resnet(RESNETS[name], input_shape[0], num_classes, norm, width)
        else:
            network = _PLAIN[name].build(input_shape, num_classes, width)
        return normalized(network, statistics, input_shape[0])

    with torch.device("meta"):  # shapes only, to check the size before allocation
        size = sum(parameter.numel() for parameter in build().parameters())
    if size > MAX_PARAMETERS:
        raise ModelError(
            f"{name} of width {width} for inputs {format_shape(input_shape)} would have {size:,} "
            f"parameters, the limit is {MAX_PARAMETERS:,}: use a smaller --width"
        )
    return build()


def own_width(name: str) -> int:
    """Return the width that --width 0 means."""
    return RESNETS[name].width if name in RESNETS else _PLAIN[name].width


def smallest_side(name: str, norm: str = "group") -> int:
    """Return the side of the smallest square image that a network accepts; 0: any input.

    The smallest image of a ResNet is one pixel in its last stage. BatchNorm needs two: it must
    have more than one value per channel even for a batch of one sample.
    """
    if norm not in NORMS:
        raise ModelError(f"the norm must be one of {', '.join(NORMS)}, got {norm!r}")
    if name in RESNETS:
        return (1 << len(RESNETS[name].stages) - 1) + (norm == "batch")
    if norm == "batch":
        raise ModelError(f"{name} has no norm layers: --norm batch is for {', '.join(RESNETS)}")
    return _PLAIN[name].smallest


def mlp(input_shape: Shape, num_classes: int, width: int) -> nn.Sequential:
    """Two hidden layers (with 200 units: the 2NN of McMahan et al. 2017), for any input shape."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise([math.prod(input_shape), width, width]):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, num_classes))


def cnn(input_shape: Shape, num_classes: int, width: int) -> nn.Sequential:
    """Two 3x3 convolutions, the second twice as wide, each followed by pooling; 8 x width units.

    The default width of 16 gives 16 and 32 channels and 128 hidden units.
    """
    channels, rows, columns = input_shape
    return _named(
        conv1=nn.Conv2d(channels, width, 3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(width, 2 * width, 3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        linear1=nn.Linear(2 * width * (rows // 4) * (columns // 4), 8 * width),
        relu3=nn.ReLU(),
        linear2=nn.Linear(8 * width, num_classes),
    )


def cnn_small(input_shape: Shape, num_classes: int, width: int) -> nn.Sequential:
    """Two 3x3 convolutions of stride 2, the second twice as wide, and 16 x width units.

    The default width of 8 gives 8 and 16 channels and 128 hidden units. Without pooling, the
    networks of many clients can be trained together quickly.
    """
    channels, rows, columns = input_shape
    pixels = -(-rows // 4) * -(-columns // 4)  # each stride of 2 halves, rounded up
    return _named(
        conv1=nn.Conv2d(channels, width, 3, stride=2, padding=1),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        linear1=nn.Linear(2 * width * pixels, 16 * width),
        relu3=nn.ReLU(),
        linear2=nn.Linear(16 * width, num_classes),
    )


def lenet5(input_shape: Shape, num_classes: int, width: int) -> nn.Sequential:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling; 28x28 is padded to 32x32.

    The layers have 6 and 16 channels, 120 and 84 units; other widths scale them, with rounding.
    """
    channels, rows, _ = input_shape
    second, third, fourth = (round(n * width / 6) for n in (16, 120, 84))
    return _named(
        conv1=nn.Conv2d(channels, width, 5, padding=(32 - rows) // 2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),  # (6, 14, 14)
        conv2=nn.Conv2d(width, second, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),  # (16, 5, 5)
        flatten=nn.Flatten(),
        linear1=nn.Linear(25 * second, third),
        relu3=nn.ReLU(),
        linear2=nn.Linear(third, fourth),
        relu4=nn.ReLU(),
        linear3=nn.Linear(fourth, num_classes),
    )


def _named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


@dataclass(frozen=True, slots=True)
class _Plain:
    """A network without norms."""

    build: Callable[[Shape, int, int], nn.Sequential]
    width: int
    smallest: int


_PLAIN = {
    "mlp": _Plain(mlp, 200, 0),
    "cnn": _Plain(cnn, 16, 4),
    "cnn-small": _Plain(cnn_small, 8, 4),
    "lenet5": _Plain(lenet5, 6, 28),
}


def _check_image(name: str, norm: str, input_shape: Shape, smallest: int) -> None:
    if len(input_shape) != 3:
        raise ModelError(
            f"{name} needs images (channels, height, width), "
            f"the inputs are {format_shape(input_shape)}"
        )
    pixels = format_shape(input_shape[1:])
    if name == "lenet5" and pixels not in ("28x28", "32x32"):
        raise ModelError(
            f"lenet5 needs images of 28x28 or 32x32 pixels, these have {pixels}; "
            "--model cnn takes 4x4 and larger"
        )
    if min(input_shape[1:]) < smallest:
        which = f"{name} with --norm batch" if norm == "batch" else name
        raise ModelError(
            f"{which} needs images of at least {smallest}x{smallest} pixels, these have {pixels}"
        )
