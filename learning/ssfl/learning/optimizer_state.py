"""The state of an optimizer as named float32 vectors, to keep it from one round to the next.

A tensor of the state that has the shape of its weight is part of a vector (manifest.size,), with
zeros for buffers and for parameters without a state. A single number, such as the number of steps,
is part of a vector with one number for each parameter. The state of pruned weights is kept as it
is: their gradients are zero, and a later mask may keep them.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ssfl.learning.errors import ModelError
from ssfl.learning.flatten import named_tensors
from ssfl.learning.optimizers import Optimizer, State, optimizer_for
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings

Vector = npt.NDArray[np.float32]

_HELD = "optimizer.held"  # ones for the parameters that have a state


class StateMemory(Protocol):
    """The part of a client's memory that keeps the state of its optimizer."""

    def vector(self, name: str) -> Vector | None: ...
    def put(self, name: str, value: Vector) -> None: ...


def save_state(
    optimizer: Optimizer,
    model: nn.Module,
    manifest: Manifest,
    settings: RunSettings,
    memory: StateMemory,
) -> None:
    """Put the state into a memory; raise ModelError if a tensor of it has another shape."""
    state, parameters = optimizer.state, dict(model.named_parameters())
    held = [parameter in state for parameter in parameters.values()]
    memory.put(_HELD, np.array(held, dtype=np.float32))
    for key, is_whole in _parts(settings).items():
        if is_whole:
            arrays = {
                name: np.zeros(tuple(tensor.shape), dtype=np.float32)
                for name, tensor in named_tensors(model, manifest).items()
            }
            for name, parameter in parameters.items():
                if parameter in state:
                    arrays[name] = state[parameter][key].cpu().numpy()
            memory.put(_name(key), manifest.flatten(arrays))
        else:
            numbers = [float(state[p][key]) if p in state else 0.0 for p in parameters.values()]
            memory.put(_name(key), np.array(numbers, dtype=np.float32))


def load_state(
    optimizer: Optimizer,
    model: nn.Module,
    manifest: Manifest,
    settings: RunSettings,
    memory: StateMemory,
) -> None:
    """Continue from the state in a memory, if it has one; raise ModelError if it does not fit."""
    parameters, parts = dict(model.named_parameters()), _parts(settings)
    held = memory.vector(_HELD)
    if held is None:
        return
    vectors = {
        key: _fitting(memory.vector(_name(key)), manifest.size if is_whole else len(parameters))
        for key, is_whole in parts.items()
    }
    wholes = {key: manifest.unflatten(vectors[key]) for key, is_whole in parts.items() if is_whole}
    state: State = {}
    for place, (name, parameter) in enumerate(parameters.items()):
        if not _fitting(held, len(parameters))[place]:
            continue
        numbers = {key: float(vectors[key][place]) for key in vectors.keys() - wholes.keys()}
        state[parameter] = {key: torch.tensor(number) for key, number in numbers.items()}
        for key, arrays in wholes.items():
            tensor = torch.zeros_like(parameter, requires_grad=False)
            state[parameter][key] = tensor.copy_(torch.from_numpy(arrays[name].copy()))
    optimizer.set_state(state)


def _parts(settings: RunSettings) -> Mapping[str, bool]:
    """Return the parts of a state by name; True if a part has the shape of the weight."""
    weight = nn.Parameter(torch.zeros(2, 3))
    weight.grad = torch.ones(2, 3)
    optimizer = optimizer_for([weight], settings)
    optimizer.step(1.0)
    shapes = {key: tensor.shape for key, tensor in optimizer.state.get(weight, {}).items()}
    if odd := [key for key, shape in shapes.items() if shape not in ((), weight.shape)]:
        raise ModelError(
            f"--optimizer-state keep is not available with {settings.optimizer}: its {odd[0]} has "
            "another shape than the weight. Choose another --optimizer, or restart"
        )
    return {key: shape == weight.shape for key, shape in sorted(shapes.items())}


def _name(key: str) -> str:
    return f"optimizer.{key}"


def _fitting(vector: Vector | None, size: int) -> Vector:
    if vector is None or vector.shape != (size,):
        raise ModelError("the optimizer's state at this client is of another model or optimizer")
    return vector
