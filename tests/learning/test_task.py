import textwrap
from pathlib import Path

import numpy as np

from ssfl.learning import task as contract
from ssfl.learning.describe import manifest_of
from ssfl.learning.evaluate import evaluate
from ssfl.learning.flatten import write_vector
from ssfl.learning.load_task import load_task
from ssfl.learning.masked_training import train_locally
from ssfl.learning.saliency import score_locally
from ssfl.method.initialize import initial_vector
from ssfl.method.mask import top_k
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream


def example() -> str:
    """Return the task file shown in the contract's docstring."""
    lines = (contract.__doc__ or "").splitlines()
    return textwrap.dedent("\n".join(line for line in lines if not line or line[0] == " "))


def test_the_task_in_the_docstring_scores_trains_and_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "table_task.py").write_text(example())
    x = Stream(0, "table").uniform(200).reshape(100, 2)
    table = np.column_stack([x[:, 0] > x[:, 1], x])
    np.savetxt(tmp_path / "site.csv", table, delimiter=",")

    task = load_task(str(tmp_path / "table_task.py"))
    settings = RunSettings(local_epochs=40)
    shard = task.load_shard(tmp_path / "site.csv")
    model = task.build_model(settings, shard)
    manifest = manifest_of(model, {"name": task.name})
    write_vector(model, manifest, initial_vector(manifest, seed=0))
    mask = top_k(score_locally(model, manifest, task, shard, settings, "site"), 64)
    train_locally(model, manifest, mask, task, shard, settings, 0, "site")
    tested = evaluate(model, task, shard)
    assert tested.correct is not None and tested.correct >= 18  # of 20
