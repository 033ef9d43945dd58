"""How good a model is on a shard's test samples."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ssfl.datasets.shards import Shard
from ssfl.learning.batches import take
from ssfl.learning.task import Task

BATCH_SIZE = 256


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Sums, so that evaluations of several shards add up to that of their union."""

    correct: int
    total: int
    loss_sum: float  # of the loss of each sample


def evaluate(model: nn.Module, task: Task, shard: Shard) -> Evaluation:
    """Test the model in eval mode, without gradients; an empty test set gives zeros."""
    total = len(shard.test_x)
    correct, loss_sum = 0, 0.0
    with eval_mode(model), torch.no_grad():
        for start in range(0, total, BATCH_SIZE):
            indices = np.arange(start, min(start + BATCH_SIZE, total), dtype=np.int64)
            x, y = take(shard.test_x, shard.test_y, indices, model)
            correct += task.count_correct(model, x, y)
            loss_sum += task.loss(model, x, y).item() * len(indices)
    return Evaluation(correct, total, loss_sum)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode, and every part of it back into its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
