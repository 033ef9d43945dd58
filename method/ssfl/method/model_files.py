"""A model on disk, for anyone to use: safetensors, mask and manifest.

model.safetensors   every tensor by name, pruned weights zero: load it into plain PyTorch
kept.safetensors    `values`, the kept values as they travelled, and `mask`, packed bits
mask.bin            packed mask bits alone
manifest.json       names, shapes and roles
"""

import json
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest


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
        temporary = folder / f".{name}.new"
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / name)
