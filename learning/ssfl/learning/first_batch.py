"""A trial of a task on one batch of its data, before a site joins a run."""

import logging
import math
import warnings

import numpy as np
import torch
from torch import nn

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import batch_tensors
from ssfl.learning.errors import TaskError
from ssfl.learning.evaluate import eval_mode
from ssfl.learning.explain import describe_tensor
from ssfl.learning.load_task import LoadedTask

log = logging.getLogger("ssfl.client")


def try_first_batch(model: nn.Module, task: LoadedTask, shard: Shard, batch_size: int) -> None:
    """Raise TaskError if loss or metrics fail on the shard's first samples.

    The model is not changed.
    """
    count = min(batch_size, shard.num_samples)
    with eval_mode(model), warnings.catch_warnings():
        # Outputs (N, 1) and targets (N,) would be broadcast, which is never intended.
        warnings.filterwarnings("error", message="Using a target size")
        with torch.enable_grad():
            whole = _measure(model, task, shard, 0, count)
        if count > 1:
            with torch.no_grad():
                parts = ((0, count // 2), (count // 2, count))
                halves = [_measure(model, task, shard, *part) for part in parts]
            _warn_of_sums(task, count, whole, halves)
    if not math.isfinite(whole["loss"]):
        x, y = batch_tensors(shard.train_x, shard.train_y, np.arange(count), model)
        raise TaskError(
            f"task {task.name}: the loss of the first batch is {whole['loss']} before any "
            f"training; are the inputs scaled? x is {describe_tensor(x)}, y {describe_tensor(y)}"
        )


def _measure(
    model: nn.Module, task: LoadedTask, shard: Shard, start: int, stop: int
) -> dict[str, float]:
    """Return loss and metrics of the samples from `start` to `stop`."""
    indices = np.arange(start, stop, dtype=np.int64)
    x, y = batch_tensors(shard.train_x, shard.train_y, indices, model)
    loss = task.loss(model, x, y).item()
    with torch.no_grad():
        return {**task.metrics(model, x, y), "loss": loss}


def _warn_of_sums(
    task: LoadedTask, count: int, whole: dict[str, float], halves: list[dict[str, float]]
) -> None:
    """Log a warning for numbers that are sums over samples instead of means."""
    share = (count // 2) / count
    for name, value in whole.items():
        first, second = (half.get(name, math.nan) for half in halves)
        is_mean = math.isclose(value, share * first + (1 - share) * second, rel_tol=1e-3)
        if value and math.isclose(value, first + second, rel_tol=1e-3) and not is_mean:
            log.warning(
                "a number is a sum over the samples of a batch, but should be their mean",
                extra={"task": task.name, "number": name},
            )
