"""Pretrained weights, copied into a task's model by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ssfl.learning.errors import ModelError
from ssfl.learning.flatten import named_tensors
from ssfl.method.manifest import Manifest, format_shape

_CONVERT = (
    'convert it once: python -c "import torch, safetensors.torch as s; '
    "s.save_file(torch.load('{0}', weights_only=True), '{1}')\""
)


@dataclass(frozen=True, slots=True)
class CopiedWeights:
    """The tensors of a file that were copied, and those that were not."""

    used: tuple[str, ...]
    missing: tuple[str, ...]  # tensors of the model that were not copied
    unused: Mapping[str, str]  # tensors of the file that were not copied, with the reason


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; raise ModelError if it cannot be read."""
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        convert = _CONVERT.format(path, path.with_suffix(".safetensors"))
        raise ModelError(f"{path} is not safetensors, the only supported format; {convert}")
    try:
        return load_file(path)
    except FileNotFoundError:
        raise ModelError(f"there is no file {path}") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read as safetensors: {error}") from error


def copy_weights(
    model: nn.Module, manifest: Manifest, weights: Mapping[str, Tensor]
) -> CopiedWeights:
    """Copy every tensor that the model has with the same name and shape; report the others."""
    mine, saved = named_tensors(model, manifest), model.state_dict()
    used, unused = dict[str, Tensor](), dict[str, str]()
    for name, tensor in weights.items():
        if name not in mine:
            if name not in saved:  # counters are in both, but not in the manifest
                unused[name] = "not in the model"
        elif tensor.shape != mine[name].shape:
            theirs, ours = format_shape(tensor.shape), format_shape(mine[name].shape)
            unused[name] = f"{theirs} in the file and {ours} in the model"
        else:
            used[name] = _float32(name, tensor)
    with torch.no_grad():
        for name, tensor in used.items():
            mine[name].copy_(tensor)
    missing = tuple(name for name in mine if name not in used)
    return CopiedWeights(tuple(used), missing, unused)


def _float32(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor as float32; raise ModelError unless every value is finite."""
    if not bool(tensor.isfinite().all()):
        raise ModelError(f"{name} holds NaN or infinity in the file")
    cast = tensor.to(torch.float32)
    if not bool(cast.isfinite().all()):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ModelError(
            f"{name} holds {tensor.abs().max().item():g} in the file, a {kind} that is too large "
            "for float32"
        )
    return cast
