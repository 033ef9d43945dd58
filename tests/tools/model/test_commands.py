"""`ssfl model evaluate` and `ssfl model export` on models that were written to disk here."""

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors

from ssfl.datasets.shards.shard_file import Shard, read_shard, write_shard
from ssfl.learning.describe import manifest_of
from ssfl.learning.device import prepare_torch
from ssfl.learning.evaluate import evaluate
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.load_task import load_task
from ssfl.learning.models import build_model
from ssfl.method.initialize import initial_vector
from ssfl.method.model_state import values_digest
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.tools import main as tools
from tools.model.model_fixtures import (
    FILES,
    MODEL,
    SHARDS,
    evaluated,
    fails,
    set_up,
    succeeds,
    write,
)

WORDS = """
import numpy as np
from torch import nn
from torch.nn import functional
from ssfl.datasets.shards.shard_file import read_shard as load_shard

class Network(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.hidden = nn.Linear(8, width or 5)
        self.classes = nn.Linear(width or 5, classes)

    def forward(self, x):
        return self.classes(functional.relu(self.hidden(self.words(x).mean(dim=1))))

def build_model(settings, shard):
    return Network(settings.width, shard.num_classes)

def loss(model, x, y):
    return functional.cross_entropy(model(x), y)

def metrics(model, x, y):
    return {"sure": functional.softmax(model(x), dim=1).amax(dim=1).mean()}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with two shards and the model of a run."""
    monkeypatch.chdir(tmp_path)
    set_up()


def plain_network(model: str = MODEL) -> torch.nn.Module:
    network = build_model("mlp", (1, 8, 8), 10)
    network.load_state_dict(load_tensors(f"{model}/model.safetensors"))
    return network.eval()


# ---- the command itself


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert tools.main(["model"]) == ExitCode.USAGE
    listed = capsys.readouterr().out
    assert "evaluate" in listed and "export" in listed


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the commands are: evaluate, export" in fails(capsys, ExitCode.USAGE, "train")


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tools.main(["model", command, "--help"])
    assert ended.value.code == 0
    assert f"ssfl model {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "missing"),
    [(["evaluate"], "MODEL"), (["evaluate", "x"], "--data"), (["export", "x"], "--format")],
)
def test_a_missing_flag_is_named(
    argv: list[str], missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{missing} is required" in fails(capsys, ExitCode.USAGE, *argv)


# ---- evaluate


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("model", [MODEL, f"{MODEL}/model.safetensors"])
def test_evaluate_equals_the_evaluation_of_a_client(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_torch(1)
    shard = read_shard(Path("shards/shard_01.npz"))
    expected = asdict(evaluate(plain_network(), load_task("image"), shard))
    document = evaluated(capsys, model, "--data", "shard_01")
    assert document["shards"] == [{"shard": "shard_01", "evaluation": expected}]
    assert document["pooled"] == document["mean"] == expected["correct"] / 30
    assert document["loss"] == expected["loss_sum"] / 30


@pytest.mark.usefixtures("here")
def test_several_shards_have_a_row_each_and_rows_for_pooled_and_mean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = evaluated(capsys, MODEL, "--data", "all")
    assert document == evaluated(capsys, MODEL, "--data", "shard_00, shards/shard_01.npz")
    rows = document["shards"]
    assert isinstance(rows, list)
    assert [row["shard"] for row in rows] == list(SHARDS)
    assert document["pooled"] == sum(row["evaluation"]["correct"] for row in rows) / 60
    succeeds("evaluate", MODEL, "--data", "all")
    shown = capsys.readouterr().out
    for word in (*SHARDS, "pooled", "mean", "accuracy", "loss", "test samples", "60"):
        assert word in shown
    succeeds("evaluate", MODEL, "--data", "shard_00")
    assert "pooled" not in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_split_chooses_the_samples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shard = read_shard(Path("shards/shard_00.npz"))
    swapped = replace(shard, test_x=shard.train_x, test_y=shard.train_y)
    expected = asdict(evaluate(plain_network(), load_task("image"), swapped))
    document = evaluated(capsys, MODEL, "--data", "shard_00", "--split", "train")
    assert document["shards"] == [{"shard": "shard_00", "evaluation": expected}]


@pytest.mark.usefixtures("here")
def test_shards_without_samples_of_the_split_are_refused_unless_one_has_some(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["evaluate", MODEL, "--data", "all", "--split", "validation"]
    output = fails(capsys, ExitCode.BAD_DATA, *flags)
    assert "no validation samples in shards/shard_00.npz, shards/shard_01.npz" in output
    path = Path("shards/shard_00.npz")
    shard = read_shard(path)
    write_shard(path, replace(shard, val_x=shard.test_x[:7], val_y=shard.test_y[:7]))
    succeeds(*flags)
    shown = capsys.readouterr().out
    assert "7" in shown and "–" in shown


@pytest.mark.usefixtures("here")
def test_a_model_that_does_not_fit_the_data_is_refused_with_both_shapes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x, y = np.zeros((4, 1, 6, 6), dtype=np.float32), np.zeros(4, dtype=np.int64)
    write_shard(Path("shards/small.npz"), Shard(x, y, x, y, num_classes=10))
    output = fails(capsys, ExitCode.BAD_DATA, "evaluate", MODEL, "--data", "small")
    assert "samples of 1x6x6 here, 1x8x8 in the run" in output


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["[red]", "a[b]c"])
def test_brackets_in_the_name_of_a_shard_are_printed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("shards/shard_00.npz").rename(f"shards/{name}.npz")
    succeeds("evaluate", MODEL, "--data", name)
    assert name in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_missing_data_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    output = fails(capsys, ExitCode.BAD_DATA, "evaluate", MODEL, "--data", "shard_09")
    assert "there are: shard_00, shard_01" in output
    flags = ["evaluate", MODEL, "--data", "all", "--data-root", "nowhere"]
    assert "there is no folder nowhere" in fails(capsys, ExitCode.BAD_DATA, *flags)
    assert "--data must be names" in fails(
        capsys, ExitCode.USAGE, "evaluate", MODEL, "--data", "shard_00,"
    )


# ---- a user's task


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the model of a user's task, made with --width 6."""
    monkeypatch.chdir(tmp_path)
    Path("words.py").write_text(WORDS)
    Path("shards").mkdir()
    x = (np.arange(40 * 7, dtype=np.int64) * 7 % 20).reshape(40, 7)
    shard = Shard(x[:30], x[:30, 0] % 3, x[30:], x[30:, 0] % 3, num_classes=3)
    write_shard(Path("shards/shard_00.npz"), shard)
    task, settings = load_task("words.py"), RunSettings(width=6)
    model = task.build_model(settings, shard)
    manifest = manifest_of(model, task.description(settings, shard))
    vector = read_vector(model, manifest)
    mask = write(Path(MODEL), manifest, vector)
    history = {
        "model_digest": values_digest(mask.gather(vector)).hex(), "settings": asdict(settings),
    }  # fmt: skip
    Path(MODEL, "history.json").write_text(json.dumps(history))
    return tmp_path


@pytest.mark.usefixtures("words")
def test_a_users_task_has_its_metrics_and_the_settings_of_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = evaluated(capsys, MODEL, "--data", "shard_00", "--task", "words.py")
    assert document["pooled"] is None
    assert isinstance(document["metrics"], dict)
    assert 1 / 3 < document["metrics"]["sure"] < 1
    succeeds("evaluate", MODEL, "--data", "shard_00", "--task", "words.py")
    assert "sure" in capsys.readouterr().out


@pytest.mark.usefixtures("words")
def test_a_users_task_is_required_and_another_one_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["evaluate", MODEL, "--data", "shard_00"]
    assert "--task path/to/words.py" in fails(capsys, ExitCode.USAGE, *flags)
    Path("letters.py").write_text(WORDS)
    output = fails(capsys, ExitCode.BAD_DATA, *flags, "--task", "letters.py")
    assert "belongs to the task words, but --task letters.py is the task letters" in output
    Path(MODEL, "history.json").unlink()
    output = fails(capsys, ExitCode.BAD_DATA, *flags, "--task", "words.py")
    assert "hidden.weight (5x8" in output
    assert "history.json has them" in output


@pytest.mark.usefixtures("words", "onnx_functions")
def test_a_users_network_is_exported_to_onnx_with_the_input_of_a_shard(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["export", MODEL, "--format", "onnx", "--out", "model.onnx", "--task", "words.py"]
    assert "--data is needed" in fails(capsys, ExitCode.USAGE, *flags)
    succeeds(*flags, "--data", "shard_00")
    assert "x: int64 (batch, 7)" in capsys.readouterr().out
    shard = read_shard(Path("shards/shard_00.npz"))
    model = load_task("words.py").build_model(RunSettings(width=6), shard)
    model.load_state_dict(load_tensors(f"{MODEL}/model.safetensors"))
    session = onnxruntime.InferenceSession("model.onnx")
    for count in (1, 5):
        x = shard.test_x[:count]
        (y,) = session.run(None, {"x": x})
        expected = model(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)


# ---- export


@pytest.mark.usefixtures("here")
def test_exported_safetensors_are_self_contained_and_have_their_digests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    succeeds("export", MODEL, "--format", "safetensors", "--out", "elsewhere/mine.safetensors")
    shown = capsys.readouterr().out
    assert "density 10.00 %" in shown
    assert 'load_state_dict(load_file("elsewhere/mine.safetensors"))' in shown
    with safe_open("elsewhere/mine.safetensors", framework="numpy") as file:
        exported = json.loads(file.metadata()["ssfl"])
    with safe_open(f"{MODEL}/model.safetensors", framework="numpy") as file:
        original = json.loads(file.metadata()["ssfl"])
    assert {name: exported[name] for name in original} == original
    mine, theirs = load_file("elsewhere/mine.safetensors"), load_file(f"{MODEL}/{FILES[0]}")
    assert mine.keys() == theirs.keys()
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    from_run = evaluated(capsys, MODEL, "--data", "all")
    alone = evaluated(capsys, "elsewhere/mine.safetensors", "--data", "all")
    assert from_run | {"model": ""} == alone | {"model": ""}


@pytest.mark.usefixtures("here")
def test_csr_is_smaller_and_the_output_shows_how_to_load_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    succeeds("export", MODEL, "--format", "csr", "--out", "model.pt")
    shown = capsys.readouterr().out
    saved = torch.load("model.pt", weights_only=True)
    network = plain_network()
    assert Path("model.pt").stat().st_size < Path(MODEL, FILES[0]).stat().st_size / 3
    assert torch.equal(saved["tensors"]["1.weight"].to_dense(), network.state_dict()["1.weight"])
    assert saved["digests"].keys() == {"manifest_digest", "mask_digest", "model_digest"}
    lines = shown.partition("\n\n")[2]
    names: dict[str, object] = {"torch": torch, "x": torch.ones(5, 64)}
    exec(lines, names)
    y = names["y"]
    assert isinstance(y, torch.Tensor)
    assert y.shape == (5, 200)


@pytest.mark.usefixtures("here", "onnx_functions")
def test_onnx_needs_neither_task_nor_data_for_a_built_in_network(
    capfd: pytest.CaptureFixture[str],
) -> None:
    succeeds("export", MODEL, "--format", "onnx", "--out", "model.onnx")
    output = capfd.readouterr()
    assert output.err == ""
    assert len(output.out.splitlines()) == 5
    x = read_shard(Path("shards/shard_00.npz")).test_x[:5]
    names: dict[str, object] = {"onnxruntime": onnxruntime, "x": x}
    exec(output.out.partition("\n\n")[2], names)
    with torch.no_grad():
        expected = plain_network()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(np.asarray(names["y"]), expected, rtol=0, atol=1e-5)
    props = {one.key for one in onnx.load("model.onnx").metadata_props}
    assert props == {"manifest_digest", "mask_digest", "model_digest"}


NUMBERS = "0.3/0.4"


@pytest.mark.usefixtures("here")
def test_every_exported_form_of_a_model_that_scales_pixels_takes_plain_pixels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare_torch(1)
    shard, task = read_shard(Path("shards/shard_01.npz")), load_task("image")
    settings = RunSettings(model="mlp", normalize=NUMBERS)
    network = task.build_model(settings, shard)
    manifest = manifest_of(network, task.description(settings, shard))
    vector = initial_vector(manifest, seed=5)
    mask = write(Path("scaled"), manifest, vector)
    write_vector(network, manifest, mask.scatter(mask.gather(vector)))
    network.eval()
    expected = asdict(evaluate(network, task, shard))
    x = torch.from_numpy(shard.test_x[:5])

    plain = build_model("mlp", (1, 8, 8), 10)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*normalize\.mean"):
        plain.load_state_dict(load_tensors("scaled/model.safetensors"))
    again = build_model("mlp", (1, 8, 8), 10, normalize="0/1")  # the file has the numbers
    again.load_state_dict(load_tensors("scaled/model.safetensors"))
    assert torch.equal(again.eval()(x), network(x))
    assert not torch.allclose(network[1:](x), network(x), atol=1e-3)  # type: ignore[index]

    succeeds("export", "scaled", "--format", "safetensors", "--out", "alone.safetensors")
    for model in ("scaled", "alone.safetensors"):
        rows = evaluated(capsys, model, "--data", "shard_01")["shards"]
        assert rows == [{"shard": "shard_01", "evaluation": expected}]
    succeeds("export", "scaled", "--format", "onnx", "--out", "model.onnx")
    (y,) = onnxruntime.InferenceSession("model.onnx").run(None, {"x": x.numpy()})
    np.testing.assert_allclose(y, network(x).detach().numpy(), rtol=0, atol=1e-5)
    succeeds("export", "scaled", "--format", "csr", "--out", "model.pt")
    tensors = torch.load("model.pt", weights_only=True)["tensors"]
    assert tensors["normalize.mean"].item() == pytest.approx(0.3)


@pytest.mark.usefixtures("here")
def test_a_file_with_other_numbers_for_pixels_than_its_manifest_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shard, task = read_shard(Path("shards/shard_01.npz")), load_task("image")
    settings = RunSettings(model="mlp", normalize=NUMBERS)
    network = task.build_model(settings, shard)
    manifest = manifest_of(network, task.description(settings, shard))
    write(Path("scaled"), manifest, initial_vector(manifest, seed=5))
    tensors = load_file("scaled/model.safetensors")
    tensors["normalize.mean"] = tensors["normalize.mean"] + np.float32(0.1)
    save_file(tensors, "scaled/model.safetensors")
    output = fails(capsys, ExitCode.BAD_DATA, "evaluate", "scaled", "--data", "shard_01")
    assert "normalize.mean has other numbers than the manifest" in output


@pytest.mark.usefixtures("here")
def test_an_existing_file_is_replaced_only_with_overwrite(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("thesis.tex").write_text("dear")
    flags = ["export", MODEL, "--format", "safetensors", "--out", "thesis.tex"]
    assert "--overwrite replaces it" in fails(capsys, ExitCode.USAGE, *flags)
    assert Path("thesis.tex").read_text() == "dear"
    succeeds(*flags, "--overwrite")
    assert load_file("thesis.tex")
    assert "is a folder" in fails(capsys, ExitCode.USAGE, *flags[:-1], "shards")


@pytest.mark.usefixtures("here")
def test_flags_that_a_format_does_not_use_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["export", MODEL, "--format", "csr", "--out", "x", "--task", "words.py"]
    assert "--task is for --format onnx" in fails(capsys, ExitCode.USAGE, *flags)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named_with_the_install_command(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    flags = ["export", MODEL, "--format", "onnx", "--out", "model.onnx"]
    output = fails(capsys, ExitCode.BAD_DATA, *flags)
    assert f"needs {package}: pip install 'ssfl[export]'" in output


@contextmanager
def little_room(num_bytes: int) -> Iterator[None]:
    """Let no file become larger, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("here")
def test_without_room_nothing_is_left_behind(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["export", MODEL, "--format", "safetensors", "--out", "full/model.safetensors"]
    with little_room(10_000):
        output = fails(capsys, ExitCode.BAD_DATA, *flags)
    assert "cannot write full/model.safetensors, 0.23 MB: File too large" in output
    assert list(Path("full").iterdir()) == []
