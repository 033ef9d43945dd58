"""Training of the probabilities with which frozen weights are kept (Zhou et al. 2019).

Every step draws a mask from the probabilities, the sigmoids of scores, and the network uses the
weights that it keeps. The scores lie in the masked parameters of the network while they are
trained, so that `train_locally` trains them. All other parameters are frozen. The optimiser is
Adam with the run's learning rate; momentum and weight decay of the run do not apply.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.flatten import masked_parameters, read_vector, write_vector
from ssfl.learning.masked_training import train_locally
from ssfl.learning.reparametrize import replaced
from ssfl.learning.task import HasLoss
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings

Vector = npt.NDArray[np.float32]


def train_probabilities(
    model: nn.Module,
    manifest: Manifest,
    task: HasLoss,
    shard: Shard,
    settings: RunSettings,
    round_number: int,
    client_id: str,
    on_step: Callable[[int, int], None],
    values: Vector,
    weights: Vector,
    moments: Vector | None = None,
    *,
    times_probability: bool = False,
) -> tuple[npt.NDArray[np.float64], float, Vector]:
    """Train the probability of each masked weight; return them, the mean loss and the moments.

    `values` are the probabilities, strictly between 0 and 1, then the unmasked values; `weights`
    are the frozen masked ones. `moments` continue those of an earlier round.
    """
    whole, size = values.astype(np.float64), manifest.num_masked
    whole[:size] = np.log(whole[:size] / (1 - whole[:size]))
    write_vector(model, manifest, whole.astype(np.float32))
    adam = Adam([scores for scores, _ in masked_parameters(model, manifest)])
    if moments is not None:
        adam.restore(moments)
    drawn = SupermaskTask(task, model, manifest, weights, times_probability=times_probability)
    loss = train_locally(
        model, manifest, Mask.full(size), drawn, shard, settings, round_number, client_id, on_step,
        optimizer=adam,
    )  # fmt: skip
    scores = read_vector(model, manifest)[:size].astype(np.float64)
    return (1 + np.tanh(scores / 2)) / 2, loss, adam.moments()


def draw(probability: Tensor, times_probability: bool = False) -> Tensor:
    """Return zeros and ones, drawn with the given probabilities from torch's generator.

    The gradient passes straight through or, `times_probability`, is multiplied by the probability.
    """
    drawn: Tensor = _Draw.apply(probability, times_probability)  # type: ignore[no-untyped-call]
    return drawn


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, probability: Tensor, times_probability: bool) -> Tensor:
        if times_probability:
            ctx.save_for_backward(probability)
        return torch.bernoulli(probability)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        for probability in ctx.saved_tensors:
            gradient = gradient * probability
        return gradient, None


class SupermaskTask:
    """A task whose loss is that of the frozen weights which a new draw keeps."""

    def __init__(
        self, task: HasLoss, model: nn.Module, manifest: Manifest, weights: Vector, *,
        times_probability: bool = False,
    ) -> None:  # fmt: skip
        """`weights` are those of the masked coordinates."""
        self._task = task
        self._times_probability = times_probability
        self._weights = [
            (scores, torch.from_numpy(weights[place]).reshape(scores.shape).to(scores))
            for scores, place in masked_parameters(model, manifest)
        ]

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a drawn network."""
        used: dict[Tensor, Tensor] = {p: p.detach() for p in model.parameters()}
        for scores, weights in self._weights:
            used[scores] = weights * draw(scores.sigmoid(), self._times_probability)
        with replaced(model, used):
            return self._task.loss(model, x, y)


class Adam:
    """Adam (Kingma and Ba 2015) with the defaults of torch, whose moments can be kept.

    Torch's class imports torch's compiler when it is first used.
    """

    betas = 0.9, 0.999
    epsilon = 1e-8

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.steps = 0
        self._means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self.parameters]

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every parameter that has a gradient."""
        self.steps += 1
        first, second = (1 - beta**self.steps for beta in self.betas)
        for parameter, mean, square in zip(
            self.parameters, self._means, self._squares, strict=True
        ):
            if (gradient := parameter.grad) is None:
                continue
            mean.lerp_(gradient, 1 - self.betas[0])
            square.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
            size = (square.sqrt() / math.sqrt(second)).add_(self.epsilon)
            parameter.addcdiv_(mean, size, value=-lr / first)

    def moments(self) -> Vector:
        """Return the number of steps, the means and the squares as one vector."""
        parts = [torch.tensor([float(self.steps)])]
        parts += [tensor.reshape(-1).cpu() for tensor in (*self._means, *self._squares)]
        return np.asarray(torch.cat(parts).numpy(), dtype=np.float32)

    @torch.no_grad()
    def restore(self, moments: Vector) -> None:
        """Continue from the moments of an earlier optimiser of the same parameters."""
        self.steps = int(moments[0])
        at = 1
        for tensor in (*self._means, *self._squares):
            part = moments[at : at + tensor.numel()].copy()
            tensor.copy_(torch.from_numpy(part).reshape(tensor.shape))
            at += tensor.numel()
