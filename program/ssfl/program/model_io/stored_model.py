"""Reading a model file: every digest that it tells is checked before anything is used.

A safetensors file that has a manifest in its metadata, as `ssfl model export` and `ssfl init`
write it, stands alone; any other needs `manifest.json` and `mask.bin` beside it.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from ssfl.method.errors import ManifestError, ModelFileError
from ssfl.method.manifest import MAX_MANIFEST_BYTES, Manifest
from ssfl.method.mask import Mask
from ssfl.program.model_io.safetensors_model import MANIFEST, MASK, digests_of, mask_of

Vector = npt.NDArray[np.float32]

_MAKE_ONE = "make one with `ssfl init`"


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A model as its files hold it."""

    path: Path  # the safetensors file
    manifest: Manifest
    mask: Mask  # of a file alone that tells none: what is not zero
    vector: Vector  # (manifest.size,) pruned weights zero

    @cached_property
    def digests(self) -> dict[str, str]:
        """Of manifest, mask and values, as the metadata name them."""
        return digests_of(self.manifest, self.mask, self.mask.gather(self.vector))


def read_stored(path: Path) -> StoredModel:
    """Return the model of a file; ModelFileError says what is wrong with it."""
    return _read(path, alone=False)


def read_initial(path: Path) -> tuple[Manifest, Vector]:
    """Return manifest and weights of a model to begin with; the file must stand alone."""
    if not path.is_file():
        raise ModelFileError(f"there is no file {path}: {_MAKE_ONE}")
    model = _read(path, alone=True)
    return model.manifest, model.vector


def _read(path: Path, *, alone: bool) -> StoredModel:
    try:
        with safe_open(path, framework="numpy") as file:
            told = _told(path, file.metadata() or {})
            if alone and "manifest" not in told:
                raise ModelFileError(f"{path} holds no manifest: {_MAKE_ONE} --weights {path}")
            manifest = _manifest(path, told)
            _check_digest(path, told, "manifest_digest", manifest.digest.hex())
            vector = _vector(path, file, manifest)
        model = StoredModel(path, manifest, _mask(path, told, manifest, vector), vector)
    except SafetensorError as error:
        raise ModelFileError(f"{path} cannot be read as safetensors: {error}") from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from error
    for name, digest in model.digests.items():
        _check_digest(path, told, name, digest)
    return model


def _told(path: Path, metadata: Mapping[str, str]) -> dict[str, str]:
    """Return what a file of ours says of itself; nothing if it is not one of ours."""
    try:
        told: Any = json.loads(metadata.get("ssfl", "{}"))
    except (ValueError, RecursionError):
        told = None
    texts = told.values() if isinstance(told, dict) else [None]
    if not all(isinstance(one, str) and one.isprintable() for one in texts):
        raise ModelFileError(f"{path}: its metadata is damaged")
    assert isinstance(told, dict)
    return told


def _manifest(path: Path, told: Mapping[str, str]) -> Manifest:
    alone = "manifest" in told
    text = told["manifest"].encode() if alone else _manifest_beside(path)
    try:
        return Manifest.from_json(text)
    except ManifestError as error:
        where = f"the manifest in {path}" if alone else path.with_name(MANIFEST)
        raise ModelFileError(f"{where} is damaged: {error}") from error


def _manifest_beside(path: Path) -> bytes:
    for name in (MANIFEST, MASK):
        if not path.with_name(name).is_file():
            raise ModelFileError(
                f"{path} has no manifest in its metadata and no {name} beside it: a run leaves "
                "them in one folder"
            )
    file = path.with_name(MANIFEST)
    if file.stat().st_size > MAX_MANIFEST_BYTES:
        raise ModelFileError(f"{file} is no manifest: more than {MAX_MANIFEST_BYTES} bytes")
    return file.read_bytes()


def _vector(path: Path, file: Any, manifest: Manifest) -> Vector:
    for wrong in _differences(file, manifest):
        raise ModelFileError(f"{path} does not fit its manifest: {wrong}")
    names = [tensor.name for tensor in manifest.tensors]
    vector = manifest.flatten({name: file.get_tensor(name) for name in names})
    finite = np.isfinite(vector)
    if not finite.all():
        where = manifest.tensor_at(int(np.argmin(finite)))
        raise ModelFileError(f"{path}: {where} holds NaN or infinity")
    return vector


def _differences(file: Any, manifest: Manifest) -> Iterator[str]:
    """Say how the tensors of a file differ from the manifest, before one of them is read."""
    present = set(file.keys())
    for tensor in manifest.tensors:
        if tensor.name not in present:
            yield f"it has no tensor {tensor.name}"
            continue
        there = file.get_slice(tensor.name)
        shape, kind = tuple(there.get_shape()), there.get_dtype()
        if shape != tensor.shape:
            yield f"{tensor.name} has shape {shape}, not {tensor.shape}"
        elif kind != "F32":
            yield f"{tensor.name} is {kind}, not float32"
    for name in sorted(present - {tensor.name for tensor in manifest.tensors}):
        yield f"{name} is not in the manifest"


def _mask(path: Path, told: Mapping[str, str], manifest: Manifest, vector: Vector) -> Mask:
    """Return the mask that the file tells, or else the one beside it; off it all is zero."""
    alone = "manifest" in told
    if alone and "mask" not in told:
        return mask_of(manifest, vector)
    where = f"the mask in {path}" if alone else f"{path.with_name(MASK)}"
    try:
        bits = (
            base64.b64decode(told["mask"], validate=True)
            if alone
            else _mask_beside(path.with_name(MASK), manifest)
        )
        mask = Mask(bits, manifest.num_masked)
    except ValueError as error:
        raise ModelFileError(f"{where} is damaged: {error}") from error
    astray = np.flatnonzero(vector[: mask.size] * ~mask.bools())
    if astray.size:
        tensor = manifest.tensor_at(int(astray[0]))
        raise ModelFileError(
            f"{path} does not fit {where}: a pruned weight of {tensor} is not zero"
        )
    return mask


def _mask_beside(file: Path, manifest: Manifest) -> bytes:
    size = file.stat().st_size
    if size != (manifest.num_masked + 7) // 8:
        raise ValueError(f"{size} bytes do not hold {manifest.num_masked} bits")
    return file.read_bytes()


def _check_digest(path: Path, told: Mapping[str, str], name: str, found: str) -> None:
    if told.get(name, found) != found:
        what = {"model_digest": "values"}.get(name, name.removesuffix("_digest"))
        raise ModelFileError(
            f"{path}: the digest of its {what} is {found[:12]}, but should be "
            f"{told[name][:12]}: a file is damaged, or from another run"
        )
