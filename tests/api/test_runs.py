import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from ssfl import api
from ssfl.method.errors import ModelFileError
from ssfl.program.model_io.safetensors_model import write_model

NUMBERS = Path(__file__).with_name("number_task.py")
QUICK: dict[str, Any] = {"rounds": 2, "local_steps": 1}


def leave(done: api.Simulated, runs: Path) -> Path:
    """Write the files of coordinator and one client of a run; return its folder."""
    for place in ("coordinator", "shard_00"):
        folder = runs / "run-1" / place
        folder.mkdir(parents=True)
        write_model(folder, done.manifest, done.mask, done.values)
    text = json.dumps(done.history.document, indent=1)
    (runs / "run-1" / "coordinator" / "history.json").write_text(text)
    return runs / "run-1"


@pytest.fixture(scope="session")
def done(shards: list[api.Shard]) -> api.Simulated:
    return api.simulate(shards, model="cnn", width=4, **QUICK)


@pytest.fixture
def run(done: api.Simulated, tmp_path: Path) -> Path:
    return leave(done, tmp_path / "runs")


@pytest.mark.parametrize("place", [".", "coordinator", "coordinator/history.json"])
def test_a_run_is_found_by_its_folder_or_its_history(
    run: Path, done: api.Simulated, place: str
) -> None:
    history = api.read_run(run / place)
    assert history.digest == done.digest
    assert history.settings["width"] == 4
    assert np.array_equal(history.accuracy, done.history.accuracy)
    assert np.array_equal(history.payloads.down, done.history.payloads.down)
    assert history.layers.names == done.history.layers.names
    assert api.read_run(str(run / place)).document == history.document


def test_a_run_on_numbers_is_read_and_its_model_loaded(
    numbers: list[api.Shard], tmp_path: Path
) -> None:
    done = api.simulate(numbers, task=NUMBERS, sparsity=0.5, learning_rate=0.01, **QUICK)
    run = leave(done, tmp_path)
    history = api.read_run(run)
    assert np.isnan(history.accuracy).all() and not np.isnan(history.loss).any()
    model, x = api.load_model(run, task=NUMBERS), torch.ones(2, 3)
    assert torch.equal(model(x), done.model(x))
    with pytest.raises(
        ModelFileError, match=r"belongs to the task number_task: give its file, task path/to"
    ):
        api.load_model(run)


def test_a_folder_without_a_run_is_refused_with_a_hint(run: Path, tmp_path: Path) -> None:
    with pytest.raises(
        api.RunError, match=r"nowhere has no history\.json: the folder does not exist"
    ):
        api.read_run(tmp_path / "nowhere")
    with pytest.raises(api.RunError, match=r"its subfolders with a run are run-1$"):
        api.read_run(run.parent)
    with pytest.raises(api.RunError, match=r"shard_00 has no history\.json; \S*run-1 has one"):
        api.read_run(run / "shard_00")
    (tmp_path / "empty").mkdir()
    with pytest.raises(api.RunError, match="runs/<run>/coordinator after it has ended"):
        api.read_run(tmp_path / "empty")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "rounds": 3}', "\xff", "null",
     '{"format": 1, "rounds": [{}], "evaluations": []}'],
)  # fmt: skip
def test_a_file_that_is_not_a_history_is_refused(run: Path, text: str) -> None:
    file = run / "coordinator" / "history.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(api.RunError, match=r"history\.json is not the history of a run: "):
        api.read_run(run)


def test_a_history_in_a_newer_format_is_refused(run: Path) -> None:
    (run / "coordinator" / "history.json").write_text('{"format": 2}')
    with pytest.raises(api.RunError, match="is in format 2; this program reads 1"):
        api.read_run(run)


@pytest.mark.parametrize("place", [".", "coordinator", "shard_00"])
def test_the_loaded_model_computes_the_same_as_the_simulated_one(
    run: Path, done: api.Simulated, shards: list[api.Shard], place: str
) -> None:
    model = api.load_model(run / place)
    assert not model.training
    x = torch.from_numpy(shards[0].test_x)
    with torch.no_grad():
        assert torch.equal(model(x), done.model(x))


def test_a_missing_model_is_refused(run: Path) -> None:
    with pytest.raises(ModelFileError, match=r"runs has no model\.safetensors: .*run-1"):
        api.load_model(run.parent)
    (run / "shard_00" / "mask.bin").unlink()
    with pytest.raises(ModelFileError, match=r"shard_00 has no mask\.bin"):
        api.load_model(run / "shard_00")


def changed_weights(folder: Path, *, on_mask: bool) -> None:
    """Change one weight of the first layer, and keep the metadata of the file."""
    raw = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    metadata = json.loads(raw[8 : 8 + length])["__metadata__"]
    tensors = load_file(folder / "model.safetensors")
    weights = tensors["conv1.weight"].reshape(-1)
    weights[np.flatnonzero((weights != 0) == on_mask)[0]] = 0.25
    save_file(tensors, folder / "model.safetensors", metadata)


def test_a_changed_kept_weight_is_refused(run: Path) -> None:
    changed_weights(run / "shard_00", on_mask=True)
    with pytest.raises(ModelFileError, match=r"the digest of its values is .* should be"):
        api.load_model(run / "shard_00")


def test_a_changed_pruned_weight_is_refused(run: Path) -> None:
    changed_weights(run / "shard_00", on_mask=False)
    with pytest.raises(ModelFileError, match=r"a pruned weight of conv1\.weight is not zero"):
        api.load_model(run / "shard_00")


@pytest.mark.parametrize("name", ["mask.bin", "manifest.json", "model.safetensors"])
@pytest.mark.parametrize("at", [0, -1])
def test_a_damaged_model_file_is_refused(run: Path, name: str, at: int) -> None:
    file = run / "shard_00" / name
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelFileError, match="shard_00"):
        api.load_model(run / "shard_00")


@pytest.mark.parametrize("name", ["mask.bin", "manifest.json", "model.safetensors"])
def test_a_truncated_model_file_is_refused(run: Path, name: str) -> None:
    file = run / "shard_00" / name
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ModelFileError, match="shard_00"):
        api.load_model(run / "shard_00")


def test_a_task_that_has_changed_is_refused(numbers: list[api.Shard], tmp_path: Path) -> None:
    task = tmp_path / "number_task.py"
    task.write_text(NUMBERS.read_text())
    run = leave(api.simulate(numbers, task=task, sparsity=0.5, **QUICK), tmp_path / "runs")
    task.write_text(NUMBERS.read_text().replace("4)", "5)").replace("(4, 1", "(5, 1"))
    with pytest.raises(ModelFileError, match=r"differs from that of .*0\.weight"):
        api.load_model(run, task=task)
