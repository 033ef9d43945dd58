"""Masked SGD for many clients, whose weights are the rows of one matrix.

Each row: gradient, times the mask, clipped by its norm, SGD step with weight decay and momentum.
Pruned weights that start at zero stay zero: their gradient, decay and momentum are zero.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ssfl.method.settings import RunSettings


class StackedSgd:
    """The optimiser of one round; momentum starts at zero."""

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
            self._clip(gradient)
        if self._settings.weight_decay:
            gradient.add_(weights, alpha=self._settings.weight_decay)
        if self._velocity is not None:
            gradient = self._velocity[first].mul_(self._settings.momentum).add_(gradient)
        weights.addcmul_(gradient, rates.unsqueeze(1), value=-1)

    def _clip(self, gradient: Tensor) -> None:
        norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        scale = (self._settings.clip_norm / (norms + 1e-6)).clamp_(max=1)  # as in torch
        if bool((scale < 1).any()):
            gradient.mul_(scale)
