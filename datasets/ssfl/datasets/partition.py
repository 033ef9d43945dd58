"""Splitting one data set among clients, seeded.

Both kinds are balanced: every client gets N // K or N // K + 1 samples and every sample is used
exactly once. `iid` deals shuffled samples; `dirichlet` gives client i a class mix
q_i ~ Dirichlet(alpha) and draws the label of each of its samples from q_i, renormalised over
the classes that still have samples (the paper's split). Clients draw in a shuffled order, one
sample at a time, so that no client is left with only what the others did not want.

Test samples follow the training samples: each class is cut in proportion to the clients'
training counts, so that the local test sets together are the whole test set, once.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import ShardError
from ssfl.method.initialize import normal
from ssfl.method.streams import Stream

Labels = npt.NDArray[np.integer[Any]]
Indices = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

KINDS = ("dirichlet", "iid")
_NEGLIGIBLE = 1e-100  # a wish so small that multiplying it by a chance may lose all its digits


def partition(labels: Labels, clients: int, kind: str, alpha: float, seed: int) -> list[Indices]:
    """Return each client's sample indices, ascending; `alpha` matters for `dirichlet` only."""
    if kind not in KINDS:
        raise ShardError(f"the partition must be one of {', '.join(KINDS)}, got {kind!r}")
    if not 1 <= clients <= len(labels):
        raise ShardError(f"cannot split {len(labels)} samples among {clients} clients")
    shuffled = Stream(seed, "partition", "samples").permutation(len(labels))
    slots = np.arange(len(labels), dtype=np.int64) % clients  # client of each slot: equal sizes
    if kind == "iid":
        samples = shuffled
    else:
        if not 0 < alpha < math.inf:
            raise ShardError(f"alpha must be a number above 0, got {alpha}")
        slots = slots[Stream(seed, "partition", "slots").permutation(len(labels))]
        mixes = client_mixes(alpha, clients, len(np.unique(labels)), seed)
        samples = _draw_by_class(labels, shuffled, slots, mixes, seed)
    return [np.sort(samples[slots == client]) for client in range(clients)]


def count_classes(labels: Labels, parts: list[Indices], num_classes: int) -> Indices:
    """Return how many samples of each class each part has: (parts, num_classes)."""
    counts = [np.bincount(labels[part], minlength=num_classes) for part in parts]
    return np.array(counts, dtype=np.int64)


def partition_test(test_labels: Labels, train_counts: Indices) -> list[Indices]:
    """Return each client's test indices, ascending, for training counts (clients, num_classes).

    A class that nobody trains on is dealt out evenly.
    """
    clients, num_classes = train_counts.shape
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label in range(num_classes):
        samples = np.flatnonzero(test_labels == label)
        counts = train_counts[:, label]
        counts = counts if counts.any() else np.ones_like(counts)
        cuts = np.cumsum(counts) * len(samples) // counts.sum()
        for part, piece in zip(parts, np.split(samples, cuts[:-1]), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def _draw_by_class(
    labels: Labels, shuffled: Indices, slots: Indices, mixes: Doubles, seed: int
) -> Indices:
    """Return a sample for each slot, its class drawn from the mix of the slot's client."""
    pools = [shuffled[labels[shuffled] == label].tolist() for label in np.unique(labels)]
    left = np.array([len(pool) for pool in pools])
    samples = np.empty(len(slots), dtype=np.int64)
    for slot, chance in enumerate(Stream(seed, "partition", "draws").uniform(len(slots))):
        weights = mixes[slots[slot]] * (left > 0)
        if weights.sum() < _NEGLIGIBLE:  # the client wants only classes that are used up
            weights = left.astype(np.float64)
        reach = np.cumsum(weights)
        label = int(np.searchsorted(reach, chance * reach[-1], side="right"))
        samples[slot] = pools[label].pop()
        left[label] -= 1
    return samples


def client_mixes(alpha: float, clients: int, num_classes: int, seed: int) -> Doubles:
    """Return the class mix that each client wishes for: (clients, num_classes)."""
    return dirichlet(alpha, clients, num_classes, Stream(seed, "partition", "mixes"))


def dirichlet(alpha: float, rows: int, columns: int, stream: Stream) -> Doubles:
    """Return rows drawn from Dirichlet(alpha, …, alpha): gamma variates over their sum.

    Worked in logarithms, since for a small alpha most variates are below any double.
    """
    logs = _log_gamma_variates(alpha, rows * columns, stream).reshape(rows, columns)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    mixes: Doubles = weights / weights.sum(axis=1, keepdims=True)
    return mixes


def _log_gamma_variates(alpha: float, count: int, stream: Stream) -> Doubles:
    """Return logarithms of Gamma(alpha) variates (Marsaglia and Tsang 2000).

    Drawn as Gamma(alpha + 1) times a uniform to the power 1 / alpha, which suits every alpha.
    Our own, because numpy may change its generators' distributions between versions.
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
