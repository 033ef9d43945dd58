"""Saliency scores: the dependence of the loss on each weight (paper, Algorithm 1).

The score of weight j is |dL/dw_j * w_j| for the mean loss on one minibatch. The model is in eval
mode, but batch norms use the statistics of the batch, since they have no others before training.
The score is torch's `(gradient * weight).abs()` in float32, so that a plain implementation gives
the same bits with one thread.

A client's score is the mean over its minibatches of the scores, not of the gradients. They are
added in float64, and the mean is rounded once to float32. One minibatch keeps its exact bits.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import Indices, scoring_batches, scoring_tensors
from ssfl.learning.errors import DivergedError, ModelError
from ssfl.learning.evaluate import eval_mode
from ssfl.learning.flatten import masked_parameters, named_tensors
from ssfl.learning.own_fit import Batches, Fit, StepHooks, check_stepped, same_parameters
from ssfl.learning.task import Task, task_name
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

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
    fit = getattr(task, "fit", None)
    if fit and getattr(task, "score_with_fit", False):
        seed = Stream(settings.seed, "torch", "score", mask_epoch, client_id).words(1)[0]
        torch.manual_seed(int(seed))
        return _fit_scores(fit, task_name(task), model, manifest, shard, settings, batches, weights)

    samples = scoring_tensors(model, task, shard, settings, client_id, mask_epoch, batches)
    scores = (saliency_scores(model, manifest, task, x, y, weights) for x, y in samples)
    if len(batches) == 1:
        return next(scores)
    total = np.zeros(manifest.num_masked, dtype=np.float64)
    for one in scores:
        total += one
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
            scores[place] = _products(parameter, gradient, place, weights)
    return _finite(scores)


def _products(parameter: Tensor, gradient: Tensor, place: slice, weights: Vector | None) -> Vector:
    factor = parameter.detach()
    if weights is not None:
        factor = torch.tensor(weights[place]).reshape(parameter.shape).to(parameter)
    products: Vector = (gradient * factor).abs().cpu().numpy().reshape(-1)
    return products


def _finite(scores: Vector) -> Vector:
    if not np.isfinite(scores).all():
        raise DivergedError("the saliency scores are not finite numbers", round_number=0)
    return scores


def _fit_scores(
    fit: Fit,
    name: str,
    model: nn.Module,
    manifest: Manifest,
    shard: Shard,
    settings: RunSettings,
    minibatches: Sequence[Indices],
    weights: Vector | None,
) -> Vector:
    """Return the scores by the gradients of each optimizer step in the task's own loop.

    The model does not move: every step is undone. A client's score is the mean over the steps that
    would have moved the weight.
    """
    places = trained_places(model, manifest)
    tensors = [*model.parameters(), *model.buffers()]
    start = [tensor.detach().clone() for tensor in tensors]
    sums = np.zeros(manifest.num_masked, dtype=np.float64)
    counts = np.zeros(manifest.num_masked, dtype=np.int64)

    def read(moved: set[int]) -> None:
        for parameter, place in places:
            if id(parameter) in moved and parameter.grad is not None:
                sums[place] += _products(parameter, parameter.grad, place, weights)
                counts[place] += 1

    @torch.no_grad()
    def undo(*_: object) -> None:
        for tensor, value in zip(tensors, start, strict=True):
            tensor.copy_(value)

    hooks = StepHooks(model, read, undo, reads_gradients=True)
    steps = enumerate(((indices, settings.learning_rate) for indices in minibatches), start=1)
    batches = Batches(shard, settings, 0, model, steps, len(minibatches))
    with same_parameters(model, name), scoring_mode(model), hooks.installed():
        try:
            fit(model, batches, settings)
        finally:
            undo()
    check_stepped(hooks, name)
    return _finite((sums / np.maximum(counts, 1)).astype(np.float32))


def whole_gradient(
    model: nn.Module, manifest: Manifest, task: Task, x: Tensor, y: Tensor
) -> Vector:
    """Return the gradient of the loss by every value of the model, (manifest.size,).

    Buffers, and weights that are frozen or not used, have zeros.
    """
    named = named_tensors(model, manifest)
    trained = {
        name: tensor for name, tensor in named.items()
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad
    }  # fmt: skip
    with scoring_mode(model):
        loss = task.loss(model, x, y)
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    gradients = {name: np.zeros(tuple(t.shape), dtype=np.float32) for name, t in named.items()}
    for name, gradient in zip(trained, found, strict=True):
        if gradient is not None:
            gradients[name] = gradient.cpu().numpy()
    return manifest.flatten(gradients)


def trained_places(model: nn.Module, manifest: Manifest) -> list[tuple[Tensor, slice]]:
    """Return the masked parameters that are not frozen, with places; ModelError if none."""
    places = [(p, place) for p, place in masked_parameters(model, manifest) if p.requires_grad]
    if not places:
        raise ModelError("every conv and linear weight is frozen: there is nothing to score")
    return places
