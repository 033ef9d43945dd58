"""Dirichlet variates from a seeded stream.

Numpy's generators are not used because their distributions may change between versions.
"""

import math

import numpy as np
import numpy.typing as npt

from ssfl.method.initialize import normal
from ssfl.method.streams import Stream

Doubles = npt.NDArray[np.float64]


def dirichlet(alpha: float, rows: int, columns: int, stream: Stream) -> Doubles:
    """Return rows drawn from Dirichlet(alpha, …, alpha): gamma variates divided by their sum.

    Computed with logarithms because for a small alpha most variates underflow a double.
    """
    logs = _log_gamma_variates(alpha, rows * columns, stream).reshape(rows, columns)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    mixes: Doubles = weights / weights.sum(axis=1, keepdims=True)
    return mixes


def _log_gamma_variates(alpha: float, count: int, stream: Stream) -> Doubles:
    """Return logarithms of Gamma(alpha) variates (Marsaglia and Tsang 2000).

    Drawn as Gamma(alpha + 1) times a uniform to the power 1 / alpha, valid for every alpha.
    """
    d = alpha + 1 - 1 / 3
    logs = np.empty(count)
    pending = np.arange(count)
    while pending.size:
        x = normal(stream.uniform(pending.size))
        v = np.maximum(1 + x / math.sqrt(9 * d), 0) ** 3
        log_v = np.log(np.where(v > 0, v, 1))
        bound = x * x / 2 + d - d * v + d * log_v
        accepted = (v > 0) & (np.log(stream.uniform(pending.size)) < bound)
        logs[pending[accepted]] = math.log(d) + log_v[accepted]
        pending = pending[~accepted]
    return logs + np.log(stream.uniform(count)) / alpha
