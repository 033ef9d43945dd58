"""The first layer of an image network that scales its pixels (`--normalize`).

It is part of the network, so that whatever uses the network, such as an exported file, scales its
inputs in the same way. Mean and standard deviation are buffers of the network that are neither
trained nor sent: the manifest leaves them out and names them in its description.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from ssfl.learning.errors import ModelError
from ssfl.method.image_settings import NONE, constant_tensors, parse_statistics

LAYER = "normalize"


class Normalize(nn.Module):
    """Subtracts the mean of each channel, and divides by its standard deviation."""

    mean: Tensor  # (channels, 1, 1), or (1, 1, 1) for all channels
    std: Tensor

    def __init__(self, statistics: str) -> None:
        super().__init__()
        for name, array in constant_tensors({LAYER: statistics}).items():
            self.register_buffer(name.removeprefix(f"{LAYER}."), torch.tensor(array))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def normalized(network: nn.Sequential, statistics: str, channels: int) -> nn.Sequential:
    """Return the network with a first layer Normalize; the names of the others do not change."""
    if statistics == NONE:
        return network
    given = len(parse_statistics(statistics)[0])
    if given not in (1, channels):
        raise ModelError(
            f"--normalize {statistics} has numbers for {given} channels, the images have {channels}"
        )
    return nn.Sequential(OrderedDict([(LAYER, Normalize(statistics)), *network.named_children()]))
