"""Scores by the gradients of a task's own training loop."""

import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learning.own_loops import BUILT_IN, LBFGS, TWO, task_with
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import TaskError
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.load_task import LoadedTask
from ssfl.learning.saliency import score_locally
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings

SETTINGS = RunSettings(seed=4)


@pytest.fixture
def task_of(tmp_path: Path) -> Callable[[str], LoadedTask]:
    return partial(task_with, tmp_path)


def started(task: LoadedTask, shard: Shard) -> tuple[torch.nn.Module, Manifest]:
    model = task.build_model(SETTINGS, shard)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_vector(manifest, seed=0))
    return model, manifest


def scores(task: LoadedTask, shard: Shard, num_batches: int = 3, **more: Any) -> Any:
    model, manifest = started(task, shard)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    found = score_locally(
        model, manifest, task, shard, SETTINGS, "a", num_batches=num_batches, **more
    )
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    return found


@pytest.mark.parametrize("num_batches", [1, 3])
@pytest.mark.parametrize("body", [BUILT_IN, TWO], ids=["one", "two"])
def test_scores_of_an_own_loop_are_those_of_its_gradients(
    task_of: Callable[[str], LoadedTask], shard: Shard, body: str, num_batches: int
) -> None:
    plain = scores(task_of(""), shard, num_batches)
    body = body.replace("nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)", "")
    own = scores(task_of("SCORE_WITH_FIT = True\n" + body), shard, num_batches)
    assert plain.any() and own.tobytes() == plain.tobytes()
    other = np.ones_like(plain)
    resting = scores(task_of("SCORE_WITH_FIT = True\n" + body), shard, num_batches, weights=other)
    assert resting.tobytes() == scores(task_of(""), shard, num_batches, weights=other).tobytes()


def test_a_loop_scores_only_if_the_task_asks_for_it(
    task_of: Callable[[str], LoadedTask], shard: Shard
) -> None:
    doubled = BUILT_IN.replace("value.backward()", "(2 * value).backward()").replace(
        "nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)", "")  # fmt: skip
    plain = scores(task_of(""), shard)
    assert scores(task_of(doubled), shard).tobytes() == plain.tobytes()
    np.testing.assert_allclose(
        scores(task_of("SCORE_WITH_FIT = True\n" + doubled), shard), 2 * plain, rtol=1e-5
    )


def test_batch_statistics_and_dropout_of_a_scoring_loop_leave_no_trace(
    task_of: Callable[[str], LoadedTask], shard: Shard
) -> None:
    model = """
        def build_model(settings, shard):
            layers = [nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)]
            return nn.Sequential(nn.Flatten(), *layers)

        SCORE_WITH_FIT = True
        """
    body = BUILT_IN.replace("total, seen = 0.0", "model.train()\n    total, seen = 0.0")
    task = task_of(textwrap.dedent(model) + body)
    assert scores(task, shard).tobytes() == scores(task, shard).tobytes()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def fit(model, batches, settings):\n    return 0.5\n", "fit took no step"),
        (LBFGS, r"optimizer\.step\(closure\) hides the gradients"),
        (BUILT_IN.replace("optimizer.step()", "raise KeyError"), "fit raised KeyError"),
    ],
)
def test_a_loop_that_cannot_score_is_explained(
    task_of: Callable[[str], LoadedTask], shard: Shard, body: str, message: str
) -> None:
    task = task_of("SCORE_WITH_FIT = True\n" + body)
    model, manifest = started(task, shard)
    before = read_vector(model, manifest)
    with pytest.raises(TaskError, match=message):
        score_locally(model, manifest, task, shard, SETTINGS, "a")
    assert read_vector(model, manifest).tobytes() == before.tobytes()


def test_a_task_that_scores_with_its_loop_needs_one(
    task_of: Callable[[str], LoadedTask],
) -> None:
    with pytest.raises(TaskError, match="has SCORE_WITH_FIT = True, but does not define fit"):
        task_of("SCORE_WITH_FIT = True\n")
