"""Reading a model that a run left: nothing is used before its digests are checked.

A model is a folder of a finished run (`ssfl.method.model_files` says what is in it) or one
safetensors file. A file that has a manifest in its metadata, as `ssfl model export` and `ssfl init`
write it, stands alone; any other needs `manifest.json` and `mask.bin` beside it.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from ssfl.method.errors import ManifestError, MethodError, ModelFileError
from ssfl.method.manifest import MAX_MANIFEST_BYTES, Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.program.exits import ExitCode, ProgramError

log = logging.getLogger("ssfl.tools")

MODEL, MANIFEST, MASK = "model.safetensors", "manifest.json", "mask.bin"
LEFT = (
    f"a finished run leaves {MODEL}, {MANIFEST} and {MASK} in runs/<run>/coordinator/ and, at "
    "every site, in runs/<run>/<client>/"
)
SHOWN = 12  # models listed before "…"
_RUNS = Path("runs")

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class FinalModel:
    """A model as its files hold it."""

    path: Path  # the safetensors file
    manifest: Manifest
    mask: Mask
    vector: Vector  # (manifest.size,) pruned weights zero
    digests: Mapping[str, str]  # of manifest, mask and values, as write_model names them


def read_model(where: Path) -> FinalModel:
    """Return the model in a folder or file; ProgramError says what is wrong and what would do."""
    try:
        return _read(_find(where))
    except MethodError as error:
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error
    except OSError as error:
        raise ProgramError(f"cannot read {where}: {error}", ExitCode.BAD_DATA) from error


def _find(where: Path) -> Path:
    if where.is_file():
        return where
    if not where.exists():
        raise ModelFileError(f"there is no {where}: {LEFT}{_nearby(where)}")
    missing = [name for name in (MODEL, MANIFEST, MASK) if not (where / name).is_file()]
    if missing:
        raise ModelFileError(f"{where} holds no {missing[0]}: {LEFT}{_nearby(where)}")
    return where / MODEL


def _nearby(where: Path) -> str:
    """Return where there are models: below the folder that was named, or else below runs/."""
    for folder in (where, _RUNS):
        below = (file for depth in ("*", "*/*") for file in folder.glob(f"{depth}/{MODEL}"))
        found = [str(file.parent) for file in islice(below, SHOWN + 1)]
        if found:
            more = " …" if len(found) > SHOWN else ""
            return f"; there are: {', '.join(sorted(found)[:SHOWN])}{more}"
    return ""


def _read(path: Path) -> FinalModel:
    try:
        with safe_open(path, framework="numpy") as file:
            told = _metadata(path, file.metadata() or {})
            stands_alone = "manifest" in told
            text = told.get("manifest", "").encode() if stands_alone else _beside(path)
            manifest = _manifest(path if stands_alone else path.with_name(MANIFEST), text)
            _check_digest(path, told, "manifest_digest", manifest.digest.hex())
            for wrong in _differences(file, manifest):
                raise ModelFileError(f"{path} does not fit its manifest: {wrong}")
            names = [tensor.name for tensor in manifest.tensors]
            vector = manifest.flatten({name: file.get_tensor(name) for name in names})
    except SafetensorError as error:
        raise ModelFileError(f"{path} cannot be read as safetensors: {error}") from error
    if not np.isfinite(vector).all():
        where = manifest.tensor_at(int(np.flatnonzero(~np.isfinite(vector))[0]))
        raise ModelFileError(f"{path}: {where} holds NaN or infinity")
    mask = _mask_of(manifest, vector) if stands_alone else _mask(path, manifest, vector)
    computed = {
        "manifest_digest": manifest.digest.hex(),
        "mask_digest": mask.digest.hex(),
        "model_digest": values_digest(mask.gather(vector)).hex(),
    }
    if stands_alone and told.get("mask_digest", mask.digest.hex()) != mask.digest.hex():
        # It has no mask but its zeros: another one than the run's if a kept weight is zero, too.
        log.warning("%s: not checked: a kept weight is zero, or the file is damaged", path)
        return FinalModel(path, manifest, mask, vector, computed)
    for name, digest in computed.items():
        _check_digest(path, told, name, digest)
    return FinalModel(path, manifest, mask, vector, computed)


def _metadata(path: Path, metadata: Mapping[str, str]) -> dict[str, str]:
    """Return what a file of ours says of itself; nothing if it is not one of ours."""
    try:
        told: Any = json.loads(metadata.get("ssfl", "{}"))
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or not all(isinstance(one, str) for one in told.values()):
        raise ModelFileError(f"{path}: its metadata is damaged")
    return told


def _beside(path: Path) -> bytes:
    for name in (MANIFEST, MASK):
        if not path.with_name(name).is_file():
            raise ModelFileError(
                f"{path} has no manifest in its metadata and no {name} beside it: {LEFT}"
            )
    manifest = path.with_name(MANIFEST)
    if manifest.stat().st_size > MAX_MANIFEST_BYTES:
        raise ModelFileError(f"{manifest} is no manifest: more than {MAX_MANIFEST_BYTES} bytes")
    return manifest.read_bytes()


def _manifest(where: Path, text: bytes) -> Manifest:
    try:
        return Manifest.from_json(text)
    except ManifestError as error:
        raise ModelFileError(f"{where} is damaged: {error}") from error


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


def _mask(path: Path, manifest: Manifest, vector: Vector) -> Mask:
    """Return the mask beside the model; every weight off it must be zero."""
    file = path.with_name(MASK)
    if file.stat().st_size != (manifest.num_masked + 7) // 8:
        raise ModelFileError(
            f"{file} is damaged: {file.stat().st_size} bytes for {manifest.num_masked} weights"
        )
    try:
        mask = Mask(file.read_bytes(), manifest.num_masked)
    except ValueError as error:
        raise ModelFileError(f"{file} is damaged: {error}") from error
    astray = np.flatnonzero(vector[: mask.size] * ~mask.bools())
    if astray.size:
        where = manifest.tensor_at(int(astray[0]))
        raise ModelFileError(f"{path} does not fit {file}: a pruned weight of {where} is not zero")
    return mask


def _mask_of(manifest: Manifest, vector: Vector) -> Mask:
    return Mask.from_bools(vector[: manifest.num_masked].view(np.uint32) != 0)  # -0.0 was kept


def _check_digest(path: Path, told: Mapping[str, str], name: str, found: str) -> None:
    if told.get(name, found) != found:
        what = {"model_digest": "values"}.get(name, name.removesuffix("_digest"))
        raise ModelFileError(
            f"{path}: the digest of its {what} is {found[:12]}, but should be "
            f"{told[name][:12]}: a file is damaged, or from another run"
        )
