"""The manifest of a network: its tensors, their roles and their initial values.

- Weights of convolutions and linear layers are masked and start Kaiming normal,
  N(0, 2 / fan_in). Their biases are dense and start at zero. With the initialization
  `torch-default` both start as in torch, uniform within 1 / sqrt(fan_in), which equals its Kaiming
  uniform with a = sqrt(5). With `paper`, the weights of convolutions start Kaiming normal, and all
  others as in torch.
- Frozen weights are dense: without a gradient they would score zero and be pruned first.
- Scale and shift of norm layers are dense and start at one and zero.
- Embeddings are dense and start N(0, 1), as in torch.
- Running statistics are buffers. Counters (`num_batches_tracked`), the constants of a Normalize
  layer and buffers that a model does not save are left out: their average has no meaning.
- Any other parameter is dense, and its initial value is sent once: by the first client, or from
  the file of --init.

A parameter that two layers share appears once, under its first name and in its first role.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from ssfl.learning.errors import ModelError
from ssfl.learning.normalize import Normalize
from ssfl.method.image_settings import INITIALIZATIONS, KAIMING_NORMAL, PAPER
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec

_WEIGHTED = (_ConvNd, nn.Linear)
NORM_LAYERS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_SENT = Init("sent")


def manifest_of(
    model: nn.Module,
    description: Mapping[str, Any],
    *,
    own_weights: bool = False,
    initialization: str = KAIMING_NORMAL,
) -> Manifest:
    """Return the manifest of a model: parameters in the model's order, then buffers.

    `initialization`, one of INITIALIZATIONS, applies to conv and linear layers. With
    `own_weights` every tensor starts with the model's current values (such as those of a
    pretrained network), which are sent once instead of being computed from the seed.
    """
    if initialization not in INITIALIZATIONS:
        choices = ", ".join(INITIALIZATIONS)
        raise ModelError(f"the initialization must be one of {choices}, got {initialization!r}")
    owners = dict(model.named_modules())
    tensors = []
    for name, parameter in model.named_parameters():
        prefix, _, leaf = name.rpartition(".")
        _check(name, parameter)
        role, init = _parameter_rule(owners[prefix], leaf, parameter, initialization)
        tensors.append(TensorSpec(name, tuple(parameter.shape), role, init))
    for name, buffer, init in _running_statistics(model):
        _check(name, buffer)
        tensors.append(TensorSpec(name, tuple(buffer.shape), Role.BUFFER, init))
    if not any(tensor.role is Role.MASKED for tensor in tensors):
        raise ModelError("the model has no conv or linear weight to mask, or all are frozen")
    if own_weights:
        tensors = [TensorSpec(t.name, t.shape, t.role, _SENT) for t in tensors]
    return Manifest(tuple(tensors), description)


def num_frozen(model: nn.Module) -> int:
    """Return the number of frozen values of a model's parameters."""
    return sum(p.numel() for p in model.parameters() if not p.requires_grad)


def _parameter_rule(
    owner: nn.Module, leaf: str, parameter: Tensor, initialization: str
) -> tuple[Role, Init]:
    if isinstance(owner, _WEIGHTED) and leaf == "weight" and parameter.ndim >= 2:
        role = Role.MASKED if parameter.requires_grad else Role.DENSE
        is_conv = isinstance(owner, _ConvNd)
        if initialization == KAIMING_NORMAL or (initialization == PAPER and is_conv):
            return role, Init("normal", math.sqrt(2 / _fan_in(parameter)))
        return role, _torch_default(parameter)
    if isinstance(owner, _WEIGHTED) and leaf == "bias":
        weight = getattr(owner, "weight", None)
        if initialization != KAIMING_NORMAL and isinstance(weight, Tensor) and weight.ndim >= 2:
            return Role.DENSE, _torch_default(weight)
        return Role.DENSE, Init("zeros")
    if isinstance(owner, NORM_LAYERS) and leaf in ("weight", "bias"):
        return Role.DENSE, Init("ones" if leaf == "weight" else "zeros")
    if isinstance(owner, nn.Embedding) and owner.padding_idx is None and leaf == "weight":
        return Role.DENSE, Init("normal", 1.0)  # with a padding row of zeros it is sent
    return Role.DENSE, _SENT


def _fan_in(weight: Tensor) -> int:
    return math.prod(weight.shape[1:])


def _torch_default(weight: Tensor) -> Init:
    """Return torch's default rule for a layer's weight and bias."""
    return Init("uniform", 1 / math.sqrt(_fan_in(weight)))


def _running_statistics(model: nn.Module) -> Iterator[tuple[str, Tensor, Init]]:
    """Yield the floating-point buffers that the model saves."""
    owners, saved = dict(model.named_modules()), model.state_dict()
    for name, buffer in model.named_buffers():
        prefix, _, leaf = name.rpartition(".")
        is_constant = isinstance(owners[prefix], Normalize)
        if name not in saved or is_constant or not buffer.is_floating_point():
            continue
        is_norm = isinstance(owners[prefix], _NormBase)
        rules = {"running_mean": Init("zeros"), "running_var": Init("ones")} if is_norm else {}
        yield name, buffer, rules.get(leaf, _SENT)


def _check(name: str, tensor: Tensor) -> None:
    if isinstance(tensor, UninitializedParameter):
        raise ModelError(f"{name} has no shape yet: replace lazy layers by plain ones")
    if tensor.dtype != torch.float32:
        raise ModelError(f"{name} is {tensor.dtype}: build the model in float32")
    if tensor.numel() == 0:
        raise ModelError(f"{name} is empty: {tuple(tensor.shape)}")
