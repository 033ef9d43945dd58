"""An independent implementation of SSFL's mask, from the paper: PyTorch, fractions and sorting.

It imports nothing of this repository and is not optimised; ours is compared with it. The network
is two 3x3 convolutions of stride 2 and two linear layers, with ReLU between.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

WEIGHTS = ("conv1.weight", "conv2.weight", "linear1.weight", "linear2.weight")

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any]]


def network(tensors: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = functional.conv2d(x, tensors["conv1.weight"], tensors["conv1.bias"], stride=2, padding=1)
    x = functional.conv2d(
        x.relu(), tensors["conv2.weight"], tensors["conv2.bias"], stride=2, padding=1
    )
    x = functional.linear(x.relu().flatten(1), tensors["linear1.weight"], tensors["linear1.bias"])
    return functional.linear(x.relu(), tensors["linear2.weight"], tensors["linear2.bias"])


def products(arrays: Arrays, x: Floats, y: npt.NDArray[np.int64], dtype: torch.dtype) -> Doubles:
    """Return dL/dw * w of every weight, layer after layer, with its sign."""
    tensors = {
        name: torch.tensor(array, dtype=dtype, requires_grad=True) for name, array in arrays.items()
    }
    outputs = network(tensors, torch.tensor(x, dtype=dtype))
    loss = functional.cross_entropy(outputs, torch.tensor(y))
    weights = [tensors[name] for name in WEIGHTS]
    gradients = torch.autograd.grad(loss, weights)
    parts = [(g * w.detach()).flatten() for g, w in zip(gradients, weights, strict=True)]
    return torch.cat(parts).numpy()


def scores(arrays: Arrays, x: Floats, y: npt.NDArray[np.int64]) -> Floats:
    """Return |dL/dw * w| in float32."""
    return np.abs(products(arrays, x, y, torch.float32)).astype(np.float32)


def grid_bits(largest: float, total: int) -> int:
    """Return the finest grid 2^-F, F up to 80, on which the weighted sum stays below 2^62."""
    return max(bits for bits in range(-64, 81) if Fraction(largest) * total * 2**bits < 2**62)


def mean_on_grid(clients: Sequence[Floats], samples: Sequence[int]) -> Floats:
    """Return sum n_k s_k / sum n_k in exact fractions, each s_k on the grid, rounded once."""
    total = sum(samples)
    bits = grid_bits(max(float(scores.max()) for scores in clients), total)
    means = []
    for values in zip(*clients, strict=True):
        units = sum(
            n * round(Fraction(float(value)) * Fraction(2) ** bits)  # ties to even
            for n, value in zip(samples, values, strict=True)
        )
        means.append(to_float32(Fraction(units, total) / Fraction(2) ** bits))
    return np.array(means, dtype=np.float32)


def to_float32(value: Fraction) -> float:
    """Return the float32 nearest to a non-negative fraction, ties to even."""
    if not value:
        return 0.0
    magnitude = value.numerator.bit_length() - value.denominator.bit_length()
    exponent = max(-149, magnitude - 25)  # of the last bit, or a little less
    while value >= Fraction(2) ** (exponent + 24):
        exponent += 1
    return float(round(value / Fraction(2) ** exponent) * Fraction(2) ** exponent)


def mean_in_float64(clients: Sequence[Floats], samples: Sequence[int]) -> Doubles:
    """Return the weighted mean in float64."""
    weighted = [n * scores.astype(np.float64) for n, scores in zip(samples, clients, strict=True)]
    mean: Doubles = np.sum(weighted, axis=0) / sum(samples)
    return mean


def top(mean: Sequence[float] | npt.NDArray[Any], k: int) -> set[int]:
    """Return the coordinates of the k largest; of equal scores the first."""
    return set(sorted(range(len(mean)), key=lambda place: (-mean[place], place))[:k])
