"""Evaluation of a model on the test or validation samples of a shard."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from ssfl.datasets.shards.shard_file import Array, Shard
from ssfl.learning.batches import batch_tensors
from ssfl.learning.built_in import has_built_in_loss
from ssfl.learning.task import ACCURACY, Task
from ssfl.method.evaluation import Evaluation

BATCH_SIZE = 256


def evaluate(model: nn.Module, task: Task, shard: Shard, split: str = "test") -> Evaluation:
    """Test the model in eval mode, without gradients; an empty split gives zeros."""
    samples = {
        "train": (shard.train_x, shard.train_y),
        "validation": (shard.val_x, shard.val_y),
        "test": (shard.test_x, shard.test_y),
    }
    return _test(model, task, *samples[split])


def validate(model: nn.Module, task: Task, shard: Shard) -> Evaluation | None:
    """Test the model on the validation samples; return None if there are none."""
    return evaluate(model, task, shard, "validation") if len(shard.val_x) else None


def _test(model: nn.Module, task: Task, samples: Array, targets: Array) -> Evaluation:
    total = len(samples)
    loss_sum, sums = 0.0, dict[str, float]()
    with eval_mode(model), torch.no_grad():
        tested = _Once(model) if has_built_in_loss(task) else model
        for start in range(0, total, BATCH_SIZE):
            indices = np.arange(start, min(start + BATCH_SIZE, total), dtype=np.int64)
            x, y = batch_tensors(samples, targets, indices, model)
            loss_sum += task.loss(tested, x, y).item() * len(indices)
            for name, mean in task.metrics(tested, x, y).items():
                part = float(mean) * len(indices)
                sums[name] = sums.get(name, 0.0) + (round(part) if name == ACCURACY else part)
    correct = sums.pop(ACCURACY, None)
    return Evaluation(None if correct is None else int(correct), total, loss_sum, sums)


class _Once(nn.Module):
    """A model that computes the outputs of a batch once, although loss and metrics ask for them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self._last: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._last is None or self._last[0] is not x:
            self._last = x, self._model(x)
        return self._last[1]


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
