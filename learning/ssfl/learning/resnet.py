"""ResNet-18 and ResNet-50 as the paper trains them, and ResNet-110 (He et al. 2016).

They are for small images: the stem is one 3x3 convolution of stride 1 without pooling. Every norm
is a GroupNorm, which has no running statistics to average. For 3x32x32 inputs:

    ResNet18    10 classes   11,173,962 parameters, of which 11,164,352 conv and linear weights
    ResNet50   100 classes   23,705,252                      23,652,032
    ResNet110   10 classes    1,727,962                       1,719,856
"""

from torch import Tensor, nn
from torch.nn import functional

GROUPS = 32
GROUPS_110 = 8  # the first stage of ResNet-110 has 16 channels


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where shapes differ."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels_in, channels, stride)
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.conv2 = _conv3x3(channels, channels, 1)
        self.norm2 = nn.GroupNorm(GROUPS, channels)
        self.shortcut = _projection(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, the last four times as wide, beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv1x1(channels_in, channels, 1)
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.conv2 = _conv3x3(channels, channels, stride)
        self.norm2 = nn.GroupNorm(GROUPS, channels)
        self.conv3 = _conv1x1(channels, 4 * channels, 1)
        self.norm3 = nn.GroupNorm(GROUPS, 4 * channels)
        self.shortcut = _projection(channels_in, 4 * channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        out = functional.relu(self.norm2(self.conv2(out)))
        return functional.relu(self.norm3(self.conv3(out)) + self.shortcut(x))


class PaddedBlock(nn.Module):
    """As `Block`, but the shortcut has no weights: every second pixel, new channels zero."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels_in, channels, stride)
        self.norm1 = nn.GroupNorm(GROUPS_110, channels)
        self.conv2 = _conv3x3(channels, channels, 1)
        self.norm2 = nn.GroupNorm(GROUPS_110, channels)
        self._stride, self._new = stride, channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        if self._stride != 1 or self._new:
            x = x[:, :, :: self._stride, :: self._stride]
            before = self._new // 2
            x = functional.pad(x, (0, 0, 0, 0, before, self._new - before))
        return functional.relu(out + x)


class ResNet18(nn.Module):
    """Four stages of two blocks with 64, 128, 256 and 512 channels."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels, 64, 1)
        self.norm1 = nn.GroupNorm(GROUPS, 64)
        self.layer1 = _stage(Block, 64, 64, 1, blocks=2)
        self.layer2 = _stage(Block, 64, 128, 2, blocks=2)
        self.layer3 = _stage(Block, 128, 256, 2, blocks=2)
        self.layer4 = _stage(Block, 256, 512, 2, blocks=2)
        self.linear = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))  # (B, 64, H, W)
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))  # (B, 512, H/8, W/8)
        return _classify(self.linear, out)


class ResNet50(nn.Module):
    """Four stages of 3, 4, 6 and 3 bottlenecks that end with 256, 512, 1024 and 2048 channels."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels, 64, 1)
        self.norm1 = nn.GroupNorm(GROUPS, 64)
        self.layer1 = _stage(Bottleneck, 64, 64, 1, blocks=3, wider=4)
        self.layer2 = _stage(Bottleneck, 256, 128, 2, blocks=4, wider=4)
        self.layer3 = _stage(Bottleneck, 512, 256, 2, blocks=6, wider=4)
        self.layer4 = _stage(Bottleneck, 1024, 512, 2, blocks=3, wider=4)
        self.linear = nn.Linear(2048, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))  # (B, 64, H, W)
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))  # (B, 2048, H/8, W/8)
        return _classify(self.linear, out)


class ResNet110(nn.Module):
    """Three stages of 18 blocks with 16, 32 and 64 channels (He et al., section 4.2)."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels, 16, 1)
        self.norm1 = nn.GroupNorm(GROUPS_110, 16)
        self.layer1 = _stage(PaddedBlock, 16, 16, 1, blocks=18)
        self.layer2 = _stage(PaddedBlock, 16, 32, 2, blocks=18)
        self.layer3 = _stage(PaddedBlock, 32, 64, 2, blocks=18)
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))  # (B, 16, H, W)
        out = self.layer3(self.layer2(self.layer1(out)))  # (B, 64, H/4, W/4)
        return _classify(self.linear, out)


def _stage(
    block: type[Block] | type[Bottleneck] | type[PaddedBlock],
    channels_in: int,
    channels: int,
    stride: int,
    *,
    blocks: int,
    wider: int = 1,
) -> nn.Sequential:
    """Return a stage; its first block changes the shape, the others keep it."""
    rest = [block(wider * channels, channels, 1) for _ in range(blocks - 1)]
    return nn.Sequential(block(channels_in, channels, stride), *rest)


def _classify(linear: nn.Linear, features: Tensor) -> Tensor:
    # A mean instead of adaptive pooling, whose gradient on a GPU is not deterministic.
    logits: Tensor = linear(features.mean(dim=(2, 3)))  # (B, num_classes)
    return logits


def _projection(channels_in: int, channels: int, stride: int) -> nn.Sequential:
    """Return the shortcut of a block: nothing where the shape stays, else a 1x1 convolution."""
    if stride == 1 and channels_in == channels:
        return nn.Sequential()
    return nn.Sequential(
        _conv1x1(channels_in, channels, stride),
        nn.GroupNorm(GROUPS, channels),
    )


def _conv1x1(channels_in: int, channels: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)


def _conv3x3(channels_in: int, channels: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
