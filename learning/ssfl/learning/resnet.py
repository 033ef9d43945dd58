"""ResNets for small images: 18 and 50 as the paper trains them, 8 to 110 of He et al. (2016).

The stem is one 3x3 convolution of stride 1 without pooling. Every stage after the first halves
the image and doubles the channels. Norms are GroupNorms, which only have weights to average, or
BatchNorms, whose running statistics are sent as well. docs/models.md lists parameter counts.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class BlockLayers:
    """The norms and shortcuts that the blocks of one network share."""

    groups: int  # of a GroupNorm; 0: BatchNorm instead
    padded: bool  # shortcuts that change the shape pad with zeros; else they are 1x1 convolutions

    def norm(self, channels: int) -> nn.Module:
        """Return a norm; its number of groups is reduced to one that divides the channels.

        A group has at least two channels, so that it has two values even for a 1x1 image.
        """
        if not self.groups:
            return nn.BatchNorm2d(channels)
        return nn.GroupNorm(max(1, math.gcd(2 * self.groups, channels) // 2), channels)

    def shortcut(self, channels_in: int, channels: int, stride: int) -> nn.Module:
        """Return the shortcut around a block; empty if the shape stays the same."""
        if stride == 1 and channels_in == channels:
            return nn.Sequential()
        if self.padded:
            return PaddedShortcut(channels_in, channels, stride)
        return nn.Sequential(_conv(channels_in, channels, 1, stride), self.norm(channels))


class PaddedShortcut(nn.Module):
    """Shortcut without weights: every `stride`-th pixel, padded with zero channels."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self._stride, self._new = stride, channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        before = self._new // 2
        x = x[:, :, :: self._stride, :: self._stride]
        return functional.pad(x, (0, 0, 0, 0, before, self._new - before))


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, channels_in: int, channels: int, stride: int, parts: BlockLayers) -> None:
        super().__init__()
        self.conv1 = _conv(channels_in, channels, 3, stride)
        self.norm1 = parts.norm(channels)
        self.conv2 = _conv(channels, channels, 3)
        self.norm2 = parts.norm(channels)
        self.shortcut = parts.shortcut(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = _relu(self.norm1(self.conv1(x)))
        return _relu(self.norm2(self.conv2(out)).add_(self.shortcut(x)))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1, the last four times as wide, and a shortcut."""

    expansion = 4

    def __init__(self, channels_in: int, channels: int, stride: int, parts: BlockLayers) -> None:
        super().__init__()
        self.conv1 = _conv(channels_in, channels, 1)
        self.norm1 = parts.norm(channels)
        self.conv2 = _conv(channels, channels, 3, stride)
        self.norm2 = parts.norm(channels)
        self.conv3 = _conv(channels, 4 * channels, 1)
        self.norm3 = parts.norm(4 * channels)
        self.shortcut = parts.shortcut(channels_in, 4 * channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = _relu(self.norm1(self.conv1(x)))
        out = _relu(self.norm2(self.conv2(out)))
        return _relu(self.norm3(self.conv3(out)).add_(self.shortcut(x)))


class ChannelMean(nn.Module):
    """The mean of each channel; adaptive pooling has a nondeterministic gradient on GPUs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))  # (B, C)


@dataclass(frozen=True, slots=True)
class ResNetDesign:
    """The parameters of a ResNet."""

    block: type[Block] | type[Bottleneck]
    stages: tuple[int, ...]  # number of blocks of each stage
    width: int  # channels of the first stage; its GroupNorms have two channels per group
    padded: bool


RESNETS = {
    "resnet18": ResNetDesign(Block, (2, 2, 2, 2), width=64, padded=False),
    "resnet50": ResNetDesign(Bottleneck, (3, 4, 6, 3), width=64, padded=False),
    "resnet8": ResNetDesign(Block, (1, 1, 1), width=16, padded=True),
    "resnet20": ResNetDesign(Block, (3, 3, 3), width=16, padded=True),
    "resnet32": ResNetDesign(Block, (5, 5, 5), width=16, padded=True),
    "resnet44": ResNetDesign(Block, (7, 7, 7), width=16, padded=True),
    "resnet56": ResNetDesign(Block, (9, 9, 9), width=16, padded=True),
    "resnet110": ResNetDesign(Block, (18, 18, 18), width=16, padded=True),
}


def resnet(
    design: ResNetDesign, channels: int, num_classes: int, norm: str, width: int
) -> nn.Sequential:
    """Return the network for images of `channels`, with `width` channels in its first stage."""
    parts = BlockLayers(0 if norm == "batch" else design.width // 2, design.padded)
    layers = OrderedDict[str, nn.Module](
        conv1=_conv(channels, width, 3), norm1=parts.norm(width), relu=nn.ReLU(inplace=True)
    )
    before = width
    for number, blocks in enumerate(design.stages):
        stride, inside = min(number + 1, 2), width << number
        after = inside * design.block.expansion
        rest = [design.block(after, inside, 1, parts) for _ in range(blocks - 1)]
        first = design.block(before, inside, stride, parts)  # changes the shape
        layers[f"layer{number + 1}"] = nn.Sequential(first, *rest)
        before = after
    layers["mean"] = ChannelMean()
    layers["linear"] = nn.Linear(before, num_classes)
    return nn.Sequential(layers)


def _conv(channels_in: int, channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, kernel, stride=stride, padding=kernel // 2, bias=False)


def _relu(x: Tensor) -> Tensor:
    """Overwrite the output of a norm, which no gradient needs."""
    return functional.relu(x, inplace=True)
