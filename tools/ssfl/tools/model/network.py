"""Rebuilds the network of a stored model from its manifest, with the model's weights."""

import json
import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ssfl.datasets.shards.shard_file import Shard
from ssfl.method.errors import ModelFileError
from ssfl.method.manifest import MAX_DIMENSIONS, MAX_PARAMETERS
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode, ProgramError, usage_error
from ssfl.program.model_io.stored_model import StoredModel, apply_recorded, network_of
from ssfl.tools.model.build import placeholder_shard

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ssfl.learning.load_task import LoadedTask

HISTORY = "history.json"  # in the coordinator's folder, with the settings of the run


def task_of(final: StoredModel, spec: str) -> "LoadedTask":
    """Return the task of a model: a built-in one, or that of --task if the names match."""
    from ssfl.learning.load_task import BUILT_IN, IMAGE, load_task

    name = final.manifest.model.get("task", IMAGE)
    if not spec and name not in list(BUILT_IN):  # a name from a file may be unhashable
        raise usage_error(
            f"the model belongs to the task {name}: give its file, --task path/to/{name}.py"
        )
    task = load_task(spec or name)
    if task.name != name:
        text = f"the model belongs to the task {name}, but --task {spec} is the task {task.name}"
        raise ProgramError(text, ExitCode.BAD_DATA)
    return task


def build_network(
    final: StoredModel, task: "LoadedTask", shard: Shard, device: "torch.device"
) -> "nn.Module":
    """Return the task's network with the model's weights, in eval mode on a device."""
    import torch

    from ssfl.learning.flatten import write_vector
    from ssfl.learning.load_task import BUILT_IN

    settings = _settings(final)
    if task.name in BUILT_IN:
        with torch.device("meta"):  # shapes only: a model that is too large is refused first
            _check(final, task, settings, shard, task.build_model(settings, shard))
    model = task.build_model(settings, shard)
    _check(final, task, settings, shard, model)
    write_vector(model, final.manifest, final.vector)
    return model.to(device).eval()


def shard_of_zeros(final: StoredModel) -> Shard:
    """Return a sample of the model's input shape, for a network that depends on shapes alone."""
    shape, classes = (final.manifest.model.get(name) for name in ("input_shape", "num_classes"))
    sizes = shape if isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS else []
    if not sizes or not all(type(n) is int and n > 0 for n in sizes) or type(classes) is not int:
        raise ModelFileError(f"{final.path}: its manifest has no shape of a sample")
    if math.prod(sizes) > MAX_PARAMETERS:
        raise ModelFileError(f"{final.path}: its samples have more than {MAX_PARAMETERS} values")
    shard = placeholder_shard(tuple(sizes), classes)
    if classes or final.manifest.model.get("task") != "table":
        return shard
    last_layer = final.manifest.tensors[-1].size
    targets = np.zeros((1, last_layer), dtype=np.float32)
    return replace(shard, train_y=targets, val_y=targets[:0], test_y=targets[:0])


def _settings(final: StoredModel) -> RunSettings:
    """Return the known settings of the run; a user's task may read any of them."""
    recorded = {**_history(final), **network_of(final.manifest)}
    return apply_recorded(RunSettings(), recorded, final.path)


def _history(final: StoredModel) -> dict[str, Any]:
    """Return the unchecked settings in the history next to a model; {} without a history."""
    file = final.path.with_name(HISTORY)
    try:
        if not file.is_file():
            return {}
        history = json.loads(file.read_bytes())
        if history["model_digest"] != final.digests["model_digest"]:
            return {}
        ours = {field.name for field in fields(RunSettings)}
        return {name: value for name, value in history["settings"].items() if name in ours}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFileError(
            f"{file} is not the history of a run: {type(error).__name__}: {error}"
        ) from error


def _check(
    final: StoredModel, task: "LoadedTask", settings: RunSettings, shard: Shard, model: "nn.Module"
) -> None:
    """Raise ModelFileError with the first tensor that differs from the model's."""
    from ssfl.learning.describe import manifest_of

    built = manifest_of(model, task.description(settings, shard))
    # The rules of initialization do not matter any more.
    if wrong := final.manifest.first_difference(built, rules=False):
        raise ModelFileError(
            f"the network of the task {task.name} on these data differs from that of {final.path}: "
            f"{wrong}{_hint(final)}"
        )


def _hint(final: StoredModel) -> str:
    if "model" in final.manifest.model or final.path.with_name(HISTORY).is_file():
        return ""
    return (
        f". If build_model reads the run's settings, take the model from the coordinator's folder: "
        f"its {HISTORY} has them"
    )
