"""One network that computes many clients' copies of a model.

The clients are stacked along the channels: a tensor (batch, channels, ...) of the model becomes
(batch, clients * channels, ...), with a client's channels next to each other. Code that treats
all channels alike, such as activations, pooling, `flatten(1)` and the sums of a ResNet, stays the
model's own. Only layers with numbers for each channel are replaced: a convolution by one with a
group per client, a linear layer by a batched product. `trial.py` tests that a model's code treats
channels alike.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssfl.learning.errors import ModelError
from ssfl.learning.normalize import Normalize
from ssfl.method.manifest import Manifest


class StackedLayer(nn.Module):
    """A layer of the model for many clients; `weight` and `bias` have shape (clients, *shape)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = [layer]  # in a list, so that its parameters are not registered here
        self.weight = torch.empty(0)
        self.bias: Tensor | None = None


class StackedConv(StackedLayer):
    """A convolution with a group of channels for each client."""

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer[0]
        assert isinstance(layer, nn.Conv2d)
        bias = None if self.bias is None else self.bias.flatten()
        groups = layer.groups * len(self.weight)
        return functional.conv2d(
            x, self.weight.flatten(0, 1), bias, layer.stride, layer.padding, layer.dilation, groups
        )


class StackedLinear(StackedLayer):
    """A linear layer from (batch, clients * in) to (batch, clients * out)."""

    def forward(self, x: Tensor) -> Tensor:
        batch, clients = len(x), len(self.weight)
        x = x.view(batch, clients, -1).permute(1, 2, 0)
        # The weight comes first, so that its gradient has the same memory layout.
        if self.bias is None:
            out = torch.bmm(self.weight, x)
        else:
            out = torch.baddbmm(self.bias.unsqueeze(2), self.weight, x)
        return out.permute(2, 0, 1).reshape(batch, -1)


class StackedGroupNorm(StackedLayer):
    """A GroupNorm with the layer's groups for each client."""

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer[0]
        assert isinstance(layer, nn.GroupNorm)
        groups = layer.num_groups * len(self.weight)
        bias = None if self.bias is None else self.bias.flatten()
        return functional.group_norm(x, groups, self.weight.flatten(), bias, layer.eps)


class StackedNormalize(StackedLayer):
    """The statistics of each channel for each client; it has no weights."""

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer[0]
        assert isinstance(layer, Normalize)
        rows, channels, *side = x.shape
        count = len(layer.mean)
        out: Tensor = layer(x.view(rows, channels // count, count, *side))
        return out.flatten(1, 2)


_STACKED: dict[type[nn.Module], type[StackedLayer]] = {
    nn.Conv2d: StackedConv,
    nn.Linear: StackedLinear,
    nn.GroupNorm: StackedGroupNorm,
    Normalize: StackedNormalize,
}


class StackedModel:
    """A copy of the model that computes the outputs of many clients at once."""

    def __init__(self, model: nn.Module, manifest: Manifest) -> None:
        """Replace the layers with weights; raise ModelError if one cannot be replaced."""
        self._model = deepcopy(model)
        self._manifest = manifest
        places: dict[str, tuple[StackedLayer, str]] = {}
        for name, layer in list(self._model.named_modules()):
            own = [leaf for leaf, _ in layer.named_parameters(recurse=False)]
            if own or isinstance(layer, Normalize):
                stacked = self._replace(name, layer)
                places |= {f"{name}.{leaf}".lstrip("."): (stacked, leaf) for leaf in own}
        if places.keys() != manifest.slices.keys():
            raise ModelError("models with buffers or shared weights cannot be stacked")
        self._places = [places[tensor.name] for tensor in manifest.in_vector_order()]

    def _replace(self, name: str, layer: nn.Module) -> StackedLayer:
        if type(layer) not in _STACKED:
            raise ModelError(f"{name or 'the model'}: a {type(layer).__name__} cannot be stacked")
        stacked = _STACKED[type(layer)](layer)
        if not name:
            self._model = stacked
        else:
            parent, _, leaf = name.rpartition(".")
            setattr(self._model.get_submodule(parent), leaf, stacked)
        return stacked

    def set_weights(self, weights: Tensor) -> list[Tensor]:
        """Use the rows of a matrix (clients, size); return the tensors to differentiate by.

        They are views: when the matrix changes, the model changes.
        """
        leaves = []
        tensors = self._manifest.in_vector_order()
        for tensor, (layer, leaf) in zip(tensors, self._places, strict=True):
            columns = weights[:, self._manifest.slices[tensor.name]]
            leaves.append(columns.view(len(weights), *tensor.shape).detach().requires_grad_())
            setattr(layer, leaf, leaves[-1])
        return leaves

    def train(self, mode: bool = True) -> None:
        """Set training mode, or eval mode if `mode` is False."""
        self._model.train(mode)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs (batch, clients, out) for samples (batch, clients, ...)."""
        batch, clients = x.shape[:2]
        x = x.flatten(1, 2)
        if x.ndim == 4:  # much faster for convolutions with many groups
            x = x.contiguous(memory_format=torch.channels_last)
        out: Tensor = self._model(x)
        return out.view(batch, clients, -1)
