import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.errors import TaskError
from ssfl.learning.explain import describe_tensor, explain
from ssfl.learning.first_batch import try_first_batch
from ssfl.learning.load_task import LoadedTask, load_task

X, LABELS = torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])


def cross_entropy(y: Tensor, outputs: int = 3) -> Tensor:
    return functional.cross_entropy(nn.Linear(4, outputs)(X), y)


@pytest.mark.parametrize(
    ("mistake", "meaning"),
    [
        (lambda: nn.Linear(5, 2)(X), "built for 5 inputs and got 4 for each of 6 rows"),
        (lambda: cross_entropy(LABELS, outputs=2), "label 2 is not below the number of the model"),
        (lambda: cross_entropy(LABELS[:3]), "the model returns 6 rows for 3 targets"),
        (lambda: cross_entropy(LABELS.float()), "int64 class numbers"),
        (lambda: cross_entropy(LABELS.int()), "int64 class numbers"),
        (lambda: cross_entropy(LABELS[:, None]), "int64 class numbers"),
        (lambda: nn.BatchNorm1d(4)(X[:1]), "cannot normalise a batch of one sample"),
        (lambda: nn.Linear(4, 2)(X.to(torch.uint8)), "make x float32 in load_shard"),
        (lambda: nn.Linear(4, 2)(X.double()), "make x float32 in load_shard"),
        (lambda: nn.Conv2d(1, 2, 3)(X.double()[None, None]), "make x float32 in load_shard"),
    ],
)
def test_torchs_errors_are_explained(mistake: Callable[[], object], meaning: str) -> None:
    with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
        mistake()
    assert meaning in explain(caught.value, X, LABELS)


def test_an_unknown_error_is_not_explained() -> None:
    assert explain(KeyError("age"), X, LABELS).count("\n") == 0


def test_a_tensor_is_described_by_type_shape_and_range() -> None:
    assert describe_tensor(torch.tensor([[1.5, -2.0]])) == "float32 1x2 from -2 to 1.5"
    assert describe_tensor(torch.zeros(0, 3)) == "float32 0x3"


def regression(monkeypatch: pytest.MonkeyPatch, loss: Callable[..., Tensor]) -> LoadedTask:
    task = load_task("image")
    monkeypatch.setattr(task.module, "loss", loss)
    monkeypatch.delattr(task.module, "metrics", raising=False)
    return task


def numbers(scale: float = 1.0) -> Shard:
    x = np.full((20, 4), scale, dtype=np.float32)
    return Shard(x, x[:, 0], x[:0], x[:0, 0], num_classes=0)


def test_outputs_and_targets_of_other_shapes_are_not_broadcast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = regression(monkeypatch, lambda model, x, y: functional.mse_loss(model(x), y))
    complaint = re.escape("would broadcast outputs [16, 1] and targets [16]")
    with pytest.raises(TaskError, match=complaint):
        try_first_batch(nn.Linear(4, 1), task, numbers(), 16)
    right = regression(monkeypatch, lambda model, x, y: functional.mse_loss(model(x)[:, 0], y))
    try_first_batch(nn.Linear(4, 1), right, numbers(), 16)


def test_a_loss_that_starts_infinite_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = regression(monkeypatch, lambda model, x, y: functional.mse_loss(model(x)[:, 0], y))
    with pytest.raises(TaskError, match=r"first batch is inf.*are the inputs scaled\?.*1e\+30"):
        try_first_batch(nn.Linear(4, 1), task, numbers(1e30), 16)


def test_trying_a_batch_leaves_the_model_as_it_was(shard: Shard) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try_first_batch(model, load_task("image"), shard, 16)
    assert model.training and all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_that_is_a_sum_is_logged_as_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reduction: str
) -> None:
    task = regression(
        monkeypatch,
        lambda model, x, y: functional.mse_loss(model(x)[:, 0], y, reduction=reduction),
    )
    try_first_batch(nn.Linear(4, 1), task, numbers(), 15)
    logged = [vars(record).get("number") for record in caplog.records]
    assert logged == (["loss"] if reduction == "sum" else [])
