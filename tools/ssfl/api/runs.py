"""What real runs left on disk: their history as arrays, their model as a torch module."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from torch import nn

from ssfl.api.errors import RunError, in_keywords
from ssfl.api.history import RunHistory
from ssfl.learning.describe import manifest_of
from ssfl.learning.flatten import write_vector
from ssfl.learning.load_task import IMAGE, LoadedTask, load_task
from ssfl.method.errors import ManifestError, ModelFileError
from ssfl.method.manifest import MAX_MANIFEST_BYTES, Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.method.settings import RunSettings
from ssfl.tools.building import stand_in

HISTORY = "history.json"
MODEL = "model.safetensors"


def read_run(folder: str | Path) -> RunHistory:
    """Return the history of a run: of `runs/<run>`, its `coordinator` folder or `history.json`.

    Raises RunError if there is none. The coordinator writes it when the run ends.
    """
    path = _find(Path(folder), HISTORY)
    if path is None:
        raise RunError(f"{folder} holds no {HISTORY}{_hint(Path(folder))}")
    return RunHistory.of(_document(path))


def load_model(folder: str | Path, task: str | Path = IMAGE) -> nn.Module:
    """Return the final model of a run, from the coordinator's or a client's folder, in eval mode.

    `task` is the one the run had. Raises ModelFileError if files are missing, damaged or do not
    belong together, TaskError or ModelError if the task does not build this model.
    """
    path = _find(Path(folder), MODEL)
    if path is None:
        raise ModelFileError(f"{folder} holds no {MODEL}{_hint(Path(folder))}")
    manifest, vector, digest = _read_model(path.parent)
    beside = path.with_name(HISTORY)
    if beside.is_file() and _document(beside)["model_digest"] != digest:
        raise ModelFileError(f"{beside} speaks of another model than {path}")
    with in_keywords():
        loaded = load_task(str(task))
        model = _build(loaded, manifest, path.parent)
        write_vector(model, manifest, vector)
    return model.eval()


def _find(folder: Path, name: str) -> Path | None:
    places = (folder, folder / name, folder / "coordinator" / name)
    return next((one for one in places if one.name == name and one.is_file()), None)


def _hint(folder: Path) -> str:
    """Say where a run may be instead."""
    if not folder.exists():
        return ": there is no such folder"
    if _find(folder.parent, HISTORY):
        return f": {folder.parent} does"
    runs = sorted(one.parents[1].name for one in folder.glob(f"*/coordinator/{HISTORY}"))
    if runs:
        more = f" … ({len(runs)} in all)" if len(runs) > 5 else ""
        return f", but runs that do: {', '.join(runs[:5])}{more}"
    return ": a run's results are in runs/<run>/coordinator, once it has ended"


def _document(path: Path) -> dict[str, Any]:
    """Return a history document of which every part can be used."""
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != 1:
            raise RunError(f"{path} is in format {document['format']}; this program reads 1")
        RunHistory.of(document)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} is not the history of a run: {type(error).__name__}: {error}"
        ) from error
    assert isinstance(document, dict)
    return document


def _read_model(folder: Path) -> tuple[Manifest, npt.NDArray[np.float32], str]:
    """Return manifest, flat vector and digest of a final model; every digest was compared."""
    try:
        if (folder / "manifest.json").stat().st_size > MAX_MANIFEST_BYTES:
            raise ManifestError("it is too large")
        manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
        mask = Mask((folder / "mask.bin").read_bytes(), manifest.num_masked)
        with safe_open(folder / MODEL, framework="numpy") as file:
            told = json.loads((file.metadata() or {}).get("ssfl", "{}"))
            names = {tensor.name for tensor in manifest.tensors}
            if odd := sorted(names ^ set(file.keys())):
                raise ValueError(f"its manifest and its tensors differ, first in {odd[0]}")
            vector = manifest.flatten({name: file.get_tensor(name) for name in names})
    except (ManifestError, SafetensorError, OSError, ValueError, TypeError) as error:
        raise ModelFileError(f"{folder} holds no model of a run: {error}") from error
    values = mask.gather(vector)
    found = {
        "manifest_digest": manifest.digest.hex(),
        "mask_digest": mask.digest.hex(),
        "model_digest": values_digest(values).hex(),
    }
    for name, digest in found.items():
        if told.get(name) != digest:
            raise ModelFileError(
                f"{folder} is damaged: {MODEL} tells {name} {told.get(name)}, found was {digest}"
            )
    if not np.array_equal(mask.scatter(values), vector):
        raise ModelFileError(f"{folder} is damaged: a pruned weight is not zero")
    return manifest, vector, found["model_digest"]


def _build(task: LoadedTask, manifest: Manifest, folder: Path) -> nn.Module:
    description = manifest.model
    if description.get("task") != task.name:
        raise ModelFileError(
            f"the model was made by the task {description.get('task')!r}, not {task.name!r}: "
            "give that one as task="
        )
    try:
        shard = stand_in(tuple(description["input_shape"]), int(description["num_classes"]))
    except (LookupError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{folder}: the manifest does not tell how the model was built ({error})"
        ) from error
    model = task.build_model(_settings(manifest, folder), shard)
    built = manifest_of(model, description, own_weights=task.own_weights).with_rules_of(manifest)
    if built.digest != manifest.digest:
        raise ModelFileError(
            f"the task {task.name} builds another model: {manifest.first_difference(built)}"
        )
    return model


def _settings(manifest: Manifest, folder: Path) -> RunSettings:
    """Return the run's settings; a client's folder knows those of a built-in network only."""
    known = {one.name for one in fields(RunSettings)}
    path = folder / HISTORY
    told = _document(path)["settings"] if path.is_file() else manifest.model
    return RunSettings(**{name: told[name] for name in known & set(told)})
