"""ResNet-18 as the paper trains it (He et al. 2016, for small images).

The stem is one 3x3 convolution of stride 1 without pooling, and every norm is a GroupNorm of 32
groups, which has no running statistics to average. For 3x32x32 inputs and 10 classes: 11,173,962
parameters, of which 11,164,352 are conv and linear weights.
"""

from torch import Tensor, nn
from torch.nn import functional

GROUPS = 32


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where shapes differ."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels_in, channels, stride)
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.conv2 = _conv3x3(channels, channels, 1)
        self.norm2 = nn.GroupNorm(GROUPS, channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False),
                nn.GroupNorm(GROUPS, channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Four stages of two blocks with 64, 128, 256 and 512 channels."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels, 64, 1)
        self.norm1 = nn.GroupNorm(GROUPS, 64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.linear = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))  # (B, 64, H, W)
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))  # (B, 512, H/8, W/8)
        # A mean instead of adaptive pooling, whose gradient on a GPU is not deterministic.
        logits: Tensor = self.linear(out.mean(dim=(2, 3)))  # (B, num_classes)
        return logits


def _conv3x3(channels_in: int, channels: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
