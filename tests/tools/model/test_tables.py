"""`ssfl model` with the built-in task `table`: classes, one number and several."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from ssfl.datasets.shards.shard_file import Shard, write_shard
from ssfl.learning.describe import manifest_of
from ssfl.learning.flatten import write_vector
from ssfl.learning.load_task import load_task
from ssfl.method.initialize import initial_vector
from ssfl.method.settings import RunSettings
from ssfl.tools.model.folder import read_model
from tools.model.model_fixtures import MODEL, evaluated, succeeds, write

X = np.sin(np.arange(40 * 6, dtype=np.float32)).reshape(40, 6)
TARGETS = {
    "classes": (X[:, 0] > 0).astype(np.int64),
    "number": X[:, 0] * 2,
    "numbers": X[:, :3] * 2,
}


@pytest.fixture(params=TARGETS)
def shard(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shard:
    """A shard of rows, written to the current folder with the model of a run on it."""
    monkeypatch.chdir(tmp_path)
    y = TARGETS[request.param]
    rows = Shard(X[:30], y[:30], X[30:], y[30:], num_classes=2 if y.dtype == np.int64 else 0)
    Path("shards").mkdir()
    write_shard(Path("shards/shard_00.npz"), rows)
    task, settings = load_task("table"), RunSettings(width=5)
    manifest = manifest_of(task.build_model(settings, rows), task.description(settings, rows))
    write(Path(MODEL), manifest, initial_vector(manifest, seed=5))
    return rows


def test_a_table_model_is_evaluated_without_a_task_flag(
    shard: Shard, capsys: pytest.CaptureFixture[str]
) -> None:
    document = evaluated(capsys, MODEL, "--data", "shard_00")
    assert isinstance(document["loss"], float)
    assert (document["pooled"] is None) == (shard.num_classes == 0)
    assert document == evaluated(capsys, MODEL, "--data", "shard_00", "--task", "table")


@pytest.mark.usefixtures("onnx_functions")
def test_a_table_model_is_exported_to_onnx_without_data(shard: Shard) -> None:
    succeeds("export", MODEL, "--format", "onnx", "--out", "model.onnx")
    (y,) = onnxruntime.InferenceSession("model.onnx").run(None, {"x": shard.test_x[:4]})
    final = read_model(Path(MODEL))
    model = load_task("table").build_model(RunSettings(width=5), shard)
    write_vector(model, final.manifest, final.vector)
    expected = model(torch.from_numpy(shard.test_x[:4])).detach().numpy()
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)
