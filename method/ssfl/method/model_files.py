"""A model on disk, for anyone to use: safetensors, mask and manifest.

What a run leaves:

model.safetensors   every tensor by name, pruned weights zero: load it into plain PyTorch
kept.safetensors    `values`, the kept values as they travelled, and `mask`, packed bits
mask.bin            packed mask bits alone
manifest.json       names, shapes and roles

What a run may begin with is one file, written by `ssfl init`: every tensor by name, and the
manifest in the metadata.
"""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ssfl.method.errors import MethodError, ModelFileError
from ssfl.method.files import atomic_file
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest

_MAKE_ONE = "make one with `ssfl init`"


def write_model(
    folder: Path, manifest: Manifest, mask: Mask, values: npt.NDArray[np.float32]
) -> None:
    """Write the four files into an existing folder."""
    digests = {
        "manifest_digest": manifest.digest.hex(),
        "mask_digest": mask.digest.hex(),
        "model_digest": values_digest(values).hex(),
    }
    metadata = {"ssfl": json.dumps(digests)}  # one key: safetensors writes several in any order
    tensors = manifest.unflatten(mask.scatter(values))
    packed = np.frombuffer(mask.bits, dtype=np.uint8)
    contents = {
        "model.safetensors": save(tensors, metadata),
        "kept.safetensors": save({"values": values, "mask": packed}, metadata),
        "mask.bin": mask.bits,
        "manifest.json": manifest.json,
    }
    for name, data in contents.items():
        _write(folder / name, data)


def write_initial(path: Path, manifest: Manifest, initial: npt.NDArray[np.float32]) -> None:
    """Write the model a run is to begin with: its manifest and every tensor."""
    metadata = {"ssfl": json.dumps({"manifest": manifest.json.decode()})}
    _write(path, save(manifest.unflatten(initial), metadata))


def read_initial(path: Path) -> tuple[Manifest, npt.NDArray[np.float32]]:
    """Return manifest and initial vector of such a file; ModelFileError says what is wrong."""
    try:
        with safe_open(path, framework="numpy") as file:
            told = (file.metadata() or {}).get("ssfl", "{}")
            text = json.loads(told).get("manifest")
            if text is None:
                raise ModelFileError(f"{path} holds no manifest: {_MAKE_ONE} --weights {path}")
            manifest = Manifest.from_json(text.encode())
            names = {tensor.name for tensor in manifest.tensors}
            if odd := sorted(names ^ set(file.keys())):
                raise ValueError(f"its manifest and its tensors differ, first in {odd[0]}")
            vector = manifest.flatten({name: file.get_tensor(name) for name in names})
    except FileNotFoundError:
        raise ModelFileError(f"there is no file {path}: {_MAKE_ONE}") from None
    except (MethodError, SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path} is not a file of `ssfl init`: {error}") from error
    if not np.isfinite(vector).all():
        where = manifest.tensor_at(int(np.flatnonzero(~np.isfinite(vector))[0]))
        raise ModelFileError(f"{path}: {where} holds NaN or infinity")
    return manifest, vector


def _write(path: Path, data: bytes) -> None:
    with atomic_file(path) as file:
        file.write(data)
