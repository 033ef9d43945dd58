"""Training rounds and tests of a group of clients, whose weights are the rows of one matrix.

The loss is the cross-entropy of the built-in tasks, averaged over each client's own batch, so that
neither padding nor other clients affect its gradient.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.augment import Crops, is_augmented, training_crops
from ssfl.learning.batches import Indices, step_rates, steps_of, training_batches
from ssfl.learning.errors import DivergedError
from ssfl.learning.stacked.batches import BatchPlan, CropPlan, StackedSamples
from ssfl.learning.stacked.layers import StackedModel
from ssfl.method.evaluation import Evaluation
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.training_rules import Correction, Pull, TrainingRule


def train_stacked(
    model: StackedModel,
    weights: Tensor,
    kept: Tensor | None,
    clients: Sequence[tuple[str, Shard]],
    settings: RunSettings,
    round_number: int,
    rules: "StackedRules | None" = None,
    epochs: range | None = None,
) -> list[float]:
    """Train the weights in place; return each client's mean loss over its samples.

    Clients must be sorted by decreasing number of steps, because those that are done are dropped
    from the end. `epochs` selects some of the round's epochs. Raise DivergedError if a loss or a
    trained weight is not finite.
    """
    samples = StackedSamples([(shard.train_x, shard.train_y) for _, shard in clients])
    plan: list[list[Indices]] = []
    for (client_id, shard), (first, _) in zip(clients, samples.spans, strict=True):
        batches = training_batches(shard.num_samples, settings, round_number, client_id)
        some = islice(batches, *steps_of(epochs, shard.num_samples, settings))
        plan.append([first + batch for batch in some])
    rates = torch.from_numpy(_rates(clients, settings, round_number, epochs))
    sums = torch.zeros(rates.shape)  # loss sums of each step
    optimizer = StackedSgd(weights, kept, settings, rules)
    leaves = model.set_weights(weights)
    model.train()
    crops = _crops(clients, settings, round_number, epochs)
    for batch, rate, loss_sum in zip(samples.steps(plan, crops), rates, sums, strict=True):
        active = len(batch.sizes)
        if active < len(leaves[0]):
            leaves = model.set_weights(weights[:active])
        losses = _losses(model(batch.x), batch.y).sum(dim=0)
        gradients = torch.autograd.grad((losses / batch.sizes).sum(), leaves)
        optimizer.step(gradients, rate[:active])
        loss_sum[:active] = losses.detach()
    _check_finite(sums, weights, clients, round_number)
    seen = [max(1, sum(batch.size for batch in batches)) for batches in plan]
    return (sums.double().sum(dim=0) / torch.tensor(seen)).tolist()


def _crops(
    clients: Sequence[tuple[str, Shard]],
    settings: RunSettings,
    round_number: int,
    epochs: range | None,
) -> CropPlan | None:
    """Return the crops of every step; None if the images are not augmented."""
    if not is_augmented(settings, clients[0][1]):
        return None
    first = [steps_of(epochs, shard.num_samples, settings)[0] for _, shard in clients]

    def crops(client: int, step: int, count: int) -> Crops:
        number = first[client] + step + 1
        return training_crops(settings, round_number, clients[client][0], number, count)

    return crops


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
    clients: Sequence[tuple[str, Shard]],
    settings: RunSettings,
    round_number: int,
    epochs: range | None,
) -> npt.NDArray[np.float32]:
    """Return the learning rate of every step at every client: (steps, clients)."""
    each = [
        step_rates(settings, round_number, shard.num_samples)[
            slice(*steps_of(epochs, shard.num_samples, settings))
        ]
        for _, shard in clients
    ]
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


class StackedRules:
    """The training rules of a group of clients, each with its own; vectors are zero off a mask."""

    def __init__(
        self, clients: Sequence[Sequence[TrainingRule]], masks: Sequence[Mask], size: int
    ) -> None:
        count = len(clients)
        self._strengths = torch.zeros(count, 1)  # gradient += strength * weight + shift
        self._shifts = torch.zeros(count, size)
        most = max(sum(_moves_weights(rule) for rule in rules) for rules in clients)
        self._pulls = [(torch.zeros(count, 1), torch.zeros(count, size)) for _ in range(most)]
        for row, (rules, mask) in enumerate(zip(clients, masks, strict=True)):
            pulls = iter(self._pulls)
            for rule in rules:
                if isinstance(rule, Correction):
                    self._shifts[row] += torch.from_numpy(mask.scatter(rule.vector))
                    continue
                toward = torch.from_numpy(mask.scatter(rule.toward))
                if rule.in_gradient:
                    self._strengths[row] += rule.strength
                    self._shifts[row] -= rule.strength * toward
                else:
                    strengths, vectors = next(pulls)
                    strengths[row], vectors[row] = rule.strength, toward

    def before_step(self, gradient: Tensor, weights: Tensor) -> None:
        """Change the gradients of the first clients."""
        first = slice(len(gradient))
        gradient.addcmul_(weights, self._strengths[first]).add_(self._shifts[first])

    def after_step(self, weights: Tensor, rates: Tensor) -> None:
        """Change the weights of the first clients."""
        first = slice(len(weights))
        for strengths, vectors in self._pulls:
            weights.addcmul_(weights - vectors[first], rates * strengths[first], value=-1)


def _moves_weights(rule: TrainingRule) -> bool:
    return isinstance(rule, Pull) and not rule.in_gradient


class StackedSgd:
    """Masked SGD of one round; momentum starts at zero.

    Each row: gradient, with the training rules, times the mask, clipped by its norm, SGD step with
    weight decay and momentum, then the rules that move weights. Pruned weights that start at zero
    stay zero: their gradient, decay and momentum are zero.
    """

    def __init__(
        self,
        weights: Tensor,
        kept: Tensor | None,
        settings: RunSettings,
        rules: StackedRules | None = None,
    ) -> None:
        """Update `weights`, (clients, size), in place; `kept` is None without a mask."""
        self._weights = weights
        self._kept = kept
        self._rules = rules
        self._settings = settings
        self._gradient = torch.empty_like(weights)
        self._velocity = torch.zeros_like(weights) if settings.momentum else None

    def step(self, gradients: Sequence[Tensor], rates: Tensor) -> None:
        """Update the first clients by the gradients of their tensors, (clients, *shape) each."""
        first = slice(len(rates))
        weights, gradient = self._weights[first], self._gradient[first]
        torch.cat([part.flatten(1) for part in gradients], dim=1, out=gradient)
        if self._rules:
            self._rules.before_step(gradient, weights)
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
        if self._rules:
            self._rules.after_step(weights, rates.unsqueeze(1))
