from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ssfl.method.image_settings import STATISTICS
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Role
from ssfl.program.exits import ExitCode
from ssfl.program.model_io.stored_model import read_initial
from ssfl.tools import main as tools

Captured = pytest.CaptureFixture[str]
DIGITS = ["--input", "1x8x8"]
ODD = """
from torch import nn
from torch.nn import functional
from ssfl.datasets.shards.shard_file import read_shard as load_shard

def build_model(settings, shard):
    layers = {"what is this": nn.Linear(64, shard.num_classes), "same": nn.Linear(2, 2)}
    if shard.num_classes > 2:
        layers["what is more"] = nn.Linear(2, 2)
    return nn.ModuleDict(layers)

def loss(model, x, y):
    return functional.cross_entropy(model["what is this"](x.flatten(1)), y)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(*flags: str) -> int:
    return tools.main(["init", *flags])


def test_a_built_in_network_follows_from_the_seed(capsys: Captured) -> None:
    assert init(*DIGITS, "--model", "mlp", "--seed", "7", "--out", "new/a.safetensors") == 0
    manifest, vector = read_initial(Path("new/a.safetensors"))
    assert manifest.rebuildable
    assert dict(manifest.model) == {
        "task": "image", "model": "mlp", "norm": "group", "width": 0,
        "input_shape": [1, 8, 8], "num_classes": 10,
    }  # fmt: skip
    assert np.array_equal(vector, initial_vector(manifest, 7))
    output = capsys.readouterr().out
    assert "the weights follow from --seed 7" in output
    assert "ssfl-coordinator --init new/a.safetensors --seed 7" in output


def test_the_shape_of_the_model_comes_from_the_first_shard(capsys: Captured) -> None:
    assert init() == ExitCode.BAD_DATA
    assert (
        "there is no folder shards to find shards in; make some with: " in capsys.readouterr().err
    )
    assert tools.main(["shards", "--clients", "2"]) == ExitCode.DONE
    assert init() == ExitCode.DONE
    assert read_initial(Path("initial.safetensors"))[0].model["input_shape"] == [1, 8, 8]


def test_a_file_records_how_pixels_are_scaled_and_how_tensors_start() -> None:
    colour = ["--input", "3x32x32", "--model", "cnn-small"]
    assert init(*colour, "--normalize", "auto", "--initialization", "auto", "--seed", "7") == 0
    manifest, vector = read_initial(Path("initial.safetensors"))
    assert manifest.model["normalize"] == STATISTICS["cifar10"]
    rules = {tensor.name: tensor.init.rule for tensor in manifest.tensors}
    assert (rules["conv1.weight"], rules["linear2.weight"]) == ("normal", "uniform")
    assert np.array_equal(vector, initial_vector(manifest, 7))
    arrays = load_file("initial.safetensors")
    assert arrays["normalize.mean"].shape == (3, 1, 1)


def test_statistics_of_pixels_that_are_not_numbers_are_refused(capsys: Captured) -> None:
    assert init(*DIGITS, "--normalize", "mnist") == ExitCode.USAGE
    assert "--normalize must be none, auto, cifar10, cifar100" in capsys.readouterr().err


def test_statistics_of_batch_norm_are_buffers_in_the_file() -> None:
    assert init(*DIGITS, "--model", "resnet20", "--norm", "batch", "--width", "4") == 0
    manifest, vector = read_initial(Path("initial.safetensors"))
    buffers = [t for t in manifest.tensors if t.role is Role.BUFFER]
    assert len(buffers) == 38
    variances = [t for t in buffers if t.name.endswith("running_var")]
    assert all((vector[manifest.slices[t.name]] == 1).all() for t in variances)


def test_pretrained_weights_that_do_not_fit_are_refused_without_partial(capsys: Captured) -> None:
    assert init(*DIGITS, "--model", "mlp", "--classes", "5", "--seed", "3") == 0
    Path("initial.safetensors").rename("old.safetensors")
    again = [*DIGITS, "--model", "mlp", "--weights", "old.safetensors"]
    capsys.readouterr()
    assert init(*again) == ExitCode.BAD_DATA
    output = capsys.readouterr().err
    assert "5.weight is 5x200 in the file and 10x200 in the model" in output
    assert "Use --partial" in output
    assert not Path("initial.safetensors").exists()
    assert init(*again, "--partial") == ExitCode.DONE
    output = capsys.readouterr().out
    assert "4 tensors from old.safetensors" in output
    assert "2 start from the seed: 5.weight, 5.bias" in output
    manifest, vector = read_initial(Path("initial.safetensors"))
    assert not manifest.rebuildable
    old = load_file("old.safetensors")
    arrays = manifest.unflatten(vector)
    assert np.array_equal(arrays["1.weight"], old["1.weight"])
    seeded, fresh = initial_vector(manifest, 0), arrays["5.weight"]
    assert not seeded.any() and fresh.std() == pytest.approx(0.1, rel=0.1)  # sqrt(2 / 200)


def test_weights_of_another_network_are_refused(capsys: Captured) -> None:
    save_file({"encoder.weight": np.zeros((2, 2), np.float32)}, "other.safetensors")
    assert init(*DIGITS, "--weights", "other.safetensors", "--partial") == ExitCode.BAD_DATA
    assert "no tensor of other.safetensors fits the model" in capsys.readouterr().err


def test_every_tensor_that_does_not_fit_is_named_once(capsys: Captured) -> None:
    """The author chooses the names of tensors: one may look like a part of the message."""
    Path("odd.py").write_text(ODD)
    assert init(*DIGITS, "--task", "odd.py", "--classes", "2", "--out", "two.safetensors") == 0
    flags = [*DIGITS, "--task", "odd.py", "--weights", "two.safetensors"]
    capsys.readouterr()
    assert init(*flags) == ExitCode.BAD_DATA
    output = capsys.readouterr().err
    assert "what is this.weight is 2x64 in the file and 10x64 in the model" in output
    assert "what is more.weight is not in the file" in output
    assert "what is this.weight is not in the file" not in output


@pytest.mark.parametrize("name", ["[x]", "[/x]"])
def test_brackets_in_names_are_printed(name: str, capsys: Captured) -> None:
    folder = Path("runs", name)
    out = str(folder / "a.safetensors")
    assert init(*DIGITS, "--model", "mlp", "--out", out) == ExitCode.DONE
    assert (
        f"written to {out}; start the run with: ssfl-coordinator --init {out}"
        in capsys.readouterr().out
    )
    weights = {**load_file(out), name: np.zeros(1, np.float32)}
    save_file(weights, folder / "more.safetensors")
    flags = ["--weights", str(folder / "more.safetensors"), "--partial"]
    assert init(*DIGITS, "--model", "mlp", *flags) == ExitCode.DONE
    output = capsys.readouterr().out
    assert f"6 tensors from {folder}/more.safetensors" in output
    assert f"1 of the file are not used: {name} is not in the model" in output


@pytest.mark.parametrize(
    ("flags", "code", "complaint"),
    [
        (["--input", "8by8"], ExitCode.USAGE, "--input must be sizes such as 3x32x32"),
        ([*DIGITS, "--data", "a"], ExitCode.USAGE, "--input replaces --data"),
        ([*DIGITS, "--classes", "1"], ExitCode.USAGE, "--classes must be 2 or more, or 0"),
        (["--input", "0"], ExitCode.USAGE, "--input 0 has no values"),
        ([*DIGITS, "--out", "there"], ExitCode.USAGE, "there exists already: --overwrite"),
        ([*DIGITS, "--out", ".", "--overwrite"], ExitCode.USAGE, "--out: . is not a file"),
        ([*DIGITS, "--partial"], ExitCode.USAGE, "--partial needs --weights"),
        ([*DIGITS, "--task", "absent.py"], ExitCode.BAD_DATA, "there is no task file absent.py"),
        (["--input", "8", "--model", "cnn"], ExitCode.BAD_DATA, "cnn needs images"),
        ([*DIGITS, "--weights", "a.safetensors"], ExitCode.BAD_DATA, "there is no file a"),
    ],
)
def test_invalid_flags_are_refused(
    flags: list[str], code: ExitCode, complaint: str, capsys: Captured
) -> None:
    Path("there").write_text("mine")
    assert init(*flags) == code
    assert Path("there").read_text() == "mine"
    assert complaint in capsys.readouterr().err
