"""Tasks: what a site learns, as one Python file.

A task is a file, or an importable module, with four functions:

    import numpy as np
    from torch import nn
    from torch.nn import functional

    from ssfl.datasets.shards import Shard


    def load_shard(path):
        table = np.loadtxt(path, delimiter=",", dtype=np.float32)  # the label comes first
        x, y = table[:, 1:], table[:, 0].astype(np.int64)
        cut = len(y) * 4 // 5
        return Shard(x[:cut], y[:cut], x[cut:], y[cut:], num_classes=2)


    def build_model(settings, shard):
        return nn.Sequential(nn.Linear(shard.input_shape[0], 32), nn.ReLU(), nn.Linear(32, 2))


    def loss(model, x, y):
        return functional.cross_entropy(model(x), y)


    def count_correct(model, x, y):
        return int((model(x).argmax(dim=1) == y).sum())

Use it with `--task path/to/task.py` or `--task package.module`; `image_task.py` is the default.
The model starts from the run's seed, unless the file says `OWN_WEIGHTS = True`: then it starts
as the first client's `build_model` made it (a pretrained network, say). The file runs at the
site only and is never sent.
"""

from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from ssfl.datasets.shards import Shard
from ssfl.method.settings import RunSettings


class Task(Protocol):
    """What training, scoring and evaluation need; a module with these functions will do."""

    def load_shard(self, path: Path) -> Shard:
        """Return the site's data."""
        ...

    def build_model(self, settings: RunSettings, shard: Shard) -> nn.Module:
        """Return a float32 network; every site must build the same tensors."""
        ...

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch, a scalar with gradients."""
        ...

    def count_correct(self, model: nn.Module, x: Tensor, y: Tensor) -> int:
        """Return how many samples of a batch the model gets right."""
        ...
