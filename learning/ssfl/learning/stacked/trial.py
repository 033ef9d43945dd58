"""Can a model's clients be stacked, and is it worth it? Tried, not guessed.

The loss and metrics must be those of the built-in tasks, for classes: a task of one's own may
import them. The stacked model must give what the model itself gives, for clients with other
weights and other samples, in training and in tests, and every weight must have a gradient.
BatchNorm, dropout, and whatever mixes channels fail this.

Stacking saves what every small operation costs, so it gains less the more a model computes. On
one core, ten clients at once, batches of 16: 3.5 times as fast with 35 thousand weights
(cnn-small, 14x14), 2.5 times with 60 (lenet5), 1.2 to 2 times with 200 (mlp, cnn, 28x28); an mlp
of 650 is slower than one by one. Hence the limit.
"""

import math
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from ssfl.learning import image_task, table_task
from ssfl.learning.flatten import write_vector
from ssfl.learning.stacked.layers import StackedModel
from ssfl.learning.task import Task
from ssfl.method.manifest import Manifest
from ssfl.method.streams import Stream

MAX_SIZE = 250_000  # weights of a model that is worth stacking
_CLIENTS, _ROWS = 3, 2
_TOLERANCE = 1e-3  # of the largest output: kernels add in another order
_BUILT_IN = (image_task, table_task)


def should_stack(model: nn.Module, manifest: Manifest, task: Task) -> bool:
    """Tell whether clients can be stacked, and are done sooner than one by one."""
    if manifest.size > MAX_SIZE or not _is_built_in(task):
        return False
    shape, num_classes = (manifest.model.get(key) for key in ("input_shape", "num_classes"))
    if not shape or not num_classes:
        return False
    if any(p.device.type != "cpu" or not p.requires_grad for p in model.parameters()):
        return False
    try:
        with torch.random.fork_rng(devices=[]):
            return _agree(model, manifest, tuple(shape))
    except Exception:  # noqa: BLE001 -- the model's own code meets other channels here
        return False


def _is_built_in(task: Task) -> bool:
    module = getattr(task, "module", task)
    return any(
        getattr(module, "loss", None) is built_in.loss
        and getattr(module, "metrics", None) is built_in.metrics
        for built_in in _BUILT_IN
    )


def _agree(model: nn.Module, manifest: Manifest, shape: tuple[int, ...]) -> bool:
    """Tell whether the model and its stacked copy compute the same."""
    stacked, single = StackedModel(model, manifest), deepcopy(model)
    stream = Stream(0, "stacked trial")
    x = _noise(stream, _ROWS, _CLIENTS, *shape)
    weights = _noise(stream, _CLIENTS, manifest.size)
    leaves = stacked.set_weights(weights)
    for training in (True, False):
        stacked.train(training)
        single.train(training)
        out = stacked(x)
        torch.autograd.grad(out.sum(), leaves)  # raises if a weight has none
        for client, row in enumerate(weights):
            write_vector(single, manifest, row.numpy())
            expected = single(x[:, client]).detach()
            limit = _TOLERANCE * float(expected.abs().max())
            if not torch.allclose(out[:, client], expected, rtol=0, atol=limit):
                return False
    return True


def _noise(stream: Stream, *shape: int) -> Tensor:
    uniform = stream.uniform(math.prod(shape)) - 0.5
    return torch.from_numpy(uniform.astype(np.float32)).view(shape)
