"""Pruned weights and training rules on the parameters of a model, around one optimizer step."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from ssfl.learning.errors import ModelError
from ssfl.learning.flatten import masked_parameters, named_tensors
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.training_rules import Pull, TrainingRule

Pruned = list[tuple[Tensor, Tensor]]  # a masked parameter and its mask of zeros and ones


def pruned_parameters(model: nn.Module, manifest: Manifest, mask: Mask) -> Pruned:
    """Return the masked parameters; raise ModelError if the mask is of another model."""
    if mask.size != manifest.num_masked:
        raise ModelError(f"a mask of {mask.size} weights for a model of {manifest.num_masked}")
    kept = torch.from_numpy(mask.bools())
    return [
        (parameter, kept[place].reshape(parameter.shape).to(parameter))
        for parameter, place in masked_parameters(model, manifest)
    ]


def mask_gradients(pruned: Pruned) -> None:
    """Make the gradients of pruned weights zero."""
    for parameter, kept in pruned:
        if parameter.grad is not None:
            parameter.grad.mul_(kept)


@torch.no_grad()
def zero_pruned_weights(pruned: Pruned) -> None:
    """Make pruned weights zero, if they are finite numbers."""
    for parameter, kept in pruned:
        parameter.mul_(kept)


@torch.no_grad()
def force_zeros(pruned: Pruned) -> None:
    """Make pruned weights zero, also those that are infinite or NaN; takes three times as long."""
    for parameter, kept in pruned:
        parameter.masked_fill_(kept == 0, 0.0)


class StepChange:
    """A training rule on the parameters of a model.

    `only` has the ids of the parameters that a step moves; None: all.
    """

    def __init__(
        self, rule: TrainingRule, model: nn.Module, manifest: Manifest, mask: Mask
    ) -> None:
        vector = rule.toward if isinstance(rule, Pull) else rule.vector
        named = named_tensors(model, manifest)
        whole = manifest.unflatten(mask.scatter(vector))
        self._pairs = [
            (parameter, torch.from_numpy(whole[name]).to(parameter))
            for name, parameter in named.items()
            if isinstance(parameter, nn.Parameter)
        ]
        self._rule = rule

    def before_step(self, only: Collection[int] | None = None) -> None:
        """Change the gradients."""
        rule = self._rule
        if isinstance(rule, Pull) and not rule.in_gradient:
            return
        for parameter, vector in self._pairs:
            if parameter.grad is None or (only is not None and id(parameter) not in only):
                continue
            if isinstance(rule, Pull):
                parameter.grad.add_(parameter.detach() - vector, alpha=rule.strength)
            else:
                parameter.grad.add_(vector)

    @torch.no_grad()
    def after_step(self, rate: float, only: Collection[int] | None = None) -> None:
        """Change the weights."""
        rule = self._rule
        if isinstance(rule, Pull) and not rule.in_gradient:
            for parameter, toward in self._pairs:
                if only is None or id(parameter) in only:
                    parameter.sub_(parameter - toward, alpha=rate * rule.strength)
