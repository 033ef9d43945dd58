"""Saliency scores: the dependence of the loss on each weight (paper, Algorithm 1).

The score of weight j is |dL/dw_j * w_j| for the mean loss on one minibatch. The model is in eval
mode, but batch norms use the statistics of the batch, since they have no others before training.
The score is torch's `(gradient * weight).abs()` in float32, so that a plain implementation gives
the same bits with one thread.

A client's score is the mean over its minibatches of the scores, not of the gradients. They are
added in float64, and the mean is rounded once to float32. One minibatch keeps its exact bits.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import Indices, batch_tensors, scoring_batches
from ssfl.learning.errors import DivergedError, ModelError
from ssfl.learning.evaluate import eval_mode
from ssfl.learning.flatten import masked_parameters
from ssfl.learning.task import Task
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings

Vector = npt.NDArray[np.float32]


def score_locally(
    model: nn.Module,
    manifest: Manifest,
    task: Task,
    shard: Shard,
    settings: RunSettings,
    client_id: str,
    mask_epoch: int = 0,
    num_batches: int = 1,
    weights: Vector | None = None,
) -> Vector:
    """Return a client's scores, (num_masked,), from minibatches of its training samples.

    `weights` replace the model's weights in the product, as in `saliency_scores`.
    """
    batches = list(scoring_batches(shard, settings, client_id, mask_epoch, num_batches))

    def scores_of(indices: Indices) -> Vector:
        x, y = batch_tensors(shard.train_x, shard.train_y, indices, model)
        return saliency_scores(model, manifest, task, x, y, weights)

    if len(batches) == 1:
        return scores_of(batches[0])
    total = np.zeros(manifest.num_masked, dtype=np.float64)
    for indices in batches:
        total += scores_of(indices)
    return (total / len(batches)).astype(np.float32)


@contextmanager
def scoring_mode(model: nn.Module) -> Iterator[None]:
    """Enable gradients and eval mode, with batch norms on the statistics of the batch."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    with eval_mode(model), torch.enable_grad():
        for norm in norms:
            norm.training, norm.momentum = True, 0.0  # running statistics stay unchanged
            norm.num_batches_tracked = None
        try:
            yield
        finally:
            for norm, momentum, count in before:
                norm.momentum, norm.num_batches_tracked = momentum, count


def saliency_scores(
    model: nn.Module,
    manifest: Manifest,
    task: Task,
    x: Tensor,
    y: Tensor,
    weights: Vector | None = None,
) -> Vector:
    """Return |dL/dw * w| of every masked coordinate, (num_masked,).

    The gradient is that of the model's current weights. `weights`, (num_masked,), replace w in
    the product, so that pruned weights, zero in the model, can be scored by another value. The
    model's weights, gradients and mode are not changed. A weight that is frozen or not used
    scores zero.
    """
    if weights is not None and weights.shape != (manifest.num_masked,):
        raise ModelError(f"{weights.size} weights for a model of {manifest.num_masked}")
    places = trained_places(model, manifest)
    parameters = [parameter for parameter, _ in places]
    with scoring_mode(model):
        loss = task.loss(model, x, y)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    scores = np.zeros(manifest.num_masked, dtype=np.float32)
    for (parameter, place), gradient in zip(places, gradients, strict=True):
        if gradient is not None:
            factor = parameter.detach()
            if weights is not None:
                factor = torch.tensor(weights[place]).reshape(parameter.shape).to(parameter)
            scores[place] = (gradient * factor).abs().cpu().numpy().reshape(-1)
    if not np.isfinite(scores).all():
        raise DivergedError("the saliency scores are not finite numbers", round_number=0)
    return scores


def trained_places(model: nn.Module, manifest: Manifest) -> list[tuple[Tensor, slice]]:
    """Return the masked parameters that are not frozen, with places; ModelError if none."""
    places = [(p, place) for p, place in masked_parameters(model, manifest) if p.requires_grad]
    if not places:
        raise ModelError("every conv and linear weight is frozen: there is nothing to score")
    return places
