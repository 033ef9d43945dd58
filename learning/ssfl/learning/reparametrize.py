"""Training of parameters from which the weights of the network are computed in every step.

`replaced` lets a network use other tensors in place of its parameters. The parameters keep their
names and places, so that `train_locally`, the flat vector and the manifest do not change.

`PowerTask` trains w where the network uses sign(w) |w|^a (powerpropagation, Schwarz et al. 2021).
It can compute the gradients of weights from pruned inputs, as SparsyFed does (Guastella et al.
2025): the forward pass and the gradients of inputs use the full inputs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.conv import _ConvNd

from ssfl.learning.flatten import masked_parameters
from ssfl.learning.task import HasLoss
from ssfl.method.manifest import Manifest

# The layers that keep the weight and the input for the backward pass, and nothing else.
_PLAIN_LAYERS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d,
    nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_PLAIN = {kind.forward for kind in _PLAIN_LAYERS}


@contextmanager
def replaced(model: nn.Module, tensors: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Let every module of the model use `tensors[parameter]` in place of the parameter."""
    places = [
        (vars(module), name, tensors[parameter])
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        if parameter in tensors
    ]
    try:
        for attributes, name, tensor in places:
            attributes[name] = tensor  # is found before the module's parameters
        yield
    finally:
        for attributes, name, _ in places:
            attributes.pop(name, None)


def powered(weight: Tensor, exponent: float) -> Tensor:
    """Return sign(w) |w|^exponent; above 1, the gradient at an exact zero is exactly zero."""
    return weight if exponent == 1 else weight.sign() * weight.abs().pow(exponent)


class PowerTask:
    """A task whose loss is that of the powered weights.

    `inputs` says from which inputs a layer's weight gradient is computed: "batch": from the
    largest of each batch, as large a share of them as the layer has nonzero weights; "round": the
    same, but a convolution keeps the threshold of its first batch; "full": from all.
    """

    def __init__(self, task: HasLoss, manifest: Manifest, exponent: float, inputs: str) -> None:
        self._task = task
        self._manifest = manifest
        self._exponent = exponent
        self._inputs = inputs
        self._thresholds: dict[nn.Module, Tensor] = {}  # of convolutions, with "round"

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of the network with the powered weights."""
        parameters = [parameter for parameter, _ in masked_parameters(model, self._manifest)]
        weights = {parameter: powered(parameter, self._exponent) for parameter in parameters}
        with replaced(model, weights), self._pruned_inputs(model):
            return self._task.loss(model, x, y)

    @contextmanager
    def _pruned_inputs(self, model: nn.Module) -> Iterator[None]:
        """Prune the inputs of layers with replaced weights, except in layers of another kind."""
        layers = [
            module for module in model.modules()
            if type(module).forward in _PLAIN and "weight" in vars(module)
        ] if self._inputs != "full" else []  # fmt: skip
        try:
            for layer in layers:
                vars(layer)["forward"] = self._with_pruned_inputs(layer)
            yield
        finally:
            for layer in layers:
                vars(layer).pop("forward", None)

    def _with_pruned_inputs(self, layer: nn.Module) -> Callable[..., Tensor]:
        forward: Callable[..., Tensor] = layer.forward

        def call(x: Tensor, *more: Any) -> Tensor:
            weight: Tensor = vars(layer)["weight"]
            num_nonzero = int(torch.count_nonzero(weight))
            if num_nonzero == weight.numel():
                return forward(x, *more)
            threshold = self._thresholds.get(layer)
            if threshold is None:
                threshold = kept_from(x.detach(), num_nonzero, weight.numel())
            if self._inputs == "round" and isinstance(layer, _ConvNd):
                self._thresholds[layer] = threshold

            def keep_largest(saved: Tensor) -> Tensor:
                """Prune what the backward pass keeps of the input; leave the weight."""
                if saved.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr():
                    return saved
                kept = saved.detach()
                return kept * (kept.abs() >= threshold)

            with saved_tensors_hooks(keep_largest, lambda saved: saved):
                return forward(x, *more)

        return call


def kept_from(x: Tensor, share: int, of: int) -> Tensor:
    """Return the smallest magnitude among the ceil(size * share / of) largest, at least one."""
    sizes = x.abs().flatten()
    count = max(1, -(-sizes.numel() * share // of))
    return sizes.kthvalue(sizes.numel() - count + 1).values
