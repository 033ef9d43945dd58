"""Plain SGD with the bits of `torch.optim.SGD`, without its start-up cost.

Torch's class imports torch's compiler when it is first used, which takes 1.5 s of CPU in every
client process. The function below it, which torch exports, does not.
"""

import torch
from torch import nn
from torch.optim.sgd import sgd


class Sgd:
    """The optimiser of one round; momentum starts at zero."""

    def __init__(self, model: nn.Module, *, momentum: float, weight_decay: float) -> None:
        self.parameters = list(model.parameters())
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._buffers: dict[nn.Parameter, torch.Tensor | None] = {}

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every parameter that has a gradient."""
        moved = [parameter for parameter in self.parameters if parameter.grad is not None]
        buffers = [self._buffers.get(parameter) for parameter in moved]
        sgd(
            list(moved),
            [parameter.grad for parameter in moved if parameter.grad is not None],
            buffers,
            foreach=False,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._buffers.update(zip(moved, buffers, strict=True))
