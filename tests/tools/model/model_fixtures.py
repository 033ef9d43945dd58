"""Shared by the tests of `ssfl model`: two shards, the model of a run, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest

from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.shard_file import Shard, write_shard
from ssfl.learning.describe import manifest_of
from ssfl.learning.load_task import load_task
from ssfl.learning.models import build_model
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask, top_k
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.program.model_io.safetensors_model import write_model
from ssfl.tools import main as tools

FILES = ("model.safetensors", "manifest.json", "mask.bin")
MODEL, SHARDS = "runs/r1/coordinator", ("shard_00", "shard_01")


def write(folder: Path, manifest: Manifest, vector: np.ndarray) -> Mask:
    """Write the files of a run with nine tenths of the weights pruned; return the mask."""
    mask = top_k(np.abs(vector[: manifest.num_masked]), manifest.num_masked // 10)
    folder.mkdir(parents=True)
    write_model(folder, manifest, mask, mask.gather(vector))
    return mask


def set_up() -> None:
    """Write two shards and the model of a run into the current folder."""
    whole = digits()
    Path("shards").mkdir()
    for index, name in enumerate(SHARDS):
        train, test = slice(40 * index, 40 * index + 40), slice(20 * index, 20 * index + 30)
        shard = Shard(
            whole.train_x[train], whole.train_y[train],
            whole.test_x[test], whole.test_y[test], num_classes=10,
        )  # fmt: skip
        write_shard(Path("shards", f"{name}.npz"), shard)
    settings = RunSettings(model="mlp")
    description = load_task("image").description(settings, shard)
    manifest = manifest_of(build_model("mlp", (1, 8, 8), 10), description)
    write(Path(MODEL), manifest, initial_vector(manifest, seed=5))


def succeeds(*argv: str) -> None:
    assert tools.main(["model", *argv]) == ExitCode.DONE


def fails(capsys: pytest.CaptureFixture[str], code: ExitCode, *argv: str) -> str:
    """Return the one line that the command fails with."""
    capsys.readouterr()
    assert tools.main(["model", *argv]) == code
    output = capsys.readouterr()
    assert output.out == ""
    command = f"ssfl model {argv[0]}" if argv[0] in tools.MODEL_COMMANDS else "ssfl model"
    assert output.err.startswith(f"{command}: error: ")
    assert "Traceback" not in output.err
    return output.err


def evaluated(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    capsys.readouterr()
    succeeds("evaluate", *argv, "--json")
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document
