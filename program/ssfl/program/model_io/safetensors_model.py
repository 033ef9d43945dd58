"""Writing of model files: safetensors, mask and manifest.

A run writes four files:

model.safetensors   every tensor by name, pruned weights zero, and the constants of the network
                    (mean and standard deviation of --normalize); plain PyTorch can load it
kept.safetensors    `values`, the kept values as they were sent, and `mask`, packed bits
mask.bin            packed mask bits
manifest.json       names, shapes and roles

Two kinds of file stand alone, with every tensor by name and the manifest in the metadata. `ssfl
init` writes the model that a run starts with; `ssfl model export` writes a file with the mask in
its metadata. `ssfl.program.model_io.stored_model` reads all of them.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from ssfl.durable.files import write_atomic
from ssfl.method.errors import ModelFileError
from ssfl.method.image_settings import constant_tensors
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest

Array = npt.NDArray[np.float32]

MODEL, KEPT = "model.safetensors", "kept.safetensors"
MASK, MANIFEST = "mask.bin", "manifest.json"
MAX_ALONE = 500_000_000  # weights: 83 MB of base64; a safetensors header ends at 100 MB


def write_model(
    folder: Path, manifest: Manifest, mask: Mask, values: npt.NDArray[np.float32]
) -> None:
    """Write the four files into an existing folder."""
    metadata = _metadata(digests_of(manifest, mask, values))
    tensors = named_arrays(manifest, mask.scatter(values))
    packed = np.frombuffer(mask.bits, dtype=np.uint8)
    contents = {
        MODEL: save(tensors, metadata),
        KEPT: save({"values": values, "mask": packed}, metadata),
        MASK: mask.bits,
        MANIFEST: manifest.json,
    }
    for name, data in contents.items():
        write_atomic(folder / name, data)


def write_initial(path: Path, manifest: Manifest, initial: npt.NDArray[np.float32]) -> None:
    """Write the model that a run starts with: its manifest and every tensor."""
    mask = mask_of(manifest, initial)
    digests = digests_of(manifest, mask, mask.gather(initial))
    metadata = _metadata({"manifest": manifest.json.decode(), **digests})
    write_atomic(path, save(named_arrays(manifest, initial), metadata))


def stand_alone(
    manifest: Manifest, mask: Mask, vector: npt.NDArray[np.float32], digests: Mapping[str, str]
) -> bytes:
    """Return a model as one file: all tensors; manifest, mask and digests in its metadata."""
    if mask.size > MAX_ALONE:
        raise ModelFileError(
            f"a mask of {mask.size:,} weights is too large for the metadata of one file (at "
            f"most {MAX_ALONE:,}): use the files of the folder together"
        )
    fields = {"manifest": manifest.json.decode(), "mask": base64.b64encode(mask.bits).decode()}
    data: bytes = save(named_arrays(manifest, vector), _metadata({**fields, **digests}))
    return data


def named_arrays(manifest: Manifest, vector: Array) -> dict[str, Array]:
    """Return the tensors of a network by name: those of the vector, and its constants."""
    return constant_tensors(manifest.model) | manifest.unflatten(vector)


def digests_of(manifest: Manifest, mask: Mask, values: npt.NDArray[np.float32]) -> dict[str, str]:
    """Return the digests of a model by their names in the metadata."""
    return {
        "manifest_digest": manifest.digest.hex(),
        "mask_digest": mask.digest.hex(),
        "model_digest": values_digest(values).hex(),
    }


def mask_of(manifest: Manifest, vector: npt.NDArray[np.float32]) -> Mask:
    """Return the mask of the weights that are not zero; -0.0 counts as kept."""
    return Mask.from_bools(vector[: manifest.num_masked].view(np.uint32) != 0)


def _metadata(fields: Mapping[str, str]) -> dict[str, str]:
    return {"ssfl": json.dumps(fields)}  # one key: safetensors does not keep the order of several
