"""Evaluation of a model on the test or validation samples of a shard."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from ssfl.datasets.shards.shard_file import Array, Shard
from ssfl.learning.batches import batch_tensors
from ssfl.learning.task import ACCURACY, Task

BATCH_SIZE = 256


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Sums over samples, so that evaluations of several shards can be added."""

    correct: int | None  # None: the task has no accuracy, or there were no samples
    total: int
    loss_sum: float
    metric_sums: Mapping[str, float] = field(default_factory=dict)  # of the other metrics


def evaluate(model: nn.Module, task: Task, shard: Shard) -> Evaluation:
    """Test the model in eval mode, without gradients; an empty test set gives zeros."""
    return _test(model, task, shard.test_x, shard.test_y)


def validate(model: nn.Module, task: Task, shard: Shard) -> Evaluation | None:
    """Test the model on the validation samples; return None if there are none."""
    return _test(model, task, shard.val_x, shard.val_y) if len(shard.val_x) else None


def _test(model: nn.Module, task: Task, samples: Array, targets: Array) -> Evaluation:
    total = len(samples)
    loss_sum, sums = 0.0, dict[str, float]()
    with eval_mode(model), torch.no_grad():
        for start in range(0, total, BATCH_SIZE):
            indices = np.arange(start, min(start + BATCH_SIZE, total), dtype=np.int64)
            x, y = batch_tensors(samples, targets, indices, model)
            loss_sum += task.loss(model, x, y).item() * len(indices)
            for name, mean in task.metrics(model, x, y).items():
                part = float(mean) * len(indices)
                sums[name] = sums.get(name, 0.0) + (round(part) if name == ACCURACY else part)
    correct = sums.pop(ACCURACY, None)
    return Evaluation(None if correct is None else int(correct), total, loss_sum, sums)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode; restore the mode of every module afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
