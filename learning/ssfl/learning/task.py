"""Tasks: what a site learns, as one Python file.

A task is a file, or an importable module, with these functions (`metrics` is optional, and so is
`fit(model, batches, settings)`, a training loop of its own: docs/tasks.md):

    import numpy as np
    from torch import nn
    from torch.nn import functional

    from ssfl.datasets.shards.shard_file import Shard


    def load_shard(path):
        table = np.loadtxt(path, delimiter=",", dtype=np.float32)  # the label comes first
        x, y = table[:, 1:], table[:, 0].astype(np.int64)
        cut = len(y) * 4 // 5
        return Shard(x[:cut], y[:cut], x[cut:], y[cut:], num_classes=2)


    def build_model(settings, shard):
        return nn.Sequential(nn.Linear(shard.input_shape[0], 32), nn.ReLU(), nn.Linear(32, 2))


    def loss(model, x, y):
        return functional.cross_entropy(model(x), y)


    def metrics(model, x, y):
        return {"accuracy": (model(x).argmax(dim=1) == y).float().mean()}

Use it with `--task path/to/task.py` or `--task package.module`; `image_task.py` is the default.
Initial weights are generated from the run's seed. With `OWN_WEIGHTS = True` in the file, all sites
start from the weights that `build_model` returns at the first client. The file runs only at the
site and is never sent.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from ssfl.datasets.shards.shard_file import Shard
from ssfl.method.settings import RunSettings

ACCURACY = "accuracy"  # counted in whole samples and shown as a percentage
MAX_METRICS = 16


class HasLoss(Protocol):
    """The function that training calls."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch, a scalar with gradients."""
        ...


class Task(HasLoss, Protocol):
    """The functions that training, scoring and evaluation call; a module can provide them."""

    def load_shard(self, path: Path) -> Shard:
        """Return the site's data from the file or folder of `--data`."""
        ...

    def build_model(self, settings: RunSettings, shard: Shard) -> nn.Module:
        """Return a float32 network; every site must build the same tensors."""
        ...

    def metrics(self, model: nn.Module, x: Tensor, y: Tensor) -> Mapping[str, float | Tensor]:
        """Return metrics by name, each a mean over the samples of the batch.

        They are averaged over the test samples of all sites. For a metric that is the root of a
        mean, such as RMSE, return the mean. `accuracy`, from 0 to 1, is shown as a percentage.
        """
        ...


def task_name(task: Any) -> str:
    """Return the name of a task, or of the module that provides its functions."""
    return str(getattr(task, "name", getattr(task, "__name__", "")))
