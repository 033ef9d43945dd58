from pathlib import Path

import numpy as np
import pytest
from torch import nn

from ssfl.datasets.errors import ShardError
from ssfl.datasets.shards.shard_file import Shard, write_shard
from ssfl.learning import table_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import ModelError
from ssfl.learning.evaluate import evaluate
from ssfl.learning.load_task import load_task
from ssfl.learning.masked_training import train_locally
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

X = Stream(0, "rows").uniform(200 * 3).astype(np.float32).reshape(200, 3)


def train(shard: Shard) -> nn.Module:
    task, settings = load_task("table"), RunSettings(local_epochs=60, width=16)
    model = task.build_model(settings, shard)
    manifest = manifest_of(model, {})
    train_locally(model, manifest, Mask.full(manifest.num_masked), task, shard, settings, 0, "a")
    return model


def test_classes_of_rows_are_learnt(tmp_path: Path) -> None:
    y = (X[:, 0] > X[:, 1]).astype(np.int64)
    write_shard(tmp_path / "a.npz", Shard(X[:150], y[:150], X[150:], y[150:], 2))
    shard = load_task("table").load_shard(tmp_path / "a.npz")
    tested = evaluate(train(shard), table_task, shard)
    assert tested.correct is not None and tested.correct >= 45  # of 50
    assert tested.metric_sums == {}


@pytest.mark.parametrize("columns", [(), (1,), (2,)])
def test_numbers_are_learnt_one_or_several_at_once(columns: tuple[int, ...]) -> None:
    y = (X @ np.array([2, -1, 0.5], np.float32))[:, None].repeat(2, axis=1)
    y = y[:, 0] if not columns else y[:, : columns[0]]
    shard = Shard(X[:150], y[:150], X[150:], y[150:], 0)
    tested = evaluate(train(shard), table_task, shard)
    assert tested.correct is None
    assert tested.metric_sums["absolute_error"] / tested.total < 0.1


def test_samples_that_are_not_rows_are_refused(tmp_path: Path, shard: Shard) -> None:
    write_shard(tmp_path / "images.npz", shard)
    with pytest.raises(ShardError, match=r"its samples are 1x8x8 of float32.*not rows of a table"):
        table_task.load_shard(tmp_path / "images.npz")
    words = np.ones((4, 5), np.int64)
    write_shard(tmp_path / "words.npz", Shard(words, words[:, 0], words, words[:, 0], 2))
    with pytest.raises(ShardError, match="its samples are 5 of int64, its targets 2 classes"):
        table_task.load_shard(tmp_path / "words.npz")


def test_another_network_than_mlp_is_refused(shard: Shard) -> None:
    with pytest.raises(ModelError, match="only the network mlp; this run has --model resnet18"):
        table_task.build_model(RunSettings(model="resnet18"), shard)


def test_the_image_task_sends_tables_to_the_table_task(tmp_path: Path) -> None:
    task = load_task("image")
    y = np.zeros(200, np.int64)
    write_shard(tmp_path / "a.npz", Shard(X, y, X, y, 2))
    with pytest.raises(ShardError, match="not images with classes: use --task table"):
        task.load_shard(tmp_path / "a.npz")
    images = X[:, :, None, None]
    write_shard(tmp_path / "b.npz", Shard(images, X[:, 0], images, X[:, 0], 0))
    with pytest.raises(ShardError, match=r"numbers to predict.*a task of your own"):
        task.load_shard(tmp_path / "b.npz")
