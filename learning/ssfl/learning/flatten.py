"""Conversion between a model's tensors and the flat vector of its manifest, bit for bit."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ssfl.learning.errors import ModelError
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest


def read_vector(model: nn.Module, manifest: Manifest) -> npt.NDArray[np.float32]:
    """Return a copy of the model's tensors as one vector, (manifest.size,)."""
    named = named_tensors(model, manifest)
    return manifest.flatten({name: t.detach().cpu().numpy() for name, t in named.items()})


def initial_weights(model: nn.Module, manifest: Manifest, seed: int) -> npt.NDArray[np.float32]:
    """Return the initial vector: from the seed, or from the model for tensors that are sent."""
    vector = initial_vector(manifest, seed)
    if not manifest.rebuildable:
        own = read_vector(model, manifest)
        for tensor in manifest.tensors:
            if tensor.init.rule == "sent":
                vector[manifest.slices[tensor.name]] = own[manifest.slices[tensor.name]]
    return vector


def write_vector(model: nn.Module, manifest: Manifest, vector: npt.NDArray[np.float32]) -> None:
    """Set the model's tensors, on any device, from a vector (manifest.size,)."""
    named = named_tensors(model, manifest)
    owned = vector if vector.flags.writeable else vector.copy()  # torch warns of read-only arrays
    with torch.no_grad():
        for name, array in manifest.unflatten(owned).items():
            named[name].copy_(torch.from_numpy(array))


def masked_parameters(model: nn.Module, manifest: Manifest) -> Iterator[tuple[Tensor, slice]]:
    """Yield each masked parameter with its place among the masked coordinates."""
    named = named_tensors(model, manifest)
    for tensor, place in manifest.masked():
        yield named[tensor.name], place


def named_tensors(model: nn.Module, manifest: Manifest) -> dict[str, Tensor]:
    """Return the model's tensors that the manifest names; raise ModelError if one does not fit."""
    present: dict[str, Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
    for tensor in manifest.tensors:
        if tensor.name not in present:
            raise ModelError(f"the model has no tensor {tensor.name}, which its manifest names")
        shape = tuple(present[tensor.name].shape)
        if shape != tensor.shape:
            raise ModelError(f"{tensor.name} has shape {shape}, its manifest says {tensor.shape}")
    return {tensor.name: present[tensor.name] for tensor in manifest.tensors}
