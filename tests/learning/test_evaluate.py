from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.evaluate import BATCH_SIZE, eval_mode, evaluate
from ssfl.method.evaluation import Evaluation


class Identity(nn.Module):
    """Returns the sample as two logits; has one parameter, so that it has a device."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.modes: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(self.training)
        assert len(x) <= BATCH_SIZE and not torch.is_grad_enabled()
        return x * self.scale


def test_correct_answers_and_losses_are_sums_over_samples() -> None:
    logits = np.array([[0, 3], [0, 3], [3, 0]], dtype=np.float32)
    shard = Shard(logits, np.array([1, 0, 0]), logits, np.array([1, 0, 0]), num_classes=2)
    result = evaluate(Identity(), image_task, shard)
    low, high = np.log1p(np.exp(-3)), np.log1p(np.exp(3))
    assert (result.correct, result.total) == (2, 3)
    assert result.loss_sum == pytest.approx(low + high + low)


def test_many_samples_go_in_batches_and_give_the_sum_of_all() -> None:
    x = np.sin(np.arange(2 * 600, dtype=np.float32)).reshape(600, 2)
    y = (np.arange(600) % 2).astype(np.int64)
    result = evaluate(Identity(), image_task, Shard(x, y, x, y, num_classes=2))
    logits, labels = torch.from_numpy(x), torch.from_numpy(y)
    assert result.total == 600
    assert result.correct == int((logits.argmax(dim=1) == labels).sum())
    expected = float(functional.cross_entropy(logits, labels, reduction="sum"))
    assert result.loss_sum == pytest.approx(expected)


def test_loss_and_metrics_of_a_built_in_task_need_one_pass() -> None:
    x = np.ones((BATCH_SIZE + 1, 2), dtype=np.float32)
    y = np.zeros(len(x), int)
    shard, model = Shard(x, y, x, y, num_classes=2), Identity()
    evaluate(model, image_task, shard)
    assert len(model.modes) == 2, "one pass for each batch"
    own = SimpleNamespace(loss=partial(image_task.loss), metrics=image_task.metrics)
    evaluate(model, own, shard)
    assert len(model.modes) == 2 + 4, "a task's own functions see the model itself"


def test_an_empty_test_set_gives_zeros(shard: Shard) -> None:
    empty = Shard(shard.train_x, shard.train_y, shard.test_x[:0], shard.test_y[:0], 4)
    assert evaluate(Identity(), image_task, empty) == Evaluation(None, 0, 0.0)


def test_the_model_is_tested_in_eval_mode_and_put_back() -> None:
    model = Identity().train()
    x = np.ones((3, 2), dtype=np.float32)
    evaluate(model, image_task, Shard(x, np.zeros(3, int), x, np.zeros(3, int), num_classes=2))
    assert model.modes and not any(model.modes)
    assert model.training


def test_every_part_gets_its_own_mode_back_even_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model[1].eval()
    with pytest.raises(KeyError), eval_mode(model):
        assert not model.training and not model[0].training
        raise KeyError
    assert model.training and model[0].training and not model[1].training
