"""The built-in image task: shard files, the networks of `models.py`, cross-entropy.

`task.py` documents the functions.
"""

from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.errors import ShardError
from ssfl.datasets.shards import shard_file
from ssfl.learning import models
from ssfl.method.settings import RunSettings


def load_shard(path: Path) -> shard_file.Shard:
    shard = shard_file.read_shard(path)
    if len(shard.input_shape) == 3 and shard.num_classes:
        return shard
    problem = f"{path}: {shard_file.describe_samples(shard)}, not images with classes"
    if len(shard.input_shape) == 1 and shard.train_x.dtype.kind == "f":
        raise ShardError(f"{problem}: use --task table")
    raise ShardError(f"{problem}: give a task of your own with --task, see docs/tasks.md")


def build_model(settings: RunSettings, shard: shard_file.Shard) -> nn.Module:
    return models.build_model(
        settings.model,
        shard.input_shape,
        shard.num_classes,
        norm=settings.norm,
        width=settings.width,
        normalize=settings.normalize,
    )


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def metrics(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"accuracy": (model(x).argmax(dim=1) == y).float().mean()}
