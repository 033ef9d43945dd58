"""Local SGD inside the mask (paper, Algorithm 1, phase 2).

Every step: gradient, times the mask, clipped by its norm, SGD step, weights times the mask. A
pruned weight is exactly zero after every step, with any momentum and weight decay. A mask of ones
gives plain SGD, bit for bit. Every round has a new optimiser; batches.py has the learning rate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import batch_tensors, count_steps, step_rates, training_batches
from ssfl.learning.errors import DivergedError, ModelError
from ssfl.learning.evaluate import Evaluation
from ssfl.learning.flatten import masked_parameters
from ssfl.learning.task import Task
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

Pruned = list[tuple[Tensor, Tensor]]  # a masked parameter and its mask of zeros and ones


@dataclass(frozen=True, slots=True)
class LocalResult:
    """The values to send after local training, and their evaluations."""

    values: npt.NDArray[np.float32]
    training_loss: float
    base: Evaluation  # of the base, before training
    personal: Evaluation  # of the trained model, before it is sent


def personal_settings(settings: RunSettings) -> RunSettings:
    """Return the settings for training a personal model at the end of a run.

    It counts as the round after the last one: it has its own order of samples. Its learning rate
    continues the run's or, with `personalize_lr` restart, is that of the first round.
    """
    return replace(
        settings,
        local_epochs=settings.personalize_epochs,
        local_steps=0,
        lr_decay=1.0 if settings.personalize_lr == "restart" else settings.lr_decay,
    )


class Sgd:
    """The optimiser of one round, with the bits of `torch.optim.SGD`; momentum starts at zero.

    Torch's class imports torch's compiler when it is first used, which takes 1.5 s of CPU in every
    client process. The function below it, which torch exports, does not.
    """

    def __init__(self, model: nn.Module, *, momentum: float, weight_decay: float) -> None:
        self.parameters = list(model.parameters())
        self._momentum = momentum
        self._weight_decay = weight_decay
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
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._buffers.update(zip(moved, buffers, strict=True))


def train_locally(
    model: nn.Module,
    manifest: Manifest,
    mask: Mask,
    task: Task,
    shard: Shard,
    settings: RunSettings,
    round_number: int,
    client_id: str,
    on_step: Callable[[int, int], None] | None = None,
) -> float:
    """Train the model in place on the shard; return the mean loss over all samples of all steps.

    `on_step(done, total)` is called after every step and may raise to stop. Raise DivergedError
    if a loss or a trained weight is not finite. Torch's generator is seeded from (seed, round,
    client), so that dropout is reproducible.
    """
    pruned = _pruned_parameters(model, manifest, mask)
    optimizer = Sgd(model, momentum=settings.momentum, weight_decay=settings.weight_decay)
    optimizer.zero_grad()
    torch.manual_seed(int(Stream(settings.seed, "torch", round_number, client_id).words(1)[0]))
    model.train()
    _zero_pruned_weights(pruned)
    total = count_steps(shard.num_samples, settings)
    loss_sum, num_seen = 0.0, 0
    batches = training_batches(shard.num_samples, settings, round_number, client_id)
    rates = step_rates(settings, round_number, shard.num_samples)
    for step, (indices, rate) in enumerate(zip(batches, rates, strict=True), start=1):
        x, y = batch_tensors(shard.train_x, shard.train_y, indices, model)
        loss = task.loss(model, x, y)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            raise DivergedError(f"the loss is {loss_value} in step {step}", round_number)
        _take_step(optimizer, loss, pruned, rate, settings.clip_norm)
        loss_sum += loss_value * len(indices)
        num_seen += len(indices)
        if on_step:
            on_step(step, total)
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        raise DivergedError("a trained weight is not a finite number", round_number)
    return loss_sum / num_seen


def _take_step(optimizer: Sgd, loss: Tensor, pruned: Pruned, rate: float, clip_norm: float) -> None:
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    for parameter, kept in pruned:
        if parameter.grad is not None:
            parameter.grad.mul_(kept)
    if clip_norm > 0:
        nn.utils.clip_grad_norm_(optimizer.parameters, clip_norm)
    optimizer.step(rate)
    optimizer.zero_grad()
    _zero_pruned_weights(pruned)


def _pruned_parameters(model: nn.Module, manifest: Manifest, mask: Mask) -> Pruned:
    if mask.size != manifest.num_masked:
        raise ModelError(f"a mask of {mask.size} weights for a model of {manifest.num_masked}")
    kept = torch.from_numpy(mask.bools())
    return [
        (parameter, kept[place].reshape(parameter.shape).to(parameter))
        for parameter, place in masked_parameters(model, manifest)
    ]


def _zero_pruned_weights(pruned: Pruned) -> None:
    with torch.no_grad():
        for parameter, kept in pruned:
            parameter.mul_(kept)
