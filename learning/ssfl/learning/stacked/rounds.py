"""Training rounds and tests of a group of clients, whose weights are the rows of one matrix.

The loss is the cross-entropy of the built-in tasks, averaged over each client's own batch, so that
neither padding nor other clients affect its gradient.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import Indices, step_rates, training_batches
from ssfl.learning.errors import DivergedError
from ssfl.learning.evaluate import Evaluation
from ssfl.learning.stacked.batches import BatchPlan, StackedSamples
from ssfl.learning.stacked.layers import StackedModel
from ssfl.method.settings import RunSettings


def train_stacked(
    model: StackedModel,
    weights: Tensor,
    kept: Tensor | None,
    clients: Sequence[tuple[str, Shard]],
    settings: RunSettings,
    round_number: int,
) -> list[float]:
    """Train the weights in place; return each client's mean loss over its samples.

    Clients must be in order of decreasing numbers of steps to save time: clients that are done
    are dropped from the end. Raise DivergedError if a loss or a trained weight is not finite.
    """
    samples = StackedSamples([(shard.train_x, shard.train_y) for _, shard in clients])
    plan: list[list[Indices]] = []
    for (client_id, shard), (first, _) in zip(clients, samples.spans, strict=True):
        batches = training_batches(shard.num_samples, settings, round_number, client_id)
        plan.append([first + batch for batch in batches])
    rates = torch.from_numpy(_rates(clients, settings, round_number))
    sums = torch.zeros(rates.shape)  # loss sums of each step
    optimizer = StackedSgd(weights, kept, settings)
    leaves = model.set_weights(weights)
    model.train()
    for batch, rate, loss_sum in zip(samples.steps(plan), rates, sums, strict=True):
        active = len(batch.sizes)
        if active < len(leaves[0]):
            leaves = model.set_weights(weights[:active])
        losses = _losses(model(batch.x), batch.y).sum(dim=0)
        gradients = torch.autograd.grad((losses / batch.sizes).sum(), leaves)
        optimizer.step(gradients, rate[:active])
        loss_sum[:active] = losses.detach()
    _check_finite(sums, weights, clients, round_number)
    seen = [sum(batch.size for batch in batches) for batches in plan]
    return (sums.double().sum(dim=0) / torch.tensor(seen)).tolist()


def evaluate_stacked(
    model: StackedModel, weights: Tensor, samples: StackedSamples, plan: BatchPlan
) -> list[Evaluation]:
    """Test row i of the weights on the samples of plan i; return an evaluation per shard."""
    num_shards = len(samples.spans)
    correct = torch.zeros(num_shards + 1, dtype=torch.int64)  # the last entry is for padding
    loss_sums = torch.zeros(num_shards + 1, dtype=torch.float64)
    model.set_weights(weights)
    model.train(False)
    with torch.no_grad():
        for batch in samples.steps(plan):
            active = len(batch.sizes)
            if active < len(weights):
                model.set_weights(weights[:active])
            out, owners = model(batch.x), batch.owners.flatten()
            hits = out.argmax(dim=2) == batch.y
            correct.index_add_(0, owners, hits.flatten().long())
            loss_sums.index_add_(0, owners, _losses(out, batch.y).flatten().double())
    return [
        Evaluation(hits if stop > first else None, stop - first, loss_sum)
        for (first, stop), hits, loss_sum in zip(
            samples.spans, correct[:-1].tolist(), loss_sums[:-1].tolist(), strict=True
        )
    ]


def _losses(out: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each sample (rows, clients), zero for padding."""
    losses = functional.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none")
    return losses.view(y.shape)


def _rates(
    clients: Sequence[tuple[str, Shard]], settings: RunSettings, round_number: int
) -> npt.NDArray[np.float32]:
    """Return the learning rate of every step at every client: (steps, clients)."""
    each = [step_rates(settings, round_number, shard.num_samples) for _, shard in clients]
    table = np.zeros((max(map(len, each)), len(each)), dtype=np.float32)
    for column, rates in zip(table.T, each, strict=True):
        column[: len(rates)] = rates
    return table


def _check_finite(
    sums: Tensor, weights: Tensor, clients: Sequence[tuple[str, Shard]], round_number: int
) -> None:
    for step, client in (~sums.isfinite()).nonzero().tolist():
        what = f"client {clients[client][0]}: the loss is {sums[step, client]:g} in step {step + 1}"
        raise DivergedError(what, round_number)
    for client in (~weights.isfinite().all(dim=1)).nonzero().flatten().tolist():
        what = f"client {clients[client][0]}: a trained weight is not a finite number"
        raise DivergedError(what, round_number)


class StackedSgd:
    """Masked SGD of one round; momentum starts at zero.

    Each row: gradient, times the mask, clipped by its norm, SGD step with weight decay and
    momentum. Pruned weights that start at zero stay zero: their gradient, decay and momentum are
    zero.
    """

    def __init__(self, weights: Tensor, kept: Tensor | None, settings: RunSettings) -> None:
        """Update `weights`, (clients, size), in place; `kept` is None without a mask."""
        self._weights = weights
        self._kept = kept
        self._settings = settings
        self._gradient = torch.empty_like(weights)
        self._velocity = torch.zeros_like(weights) if settings.momentum else None

    def step(self, gradients: Sequence[Tensor], rates: Tensor) -> None:
        """Update the first clients by the gradients of their tensors, (clients, *shape) each."""
        first = slice(len(rates))
        weights, gradient = self._weights[first], self._gradient[first]
        torch.cat([part.flatten(1) for part in gradients], dim=1, out=gradient)
        if self._kept is not None:
            gradient.mul_(self._kept[first])
        if self._settings.clip_norm > 0:
            norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
            scale = (self._settings.clip_norm / (norms + 1e-6)).clamp_(max=1)  # as in torch
            if bool((scale < 1).any()):
                gradient.mul_(scale)
        if self._settings.weight_decay:
            gradient.add_(weights, alpha=self._settings.weight_decay)
        if self._velocity is not None:
            gradient = self._velocity[first].mul_(self._settings.momentum).add_(gradient)
        weights.addcmul_(gradient, rates.unsqueeze(1), value=-1)
