"""`ssfl model` and models that are missing, damaged or forged."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.program.exits import ExitCode
from ssfl.program.model_io.safetensors_model import write_model
from ssfl.tools import main as tools
from tools.model.model_fixtures import FILES, MODEL, evaluated, fails, set_up, succeeds, write


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to stand in, with two shards and the model of a run."""
    monkeypatch.chdir(tmp_path)
    set_up()


@pytest.mark.parametrize("where", ["nowhere", "shards", "runs", "runs/r1"])
def test_a_missing_model_is_refused_with_a_list_of_models(
    where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = fails(capsys, ExitCode.BAD_DATA, "evaluate", where, "--data", "all")
    assert "runs/<run>/coordinator/" in output
    assert f"models are in {MODEL}" in output


@pytest.mark.parametrize("name", FILES)
def test_a_missing_model_file_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(MODEL, name).unlink()
    assert f"has no {name}" in fails(capsys, ExitCode.BAD_DATA, "evaluate", MODEL, "--data=all")


@pytest.mark.parametrize(
    ("name", "damage", "output"),
    [
        (FILES[0], lambda data: data[:-100], "cannot be read as safetensors"),
        (FILES[0], lambda data: b"\xff" + data[1:], "cannot be read as safetensors"),
        (FILES[0], lambda data: data[:0], "cannot be read as safetensors"),
        (FILES[1], lambda data: data[:-1], "manifest.json is damaged"),
        (FILES[1], lambda data: data.replace(b"[200,64]", b"[64,200]"), "digest of its manifest"),
        (FILES[1], lambda data: data * 2000, "more than 1048576 bytes"),
        (FILES[2], lambda data: data[:-1], "mask.bin is damaged"),
        (FILES[2], lambda data: bytes(len(data)), "a pruned weight of 1.weight is not zero"),
        (FILES[2], lambda data: b"\xff" * len(data), "digest of its mask is"),
    ],
)
def test_a_damaged_file_is_refused(name: str, damage, output: str, capsys) -> None:  # type: ignore[no-untyped-def]
    path = Path(MODEL, name)
    path.write_bytes(damage(path.read_bytes()))
    assert output in fails(capsys, ExitCode.BAD_DATA, "evaluate", MODEL, "--data", "all")


@pytest.mark.parametrize(
    ("change", "output"),
    [
        (lambda tensors: tensors.pop("1.bias"), "it has no tensor 1.bias"),
        (lambda tensors: tensors.update(more=tensors["1.bias"]), "more is not in the manifest"),
        (lambda tensors: tensors.update({"1.bias": np.zeros(7, np.float32)}), "has shape (7,)"),
        (lambda tensors: tensors.update({"1.bias": np.zeros(200)}), "1.bias is F64, not float32"),
        (lambda tensors: tensors["1.bias"].fill(np.nan), "1.bias holds NaN"),
        (lambda tensors: tensors["1.bias"].fill(1), "digest of its values is"),
    ],
)
def test_tensors_that_do_not_fit_their_manifest_are_refused(change, output: str, capsys) -> None:  # type: ignore[no-untyped-def]
    path = Path(MODEL, FILES[0])
    tensors = {name: array.copy() for name, array in load_file(path).items()}
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    change(tensors)
    save_file(tensors, path, metadata)
    assert output in fails(capsys, ExitCode.BAD_DATA, "export", MODEL, "--format=csr", "--out=x")
    assert not Path("x").exists()


def test_a_foreign_file_needs_a_manifest_next_to_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("apart").mkdir()
    Path("apart/weights.safetensors").write_bytes(Path(MODEL, FILES[0]).read_bytes())
    output = fails(capsys, ExitCode.BAD_DATA, "evaluate", "apart/weights.safetensors", "--data=all")
    assert "no manifest in its metadata and no manifest.json next to it" in output


def test_a_network_that_does_not_fit_the_manifest_is_not_built(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file describes its network; a huge one must be refused before it is built."""
    manifest = Manifest.from_json(Path(MODEL, FILES[1]).read_bytes())
    cases: list[tuple[dict[str, object], str]] = [
        ({"width": 512, "model": "resnet50"}, "differs from that of"),
        ({"width": "wide"}, "cannot be used"),
        ({"model": "transformer"}, "--model must be one of"),
        ({"task": "table", "input_shape": [64], "width": 4096}, "differs from that of"),
        ({"input_shape": "8x8"}, "has no shape of a sample"),
        ({"input_shape": [1] * 9}, "has no shape of a sample"),
        ({"input_shape": [1, 10**6, 10**6]}, "samples have more than"),
    ]
    for number, (made_up, output) in enumerate(cases):
        other = replace(manifest, model={**manifest.model, **made_up})
        folder = Path("made-up", str(number))
        write(folder, other, initial_vector(other, seed=5))
        flags = ["export", str(folder), "--format", "onnx", "--out", "model.onnx"]
        assert output in fails(capsys, ExitCode.BAD_DATA, *flags)


def test_a_task_that_is_not_a_name_is_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = Manifest.from_json(Path(MODEL, FILES[1]).read_bytes())
    other = replace(manifest, model={**manifest.model, "task": ["image"]})
    write(Path("odd"), other, initial_vector(other, seed=5))
    output = fails(capsys, ExitCode.USAGE, "evaluate", "odd", "--data", "all")
    assert "the model belongs to the task ['image']" in output


def test_a_model_of_ssfl_init_can_be_evaluated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tools.main(["init", "--model", "mlp", "--data", "shard_00"]) == ExitCode.DONE
    document = evaluated(capsys, "initial.safetensors", "--data", "shard_00")
    assert isinstance(document["pooled"], float)


def test_an_exported_model_may_have_a_kept_weight_of_zero(
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = Manifest.from_json(Path(MODEL, FILES[1]).read_bytes())
    vector = initial_vector(manifest, seed=5)
    vector[0] = 0
    mask = Mask.full(manifest.num_masked)
    Path("zero").mkdir()
    write_model(Path("zero"), manifest, mask, mask.gather(vector))
    succeeds("export", "zero", "--format", "safetensors", "--out", "zero.safetensors")
    assert "density 100.00 %" in capsys.readouterr().out
    from_run = evaluated(capsys, "zero", "--data", "all")
    alone = evaluated(capsys, "zero.safetensors", "--data", "all")
    assert from_run | {"model": ""} == alone | {"model": ""}


def test_a_kept_weight_that_became_zero_in_an_exported_file_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    succeeds("export", MODEL, "--format", "safetensors", "--out", "alone.safetensors")
    with safe_open("alone.safetensors", framework="numpy") as file:
        metadata = file.metadata()
    tensors = {name: array.copy() for name, array in load_file("alone.safetensors").items()}
    kept = tensors["1.weight"].reshape(-1)
    kept[np.flatnonzero(kept)[0]] = 0
    save_file(tensors, "alone.safetensors", metadata)
    output = fails(capsys, ExitCode.BAD_DATA, "evaluate", "alone.safetensors", "--data", "all")
    assert "alone.safetensors: the digest of its values is" in output
