"""Weights that were trained elsewhere, put into a task's model by their names."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ssfl.learning.errors import ModelError
from ssfl.learning.flatten import named_tensors
from ssfl.method.manifest import Manifest

_CONVERT = (
    'convert it once: python -c "import torch, safetensors.torch as s; '
    "s.save_file(torch.load('{0}', weights_only=True), '{1}')\""
)


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a file's tensors."""

    used: tuple[str, ...]
    missing: tuple[str, ...]  # of the model: not in the file
    unused: tuple[str, ...]  # of the file: not in the model, or of another shape; as sentences


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; ModelError says what is wrong with it."""
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        convert = _CONVERT.format(path, path.with_suffix(".safetensors"))
        raise ModelError(f"{path} is not safetensors, the one format that is read; {convert}")
    try:
        return load_file(path)
    except FileNotFoundError:
        raise ModelError(f"there is no file {path}") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read as safetensors: {error}") from error


def take_weights(model: nn.Module, manifest: Manifest, weights: Mapping[str, Tensor]) -> Taken:
    """Copy every tensor that the model has by the same name and shape; tell about the others."""
    mine, saved = named_tensors(model, manifest), model.state_dict()
    used, unused = [], []
    for name, tensor in weights.items():
        if name not in mine:
            if name not in saved:  # counters and the like are in both, and mean nothing here
                unused.append(f"{name} is not in the model")
        elif tensor.shape != mine[name].shape:
            theirs, ours = _times(tensor), _times(mine[name])
            unused.append(f"{name} is {theirs} in the file and {ours} in the model")
        elif not bool(tensor.isfinite().all()):
            raise ModelError(f"{name} holds NaN or infinity in the file")
        else:
            used.append(name)
    with torch.no_grad():
        for name in used:
            mine[name].copy_(weights[name])
    missing = [name for name in mine if name not in used]
    return Taken(tuple(used), tuple(missing), tuple(unused))


def _times(tensor: Tensor) -> str:
    return "x".join(str(n) for n in tensor.shape) or "scalar"
