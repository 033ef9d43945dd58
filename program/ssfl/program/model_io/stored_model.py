"""Read model files: every recorded digest is verified before the model is used.

A safetensors file with a manifest in its metadata, as `ssfl model export` and `ssfl init` write
it, stands alone. Any other file needs `manifest.json` and `mask.bin` in its folder.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from ssfl.method.errors import ManifestError, ModelFileError, SettingsError
from ssfl.method.image_settings import NONE, constant_tensors
from ssfl.method.manifest import MAX_MANIFEST_BYTES, Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.program.model_io.safetensors_model import MANIFEST, MASK, digests_of, mask_of
from ssfl.strategies.registry import check_settings

Vector = npt.NDArray[np.float32]

# Settings that a built-in network was built with.
NETWORK = ("model", "norm", "width", "normalize")
_MAKE_ONE = "make one with `ssfl init`"


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A model read from its files."""

    path: Path  # the safetensors file
    manifest: Manifest
    mask: Mask  # the weights that are not zero, if the file has no mask
    vector: Vector  # (manifest.size,) pruned weights zero

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digests of manifest, mask and values by their names in the metadata."""
        return digests_of(self.manifest, self.mask, self.mask.gather(self.vector))


def read_stored(path: Path) -> StoredModel:
    """Return the model of a file; raise ModelFileError if it cannot be used."""
    return _read(path, alone=False)


def read_initial(path: Path) -> tuple[Manifest, Vector]:
    """Return manifest and weights of an initial model; the file must stand alone."""
    if not path.is_file():
        raise ModelFileError(f"there is no file {path}: {_MAKE_ONE}")
    model = _read(path, alone=True)
    return model.manifest, model.vector


def network_of(manifest: Manifest) -> dict[str, Any]:
    """Return the recorded settings of a built-in network, unchecked; empty for other networks."""
    recorded = {name: manifest.model[name] for name in NETWORK if name in manifest.model}
    return {"normalize": NONE, **recorded} if recorded else {}


def apply_recorded(settings: RunSettings, recorded: Mapping[str, Any], path: Path) -> RunSettings:
    """Return `settings` with recorded values; raise ModelFileError if one cannot be used."""
    try:
        for name, value in recorded.items():
            if type(value) is not type(getattr(settings, name)):
                raise SettingsError(f"{name} cannot be {value!r:.60}")
        changed = replace(settings, **recorded)
        check_settings(changed)
    except SettingsError as error:
        raise ModelFileError(
            f"{path}: the settings of its network cannot be used: {error}"
        ) from error
    return changed


def _read(path: Path, *, alone: bool) -> StoredModel:
    try:
        with safe_open(path, framework="numpy") as file:
            fields = _metadata_fields(path, file.metadata() or {})
            if alone and "manifest" not in fields:
                raise ModelFileError(f"{path} has no manifest: {_MAKE_ONE} --weights {path}")
            manifest = _manifest(path, fields)
            _check_digest(path, fields, "manifest_digest", manifest.digest.hex())
            vector = _vector(path, file, manifest)
        model = StoredModel(path, manifest, _mask(path, fields, manifest, vector), vector)
    except SafetensorError as error:
        raise ModelFileError(f"{path} cannot be read as safetensors: {error}") from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from error
    for name, digest in model.digests.items():
        _check_digest(path, fields, name, digest)
    return model


def _metadata_fields(path: Path, metadata: Mapping[str, str]) -> dict[str, str]:
    """Return ssfl's fields of the metadata; empty if another program wrote the file."""
    try:
        fields: Any = json.loads(metadata.get("ssfl", "{}"))
    except (ValueError, RecursionError):
        fields = None
    texts = fields.values() if isinstance(fields, dict) else [None]
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise ModelFileError(f"{path}: its metadata is damaged")
    assert isinstance(fields, dict)
    return fields


def _manifest(path: Path, fields: Mapping[str, str]) -> Manifest:
    alone = "manifest" in fields
    text = fields["manifest"].encode() if alone else _manifest_in_folder(path)
    try:
        return Manifest.from_json(text)
    except ManifestError as error:
        where = f"the manifest in {path}" if alone else path.with_name(MANIFEST)
        raise ModelFileError(f"{where} is damaged: {error}") from error


def _manifest_in_folder(path: Path) -> bytes:
    for name in (MANIFEST, MASK):
        if not path.with_name(name).is_file():
            raise ModelFileError(
                f"{path} has no manifest in its metadata and no {name} next to it: a run writes "
                "them into one folder"
            )
    file = path.with_name(MANIFEST)
    if file.stat().st_size > MAX_MANIFEST_BYTES:
        raise ModelFileError(f"{file} is not a manifest: more than {MAX_MANIFEST_BYTES} bytes")
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
    """Yield how the tensors of a file differ from the manifest, before any is read."""
    present = set(file.keys())
    for tensor in manifest.tensors:
        if tensor.name not in present:
            yield f"it has no tensor {tensor.name}"
            continue
        stored = file.get_slice(tensor.name)
        shape, kind = tuple(stored.get_shape()), stored.get_dtype()
        if shape != tensor.shape:
            yield f"{tensor.name} has shape {shape}, not {tensor.shape}"
        elif kind != "F32":
            yield f"{tensor.name} is {kind}, not float32"
    constants = constant_tensors(manifest.model)
    for name in sorted(present - {tensor.name for tensor in manifest.tensors}):
        if name not in constants:
            yield f"{name} is not in the manifest"
        elif not np.array_equal(file.get_tensor(name), constants[name]):
            yield f"{name} has other numbers than the manifest"


def _mask(path: Path, fields: Mapping[str, str], manifest: Manifest, vector: Vector) -> Mask:
    """Return the mask in the metadata or in mask.bin; raise if a pruned weight is not zero."""
    alone = "manifest" in fields
    if alone and "mask" not in fields:
        return mask_of(manifest, vector)
    where = f"the mask in {path}" if alone else f"{path.with_name(MASK)}"
    try:
        if alone:
            bits = base64.b64decode(fields["mask"], validate=True)
        else:
            size = path.with_name(MASK).stat().st_size
            if size != (manifest.num_masked + 7) // 8:
                raise ValueError(f"{size} bytes do not hold {manifest.num_masked} bits")
            bits = path.with_name(MASK).read_bytes()
        mask = Mask(bits, manifest.num_masked)
    except ValueError as error:
        raise ModelFileError(f"{where} is damaged: {error}") from error
    not_zero = np.flatnonzero(vector[: mask.size] * ~mask.bools())
    if not_zero.size:
        tensor = manifest.tensor_at(int(not_zero[0]))
        problem = f"a pruned weight of {tensor} is not zero"
        raise ModelFileError(f"{path} does not fit {where}: {problem}")
    return mask


def _check_digest(path: Path, fields: Mapping[str, str], name: str, found: str) -> None:
    if fields.get(name, found) != found:
        what = {"model_digest": "values"}.get(name, name.removesuffix("_digest"))
        raise ModelFileError(
            f"{path}: the digest of its {what} is {found[:12]}, but should be "
            f"{fields[name][:12]}: a file is damaged, or from another run"
        )
