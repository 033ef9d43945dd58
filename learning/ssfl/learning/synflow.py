"""SynFlow scores: keep the weights on the paths of largest flow, without data (Tanaka et al. 2020).

All parameters are made positive, norms are skipped, an input of ones is passed through, and R is
the sum of the outputs. The score of weight w is |w * dR/dw|: the part of R on paths through w. It
is computed in float64, since R grows with every layer. Every iteration keeps the same share of the
weights that are left and sets the others to zero, so that no layer is pruned empty. The number
kept in an iteration is rounded to the nearest; the authors' code rounds up.

The scores of a deep network exceed the range of float32, and only their order matters. The result
is their logarithm, shifted to start at 1, and 0 for pruned weights. Its Top-k is exactly the mask
of the last iteration.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ssfl.learning.describe import NORM_LAYERS
from ssfl.learning.errors import ModelError
from ssfl.learning.evaluate import eval_mode
from ssfl.learning.normalize import Normalize
from ssfl.method.manifest import Manifest, format_shape
from ssfl.method.mask import largest

_FLOWLESS = 0.5  # score of a kept weight without flow: below all other kept weights

Doubles = npt.NDArray[np.float64]


def synflow_scores(
    model: nn.Module,
    manifest: Manifest,
    input_shape: Sequence[int],
    num_kept: int,
    iterations: int = 100,
) -> npt.NDArray[np.float32]:
    """Return scores, (num_masked,), whose `num_kept` largest are SynFlow's mask; the others are 0.

    The model is not changed. The computation runs on the CPU.
    """
    size = manifest.num_masked
    if not 1 <= num_kept <= size or iterations < 1:
        raise ValueError(f"cannot keep {num_kept} of {size} weights in {iterations} iterations")
    tensors = _positive_tensors(model)
    weights = [tensors[tensor.name].requires_grad_() for tensor, _ in manifest.masked()]
    kept = np.ones(size, dtype=np.bool_)
    with eval_mode(model), _without_norms(model), torch.enable_grad():
        for iteration in range(1, iterations + 1):
            scores = _flows(model, tensors, weights, input_shape)
            scores[~kept] = -1.0  # below all kept weights, even those without flow
            share = (num_kept / size) ** (iteration / iterations)
            count = max(num_kept, round(size * share)) if iteration < iterations else num_kept
            kept = largest(scores, count)
            with torch.no_grad():
                for weight, (_, place) in zip(weights, manifest.masked(), strict=True):
                    weight.mul_(torch.from_numpy(kept[place]).reshape(weight.shape))
    return _in_order(scores, kept)


def _positive_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters (their magnitudes) and buffers, in float64."""
    parameters = {name: p.detach().cpu().double().abs() for name, p in model.named_parameters()}
    buffers = {
        name: buffer.detach().cpu().double() if buffer.is_floating_point() else buffer.cpu()
        for name, buffer in model.named_buffers()
    }
    return {**parameters, **buffers}


@contextmanager
def _without_norms(model: nn.Module) -> Iterator[None]:
    """Let every norm layer, and the layer that scales pixels, return its input."""

    def pass_on(_norm: nn.Module, inputs: tuple[Any, ...], _output: Any) -> Any:
        return inputs[0]

    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, (*NORM_LAYERS, Normalize)):
                stack.callback(module.register_forward_hook(pass_on).remove)
        yield


def _flows(
    model: nn.Module, tensors: dict[str, Tensor], weights: list[Tensor], input_shape: Sequence[int]
) -> Doubles:
    ones = torch.ones((1, *input_shape), dtype=torch.float64)
    try:
        output = functional_call(model, tensors, (ones,))
        gradients = torch.autograd.grad(output.sum(), weights, materialize_grads=True)
    except Exception as error:
        raise ModelError(
            f"SynFlow passes ones of shape {format_shape(input_shape)} through the model, "
            f"which failed: {type(error).__name__}: {error}"
        ) from error
    products = [(w.detach() * g).abs().reshape(-1) for w, g in zip(weights, gradients, strict=True)]
    flows: Doubles = torch.cat(products).numpy()
    if not np.isfinite(flows).all():
        raise ModelError(
            "SynFlow's sums over paths exceed the range of float64: the model is too deep"
        )
    return flows


def _in_order(scores: Doubles, kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Return float32 scores that rank as `scores` do: positive if kept, else zero."""
    flows = scores[kept]
    flowing = flows > 0
    ordered = np.full(flows.size, _FLOWLESS)
    if flowing.any():
        logs = np.log(flows[flowing])
        ordered[flowing] = 1.0 + (logs - logs.min())
    out = np.zeros(scores.size, dtype=np.float32)
    out[kept] = ordered
    return out
