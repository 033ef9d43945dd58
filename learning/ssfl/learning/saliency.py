"""Saliency: how much the loss depends on each weight, before any training (paper, Algorithm 1).

The score of weight j is |dL/dw_j * w_j| for the mean loss on one class-balanced minibatch, with
the model in eval mode; only batch norms take the batch's own statistics, since before training
they have none. It is computed in float32 as torch's `(gradient * weight).abs()`, so
that plain code written by somebody else gives the same bits at one thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ssfl.datasets.shards import Shard
from ssfl.learning.batches import balanced_batch, take
from ssfl.learning.errors import DivergedError, ModelError
from ssfl.learning.evaluate import eval_mode
from ssfl.learning.flatten import masked_parameters
from ssfl.learning.task import Task
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream


def score_locally(
    model: nn.Module,
    manifest: Manifest,
    task: Task,
    shard: Shard,
    settings: RunSettings,
    client_id: str,
    mask_epoch: int = 0,
) -> npt.NDArray[np.float32]:
    """Return a client's scores, (num_masked,), from one minibatch of its training samples."""
    stream = Stream(settings.seed, "scoring", mask_epoch, client_id)
    labels = shard.train_y if shard.num_classes else np.zeros(shard.num_samples, dtype=np.int64)
    indices = balanced_batch(labels, settings.batch_size, stream)
    x, y = take(shard.train_x, shard.train_y, indices, model)
    return saliency_scores(model, manifest, task, x, y)


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch norms use the statistics of the batch, and remember nothing of it."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    before = [(norm, norm.training, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.training, norm.momentum = True, 0.0  # of what it sees, nothing is taken over
        norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, training, momentum, count in before:
            norm.training, norm.momentum, norm.num_batches_tracked = training, momentum, count


def saliency_scores(
    model: nn.Module, manifest: Manifest, task: Task, x: Tensor, y: Tensor
) -> npt.NDArray[np.float32]:
    """Return |dL/dw * w| of every masked coordinate, (num_masked,).

    The model's weights, gradients and mode are left as they were. A weight that is frozen or
    not used scores zero.
    """
    places = [(p, place) for p, place in masked_parameters(model, manifest) if p.requires_grad]
    if not places:
        raise ModelError("every conv and linear weight is frozen: there is nothing to score")
    parameters = [parameter for parameter, _ in places]
    with eval_mode(model), _batch_statistics(model), torch.enable_grad():
        loss = task.loss(model, x, y)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    scores = np.zeros(manifest.num_masked, dtype=np.float32)
    for (parameter, place), gradient in zip(places, gradients, strict=True):
        if gradient is not None:
            products = (gradient * parameter.detach()).abs()
            scores[place] = products.cpu().numpy().reshape(-1)
    if not np.isfinite(scores).all():
        raise DivergedError("the saliency scores are not finite numbers", round_number=0)
    return scores
