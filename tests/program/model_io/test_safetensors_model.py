import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from ssfl.method.errors import ModelFileError
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import MAX_MANIFEST_BYTES, Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.program.model_io import safetensors_model
from ssfl.program.model_io.safetensors_model import stand_alone, write_model

MASK = Mask.from_bools(np.array([1, 0, 0, 1, 0, 0, 0, 0, 1, 1], dtype=np.bool_))
FILES = {"model.safetensors", "kept.safetensors", "mask.bin", "manifest.json"}


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(path, framework="numpy") as file:
        found: dict[str, str] = file.metadata()
    return found


def test_a_run_writes_four_files(manifest: Manifest, tmp_path: Path) -> None:
    write_model(tmp_path, manifest, MASK, MASK.gather(initial_vector(manifest, 0)))
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_the_dense_file_has_every_tensor_with_zeros_off_the_mask(
    manifest: Manifest, tmp_path: Path
) -> None:
    vector = np.arange(1, 15, dtype=np.float32)
    write_model(tmp_path, manifest, MASK, MASK.gather(vector))
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: array.tolist() for name, array in tensors.items()} == {
        "conv.weight": [[1, 0, 0], [4, 0, 0]],
        "fc.weight": [[0, 0], [9, 10]],
        "conv.bias": [11, 12],
        "norm.mean": [13, 14],
    }


def test_the_kept_file_restores_mask_and_values_bit_for_bit(
    manifest: Manifest, tmp_path: Path
) -> None:
    values = MASK.gather(initial_vector(manifest, 0))
    values[:2] = np.array([0x80000000, 0x7FC01234], dtype=np.uint32).view(np.float32)
    write_model(tmp_path, manifest, MASK, values)
    kept = load_file(tmp_path / "kept.safetensors")
    assert kept["values"].tobytes() == values.tobytes()
    assert kept["mask"].tobytes() == MASK.bits == (tmp_path / "mask.bin").read_bytes()
    again = Manifest.from_json((tmp_path / "manifest.json").read_bytes())
    assert again == manifest
    rebuilt = again.unflatten(Mask(kept["mask"].tobytes(), again.num_masked).scatter(values))
    dense = load_file(tmp_path / "model.safetensors")
    for name, array in rebuilt.items():
        assert array.tobytes() == dense[name].tobytes()


@pytest.mark.parametrize("name", ["model.safetensors", "kept.safetensors"])
def test_both_files_have_the_digests(manifest: Manifest, tmp_path: Path, name: str) -> None:
    values = MASK.gather(initial_vector(manifest, 0))
    write_model(tmp_path, manifest, MASK, values)
    assert json.loads(metadata_of(tmp_path / name)["ssfl"]) == {
        "model_digest": values_digest(values).hex(),
        "mask_digest": MASK.digest.hex(),
        "manifest_digest": manifest.digest.hex(),
    }


def test_the_digest_is_the_sha256_of_little_endian_floats() -> None:
    values = np.array([1.0, -2.0, 0.5], dtype=np.float32)
    expected = hashlib.sha256(bytes.fromhex("0000803f000000c00000003f")).digest()
    assert values_digest(values) == expected
    assert values_digest(values.astype(">f4")) == expected
    assert values_digest(np.repeat(values, 2)[::2]) == expected


def test_an_older_model_in_the_folder_is_replaced(manifest: Manifest, tmp_path: Path) -> None:
    for seed in (0, 1):
        values = MASK.gather(initial_vector(manifest, seed))
        write_model(tmp_path, manifest, MASK, values)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert load_file(tmp_path / "kept.safetensors")["values"].tobytes() == values.tobytes()


def test_a_mask_too_large_for_the_metadata_is_refused_before_writing(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = MASK.scatter(MASK.gather(initial_vector(manifest, 0)))
    assert stand_alone(manifest, MASK, vector, {})
    monkeypatch.setattr(safetensors_model, "MAX_ALONE", 9)
    with pytest.raises(ModelFileError, match="a mask of 10 weights is too large"):
        stand_alone(manifest, MASK, vector, {})


def test_the_largest_allowed_mask_fits_a_safetensors_header() -> None:
    base64_bytes = 4 * -(-(safetensors_model.MAX_ALONE // 8) // 3)
    assert base64_bytes + 2 * MAX_MANIFEST_BYTES < 100_000_000
