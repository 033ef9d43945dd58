"""The built-in table task: shard files of rows, and a network with two hidden layers.

The loss is cross-entropy for classes and squared error for numbers, in the unit of the targets
(`ssfl shards` standardises them).
"""

from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.errors import ShardError
from ssfl.datasets.shards import shard_file
from ssfl.learning import models
from ssfl.learning.errors import ModelError
from ssfl.method.settings import RunSettings

NETWORKS = ("mlp", RunSettings().model)  # the default of --model means: not set


def load_shard(path: Path) -> shard_file.Shard:
    shard = shard_file.read_shard(path)
    if len(shard.input_shape) != 1 or shard.train_x.dtype.kind != "f":
        raise ShardError(f"{path}: {shard_file.describe_samples(shard)}, not rows of a table")
    return shard


def build_model(settings: RunSettings, shard: shard_file.Shard) -> nn.Module:
    if settings.model not in NETWORKS:
        raise ModelError(
            f"--task table has only the network mlp; this run has --model {settings.model}"
        )
    width = settings.width or models.own_width("mlp")
    outputs = shard.num_classes or shard.train_y[0].size
    return models.mlp(shard.input_shape, outputs, width)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    if y.is_floating_point():
        return functional.mse_loss(out.reshape(y.shape), y)
    return functional.cross_entropy(out, y)


def metrics(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    out = model(x)
    if y.is_floating_point():
        return {"absolute_error": (out.reshape(y.shape) - y).abs().mean()}
    return {"accuracy": (out.argmax(dim=1) == y).float().mean()}
