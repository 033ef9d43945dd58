"""Does a task fit its data? Tried on one batch, before a site takes part."""

import math
import warnings

import numpy as np
import torch
from torch import nn

from ssfl.datasets.shards import Shard
from ssfl.learning.batches import take
from ssfl.learning.errors import TaskError
from ssfl.learning.evaluate import eval_mode
from ssfl.learning.explain import describe
from ssfl.learning.load_task import LoadedTask


def try_first_batch(model: nn.Module, task: LoadedTask, shard: Shard, batch_size: int) -> None:
    """Raise TaskError if loss or metrics fail on the shard's first samples; the model stays."""
    indices = np.arange(min(batch_size, shard.num_samples), dtype=np.int64)
    x, y = take(shard.train_x, shard.train_y, indices, model)
    with eval_mode(model), warnings.catch_warnings():
        # Outputs (N, 1) and targets (N,) are compared each with each: never what was meant.
        warnings.filterwarnings("error", message="Using a target size")
        with torch.enable_grad():
            value = task.loss(model, x, y).item()
        with torch.no_grad():
            task.metrics(model, x, y)
    if not math.isfinite(value):
        raise TaskError(
            f"task {task.name}: the loss of the first batch is {value} before any training; "
            f"are the inputs scaled? x is {describe(x)}, y {describe(y)}"
        )
