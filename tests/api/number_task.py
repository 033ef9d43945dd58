"""A task for numbers: one linear layer; no accuracy."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard, read_shard
from ssfl.method.settings import RunSettings


def load_shard(path: Path) -> Shard:
    return read_shard(path)


def build_model(settings: RunSettings, shard: Shard) -> nn.Module:
    del settings
    return nn.Sequential(nn.Linear(shard.input_shape[0], 4), nn.Linear(4, 1), nn.Flatten(0))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(model(x), y)


def metrics(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"mean_error": torch.mean(torch.abs(model(x) - y))}
