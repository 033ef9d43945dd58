"""GraSP scores: keep the weights whose removal would reduce the gradient flow (Wang et al. 2020).

The score of weight j is w_j * (H g)_j, with g the gradient and H the Hessian of the mean loss over
the minibatches, with respect to the masked weights. It is signed, and the largest are kept; the
paper negates it and removes the largest. As in the paper, the model's outputs are divided by 200,
which flattens the softmax. This is done for classes only. The mask keeps as many weights as asked;
the authors' code keeps one more, since the weight at its threshold stays.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import scoring_batches, scoring_tensors
from ssfl.learning.errors import DivergedError, ModelError
from ssfl.learning.saliency import scoring_mode, trained_places
from ssfl.learning.task import Task
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings

TEMPERATURE = 200.0

Vector = npt.NDArray[np.float32]


def grasp_locally(
    model: nn.Module,
    manifest: Manifest,
    task: Task,
    shard: Shard,
    settings: RunSettings,
    client_id: str,
    mask_epoch: int = 0,
    num_batches: int = 1,
) -> Vector:
    """Return a client's signed scores, (num_masked,), from the same minibatches as saliency."""
    chosen = scoring_batches(shard, settings, client_id, mask_epoch, num_batches)
    batches = list(scoring_tensors(model, task, shard, settings, client_id, mask_epoch, chosen))
    temperature = TEMPERATURE if shard.num_classes else 1.0
    return grasp_scores(model, manifest, task, batches, temperature)


def grasp_scores(
    model: nn.Module,
    manifest: Manifest,
    task: Task,
    batches: Sequence[tuple[Tensor, Tensor]],
    temperature: float = TEMPERATURE,
) -> Vector:
    """Return w * (H g) of every masked coordinate, (num_masked,): signed, the largest are kept.

    The model is not changed. A weight that is frozen or not used scores zero.
    """
    if not batches:
        raise ValueError("GraSP needs at least one minibatch")
    places = trained_places(model, manifest)
    parameters = [parameter for parameter, _ in places]
    # Of torch's attention kernels only MATH has second derivatives.
    with scoring_mode(model), _divided_outputs(model, temperature), sdpa_kernel(SDPBackend.MATH):
        flow = [torch.zeros_like(parameter) for parameter in parameters]
        for x, y in batches:
            _add(flow, _gradients(task.loss(model, x, y), parameters), len(batches))
        changes = [torch.zeros_like(parameter) for parameter in parameters]
        for x, y in batches:
            _add(changes, _hessian_times(flow, task.loss(model, x, y), parameters), len(batches))
    scores = np.zeros(manifest.num_masked, dtype=np.float32)
    for (parameter, place), change in zip(places, changes, strict=True):
        scores[place] = (parameter.detach() * change).cpu().numpy().reshape(-1)
    if not np.isfinite(scores).all():
        raise DivergedError("the GraSP scores are not finite numbers", round_number=0)
    return scores


def _gradients(loss: Tensor, parameters: list[Tensor], graph: bool = False) -> Sequence[Tensor]:
    """Return the gradients; zeros where the loss does not depend on a parameter."""
    return torch.autograd.grad(loss, parameters, create_graph=graph, materialize_grads=True)


def _hessian_times(
    vector: list[Tensor], loss: Tensor, parameters: list[Tensor]
) -> Sequence[Tensor]:
    """Return H v: the gradient of g * v with constant v."""
    gradients = _gradients(loss, parameters, graph=True)
    product = torch.stack([(g * v).sum() for g, v in zip(gradients, vector, strict=True)]).sum()
    if not product.requires_grad:  # the loss is linear in every weight
        return [torch.zeros_like(parameter) for parameter in parameters]
    try:
        return _gradients(product, parameters)
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
        raise ModelError(
            f"GraSP needs second derivatives, which a layer of this model does not have: {error}"
        ) from error


def _add(means: list[Tensor], gradients: Sequence[Tensor], count: int) -> None:
    for mean, gradient in zip(means, gradients, strict=True):
        mean.add_(gradient / count)


@contextmanager
def _divided_outputs(model: nn.Module, temperature: float) -> Iterator[None]:
    def divide(_module: nn.Module, _inputs: tuple[object, ...], output: object) -> Tensor:
        if not isinstance(output, Tensor):
            raise ModelError(
                f"GraSP divides the model's output by {temperature:g}: it must be a tensor, "
                f"not {type(output).__name__}"
            )
        return output / temperature

    hook = model.register_forward_hook(divide)
    try:
        yield
    finally:
        hook.remove()
