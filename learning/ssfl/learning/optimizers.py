"""The optimizer of a round of local training: SGD, or any other of torch.optim.

Every round has a new optimizer with a new state (optimizer_state.py can restore the old one).
Training masks the gradients before a step and the weights after it, so an optimizer knows nothing
of masks.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from ssfl.learning.errors import ModelError
from ssfl.method.optimizers import SGD, WITH_MOMENTUM, WITHOUT_WEIGHT_DECAY, parse_options
from ssfl.method.settings import RunSettings

State = dict[nn.Parameter, dict[str, Tensor]]


class Sgd:
    """SGD with the bits of `torch.optim.SGD`; momentum starts at zero.

    Torch's class imports torch's compiler when it is first used, which takes 1.5 s of CPU in every
    client process. The function below it, which torch exports, does not.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        *,
        momentum: float,
        weight_decay: float,
        dampening: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        self.parameters = parameters
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._dampening = dampening
        self._nesterov = nesterov
        self._buffers: dict[nn.Parameter, Tensor | None] = {}

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
            dampening=self._dampening,
            nesterov=self._nesterov,
            maximize=False,
        )
        self._buffers.update(zip(moved, buffers, strict=True))

    @property
    def state(self) -> State:
        """The tensors that steps leave for later steps."""
        held = {p: buffer for p, buffer in self._buffers.items() if buffer is not None}
        return {p: {"momentum_buffer": buffer} for p, buffer in held.items()}

    def set_state(self, state: State) -> None:
        self._buffers = {p: tensors["momentum_buffer"] for p, tensors in state.items()}


class TorchOptimizer:
    """An optimizer of torch.optim; every step has its own learning rate."""

    def __init__(self, parameters: list[nn.Parameter], name: str, **options: Any) -> None:
        """Raise ModelError if torch does not have it, or cannot use it for these parameters."""
        classes = {key.lower(): kind for key, kind in vars(torch.optim).items() if key[0].isupper()}
        if name not in classes:
            raise ModelError(
                f"torch {torch.__version__} has no optimizer {name}: install a newer torch at this "
                "site, or choose another --optimizer"
            )
        self.parameters = parameters
        if name == "muon" and (others := [p for p in parameters if p.ndim != 2]):
            raise ModelError(
                f"--optimizer muon trains matrices only, and {len(others)} tensors of the model "
                "have another shape: choose another, or use it in the task's own fit"
            )
        try:
            self._optimizer = classes[name](parameters, **options)
        except (TypeError, ValueError) as error:
            raise ModelError(f"--optimizer {name}: {error}") from error

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def step(self, lr: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()

    @property
    def state(self) -> State:
        return {p: dict(tensors) for p, tensors in self._optimizer.state.items()}

    def set_state(self, state: State) -> None:
        self._optimizer.state.update(state)


Optimizer = Sgd | TorchOptimizer


class StepTaker(Protocol):
    """What training needs of an optimizer."""

    @property
    def parameters(self) -> Sequence[Tensor]: ...
    def zero_grad(self) -> None: ...
    def step(self, lr: float) -> None: ...


def optimizer_for(parameters: list[nn.Parameter], settings: RunSettings) -> Optimizer:
    """Return the optimizer of the settings; raise ModelError if it cannot train the parameters."""
    name = settings.optimizer.lower()
    options: dict[str, Any] = {**parse_options(settings.optimizer_options)}
    if name in WITH_MOMENTUM:
        options["momentum"] = settings.momentum
    if name not in WITHOUT_WEIGHT_DECAY:
        options["weight_decay"] = settings.weight_decay
    if name == SGD:
        return Sgd(parameters, **options)
    return TorchOptimizer(parameters, name, lr=settings.learning_rate, **options)
