from pathlib import Path

import pytest
import torch
from torch import nn

from ssfl.datasets.shards.shard_file import Shard, write_shard
from ssfl.learning import image_task
from ssfl.learning.errors import ModelError
from ssfl.learning.task import Task
from ssfl.method.settings import RunSettings


def test_the_module_is_a_task() -> None:
    task: Task = image_task  # checked by mypy
    assert task.loss is image_task.loss


def test_it_reads_shard_files_and_builds_the_model_of_the_settings(
    tmp_path: Path, shard: Shard
) -> None:
    write_shard(tmp_path / "s.npz", shard)
    loaded = image_task.load_shard(tmp_path / "s.npz")
    model = image_task.build_model(RunSettings(model="mlp"), loaded)
    assert model(torch.from_numpy(loaded.test_x)).shape == (20, 4)


def test_a_model_that_does_not_fit_the_images_is_refused(shard: Shard) -> None:
    with pytest.raises(ModelError, match="lenet5 needs images of 28x28"):
        image_task.build_model(RunSettings(model="lenet5"), shard)


def test_the_loss_is_the_mean_cross_entropy_and_the_largest_logit_is_the_answer() -> None:
    logits, y = torch.tensor([[0.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0])
    mean = (torch.tensor(2.0).log() + torch.tensor(5.0).exp().log1p()) / 2
    assert torch.allclose(image_task.loss(nn.Identity(), logits, y), mean)
    assert image_task.metrics(nn.Identity(), logits, y)["accuracy"].item() == 0.5
