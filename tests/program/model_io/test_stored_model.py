"""Model files read back: intact, changed, damaged and forged."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ssfl.method.errors import ModelFileError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.program.model_io.safetensors_model import (
    digests_of,
    stand_alone,
    write_initial,
    write_model,
)
from ssfl.program.model_io.stored_model import read_initial, read_stored

Arrays = dict[str, npt.NDArray[np.float32]]

MASK = Mask.from_bools(np.array([1, 0, 0, 1, 0, 0, 0, 0, 1, 1], dtype=np.bool_))
DEEP = "[" * 100_000


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(path, framework="numpy") as file:
        found: dict[str, str] = file.metadata()
    return found


def pruned(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return MASK.scatter(MASK.gather(vector))


def write_alone(path: Path, manifest: Manifest, vector: npt.NDArray[np.float32]) -> None:
    digests = digests_of(manifest, MASK, MASK.gather(vector))
    path.write_bytes(stand_alone(manifest, MASK, vector, digests))


def change_tensors(path: Path, change: Callable[[Arrays], object]) -> None:
    tensors, metadata = load_file(path), metadata_of(path)
    change(tensors)
    save_file(tensors, path, metadata)


# ---- initial models


def test_an_initial_model_is_read_as_it_was_written(manifest: Manifest, tmp_path: Path) -> None:
    path, vector = tmp_path / "initial.safetensors", np.arange(14, dtype=np.float32)
    write_initial(path, manifest, vector)
    read, values = read_initial(path)
    assert read.json == manifest.json
    assert values.tobytes() == vector.tobytes()
    assert {name: array.shape for name, array in load_file(path).items()} == {
        tensor.name: tensor.shape for tensor in manifest.tensors
    }
    assert [path.name for path in tmp_path.iterdir()] == ["initial.safetensors"]


def test_a_file_that_is_not_an_initial_model_is_refused_with_the_remedy(
    manifest: Manifest, tmp_path: Path
) -> None:
    path = tmp_path / "weights.safetensors"
    with pytest.raises(ModelFileError, match=r"there is no file .*`ssfl init`"):
        read_initial(path)
    path.write_bytes(b"")
    with pytest.raises(ModelFileError, match="cannot be read as safetensors"):
        read_initial(path)
    tensors = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in manifest.tensors}
    save_file(tensors, path)
    with pytest.raises(ModelFileError, match=r"has no manifest: .*--weights"):
        read_initial(path)


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ("[]", "weights.safetensors: its metadata is damaged"),
        ("{", "weights.safetensors: its metadata is damaged"),
        (DEEP, "weights.safetensors: its metadata is damaged"),
        ('{"manifest": 5}', "weights.safetensors: its metadata is damaged"),
        ('{"manifest": "\\ud800"}', "weights.safetensors: its metadata is damaged"),
        ('{"manifest": "{}"}', "the manifest in .*weights.safetensors is damaged"),
        (json.dumps({"manifest": DEEP}), "the manifest in .*weights.safetensors is damaged"),
    ],
)
def test_damaged_metadata_are_refused(
    manifest: Manifest, tmp_path: Path, metadata: str, complaint: str
) -> None:
    path = tmp_path / "weights.safetensors"
    tensors = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in manifest.tensors}
    save_file(tensors, path, {"ssfl": metadata})
    for read in (read_initial, read_stored):
        with pytest.raises(ModelFileError, match=complaint):
            read(path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.pop("fc.weight"), "it has no tensor fc.weight"),
        (lambda t: t.update(extra=np.zeros(1, np.float32)), "extra is not in the manifest"),
        (lambda t: t.update({"fc.weight": np.zeros((1, 4), np.float32)}), "fc.weight has shape"),
        (lambda t: t.update({"fc.weight": t["fc.weight"].astype(np.float16)}), "is F16, not float"),
        (lambda t: t["conv.bias"].fill(np.nan), "conv.bias holds NaN or infinity"),
        (lambda t: t["conv.bias"].fill(3), "the digest of its values is"),
        (lambda t: t["fc.weight"].fill(0), "the digest of its mask is"),
    ],
)
def test_a_changed_initial_model_is_refused(
    manifest: Manifest, tmp_path: Path, change: Callable[[Arrays], object], complaint: str
) -> None:
    path = tmp_path / "initial.safetensors"
    write_initial(path, manifest, np.arange(14, dtype=np.float32))
    change_tensors(path, change)
    with pytest.raises(ModelFileError, match=complaint):
        read_initial(path)


def test_an_initial_model_without_digests_is_accepted(manifest: Manifest, tmp_path: Path) -> None:
    path, vector = tmp_path / "initial.safetensors", np.arange(14, dtype=np.float32)
    metadata = {"ssfl": json.dumps({"manifest": manifest.json.decode()})}
    save_file(manifest.unflatten(vector), path, metadata)
    assert read_initial(path)[1].tobytes() == vector.tobytes()


# ---- files that stand alone


def test_a_kept_weight_may_be_zero_in_a_stand_alone_file(
    manifest: Manifest, tmp_path: Path
) -> None:
    vector = pruned(np.arange(1, 15, dtype=np.float32))
    vector[3] = 0
    write_alone(path := tmp_path / "alone.safetensors", manifest, vector)
    model = read_stored(path)
    assert model.mask == MASK
    assert model.vector.tobytes() == vector.tobytes()
    assert model.digests == digests_of(manifest, MASK, MASK.gather(vector))


def test_a_kept_weight_that_became_zero_is_refused(manifest: Manifest, tmp_path: Path) -> None:
    write_alone(path := tmp_path / "a.safetensors", manifest, pruned(np.ones(14, np.float32)))
    change_tensors(path, lambda tensors: tensors["conv.weight"].fill(0))
    with pytest.raises(ModelFileError, match="the digest of its values is"):
        read_stored(path)


def test_a_pruned_weight_that_is_not_zero_is_refused(manifest: Manifest, tmp_path: Path) -> None:
    write_alone(path := tmp_path / "a.safetensors", manifest, pruned(np.ones(14, np.float32)))
    change_tensors(path, lambda tensors: tensors["conv.weight"].fill(1))
    with pytest.raises(ModelFileError, match=r"a pruned weight of conv\.weight is not zero"):
        read_stored(path)


@pytest.mark.parametrize("bits", ["CQM", "CQM=CQM=", "CQ==", "CQMJ", "CQ?=", "ä"])
def test_a_damaged_mask_in_the_metadata_is_refused(
    manifest: Manifest, tmp_path: Path, bits: str
) -> None:
    write_alone(path := tmp_path / "a.safetensors", manifest, pruned(np.ones(14, np.float32)))
    fields = json.loads(metadata_of(path)["ssfl"])
    assert fields["mask"] == "CQM="
    save_file(load_file(path), path, {"ssfl": json.dumps({**fields, "mask": bits})})
    with pytest.raises(ModelFileError, match=r"the mask in .*a\.safetensors is damaged"):
        read_stored(path)


def test_a_mask_that_does_not_match_its_digest_is_refused(
    manifest: Manifest, tmp_path: Path
) -> None:
    write_alone(path := tmp_path / "a.safetensors", manifest, pruned(np.ones(14, np.float32)))
    fields = json.loads(metadata_of(path)["ssfl"])
    save_file(load_file(path), path, {"ssfl": json.dumps({**fields, "mask": "/wM="})})
    with pytest.raises(ModelFileError, match="the digest of its mask is"):
        read_stored(path)


# ---- the files of a run


def test_the_model_of_a_run_is_read_with_the_files_in_its_folder(
    manifest: Manifest, tmp_path: Path
) -> None:
    values = MASK.gather(np.arange(14, dtype=np.float32))
    write_model(tmp_path, manifest, MASK, values)
    model = read_stored(tmp_path / "model.safetensors")
    assert (model.manifest.json, model.mask) == (manifest.json, MASK)
    assert MASK.gather(model.vector).tobytes() == values.tobytes()
    with pytest.raises(ModelFileError, match=r"has no manifest: .*--weights"):
        read_initial(tmp_path / "model.safetensors")
    (tmp_path / "mask.bin").unlink()
    with pytest.raises(ModelFileError, match=r"and no mask\.bin next to it"):
        read_stored(tmp_path / "model.safetensors")
