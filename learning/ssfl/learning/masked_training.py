"""Local training inside the mask (paper, Algorithm 1, phase 2).

Every step: gradient, times the mask, clipped by its norm, optimizer step, weights times the mask. A
pruned weight is exactly zero after every step, whatever the optimizer's state. A mask of ones gives
plain training, bit for bit. Every round has a new optimizer (optimizers.py); batches.py has the
learning rate. Images may be augmented (augment.py), also for a personal model. A task may have its
own loop (own_fit.py).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.augment import is_augmented, training_crops
from ssfl.learning.batches import (
    batch_tensors,
    count_steps,
    step_rates,
    steps_of,
    training_batches,
)
from ssfl.learning.errors import DivergedError
from ssfl.learning.optimizer_state import StateMemory, load_state, save_state
from ssfl.learning.optimizers import Sgd, StepTaker, optimizer_for
from ssfl.learning.own_fit import Batches, Step, fit_round
from ssfl.learning.pruned_weights import (
    Pruned,
    StepChange,
    force_zeros,
    mask_gradients,
    pruned_parameters,
    zero_pruned_weights,
)
from ssfl.learning.task import HasLoss, task_name
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.method.training_rules import TrainingRule


def personal_settings(settings: RunSettings) -> RunSettings:
    """Return the settings for training a personal model at the end of a run.

    It counts as the round after the last one: it has its own order of samples. Its learning rate
    continues the run's or, with `personalize_lr` restart, is that of the first round.
    """
    return replace(
        settings,
        local_epochs=settings.personalize_epochs,
        local_steps=0,
        **(_FULL_RATE if settings.personalize_lr == "restart" else {}),
    )


_FULL_RATE: dict[str, Any] = {"lr_schedule": "decay", "lr_decay": 1.0, "lr_warmup_rounds": 0}


def train_locally(
    model: nn.Module,
    manifest: Manifest,
    mask: Mask,
    task: HasLoss,
    shard: Shard,
    settings: RunSettings,
    round_number: int,
    client_id: str,
    on_step: Callable[[int, int], None] | None = None,
    rules: Sequence[TrainingRule] = (),
    epochs: range | None = None,
    memory: StateMemory | None = None,
    optimizer: StepTaker | None = None,
) -> float:
    """Train the model in place on the shard; return the mean loss over all samples of all steps.

    `on_step(done, total)` is called after every step and may raise to stop. Raise DivergedError
    if a loss or a trained weight is not finite. Torch's generator is seeded from (seed, round,
    client), so that dropout is reproducible. `epochs` selects some of the round's epochs.
    `memory` keeps the optimizer's state if the settings ask for it; without it the state starts
    empty. `optimizer` replaces that of the settings, and the task's own loop.
    """
    pruned = pruned_parameters(model, manifest, mask)
    changes = [StepChange(rule, model, manifest, mask) for rule in rules]
    for parameter in model.parameters():
        parameter.grad = None
    later = [epochs.start] if epochs and epochs.start else []
    seeds = Stream(settings.seed, "torch", round_number, client_id, *later)
    torch.manual_seed(int(seeds.words(1)[0]))
    model.train()
    zero_pruned_weights(pruned)
    total = count_steps(shard.num_samples, settings)
    batches = training_batches(shard.num_samples, settings, round_number, client_id)
    rates = step_rates(settings, round_number, shard.num_samples)
    first, stop = steps_of(epochs, shard.num_samples, settings)
    steps = islice(enumerate(zip(batches, rates, strict=True), start=1), first, stop)
    report = on_step or _ignore
    fit = getattr(task, "fit", None) if optimizer is None else None
    if fit and first < stop:
        samples = Batches(shard, settings, round_number, model, steps, stop - first)
        mean_loss = fit_round(
            fit, task_name(task), model, samples, settings, pruned, changes,
            lambda done: report(done, total),
        )  # fmt: skip
    else:
        keeps = memory if settings.optimizer_state == "keep" else None
        usual = None if optimizer else optimizer_for(list(model.parameters()), settings)
        if usual and keeps is not None:
            load_state(usual, model, manifest, settings, keeps)
        taker = optimizer or usual
        assert taker is not None
        mean_loss = _train(
            model, task, shard, taker, steps, pruned, changes, settings, round_number, client_id,
            lambda done: report(done, total),
        )  # fmt: skip
        if usual and keeps is not None:
            save_state(usual, model, manifest, settings, keeps)
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        raise DivergedError("a trained weight is not a finite number", round_number)
    return mean_loss


def _ignore(_done: int, _total: int) -> None:
    """Ignore the progress of a round."""


def _train(
    model: nn.Module,
    task: HasLoss,
    shard: Shard,
    optimizer: StepTaker,
    steps: Iterable[Step],
    pruned: Pruned,
    changes: Sequence[StepChange],
    settings: RunSettings,
    round_number: int,
    client_id: str,
    on_step: Callable[[int], None],
) -> float:
    """Take the steps with the task's loss; return the mean loss."""
    loss_sum, num_seen = 0.0, 0
    augmented, crops = is_augmented(settings, shard), None
    for step, (indices, rate) in steps:
        if augmented:
            crops = training_crops(settings, round_number, client_id, step, len(indices))
        x, y = batch_tensors(shard.train_x, shard.train_y, indices, model, crops)
        loss = task.loss(model, x, y)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            raise DivergedError(f"the loss is {loss_value} in step {step}", round_number)
        _take_step(optimizer, loss, pruned, rate, settings.clip_norm, changes)
        loss_sum += loss_value * len(indices)
        num_seen += len(indices)
        on_step(step)
    return loss_sum / num_seen if num_seen else 0.0


def _take_step(
    optimizer: StepTaker,
    loss: Tensor,
    pruned: Pruned,
    rate: float,
    clip_norm: float,
    changes: Sequence[StepChange],
) -> None:
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    for change in changes:
        change.before_step()
    mask_gradients(pruned)
    if clip_norm > 0:
        nn.utils.clip_grad_norm_(optimizer.parameters, clip_norm)
    optimizer.step(rate)
    optimizer.zero_grad()
    for change in changes:
        change.after_step(rate)
    if isinstance(optimizer, Sgd):
        zero_pruned_weights(pruned)
    else:  # an adaptive step of a zero gradient may be 0/0
        force_zeros(pruned)
