"""A task for real but quick training: a CNN of 138,698 parameters on 14x14 grey images.

Two 3x3 convolutions of stride 2 (16 and 32 channels), 256 hidden units: 138,384 maskable weights.
fashion.py makes the shards. It is a task file like any other, so

    ssfl-client --task benchmarks/fashion_task.py --data shard_07

trains the same network as the benchmarks.
"""

from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard, read_shard
from ssfl.method.settings import RunSettings

HIDDEN = 256


def load_shard(path: Path) -> Shard:
    return read_shard(path)


def build_model(_settings: RunSettings, shard: Shard) -> nn.Module:
    channels, height, width = shard.input_shape
    features = 32 * -(-height // 4) * -(-width // 4)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, shard.num_classes),
    )


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def metrics(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"accuracy": (model(x).argmax(dim=1) == y).float().mean()}
