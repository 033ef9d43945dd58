"""Samples of many shards as one tensor, and the batches of many clients side by side.

A step has as many rows as its longest batch; in a shorter one the rest is padding, a sample of
zeros with a label that cross-entropy leaves out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ssfl.datasets.shards.shard_file import Array
from ssfl.learning.batches import Indices

IGNORED_LABEL = -100  # what cross_entropy ignores unless told otherwise

BatchPlan = Sequence[Sequence[Indices]]  # the batches of each client, as rows of all samples


@dataclass(frozen=True, slots=True)
class StackedBatch:
    """A step of the first clients: those behind them have no batch left."""

    x: Tensor  # (rows, clients, ...)
    y: Tensor  # (rows, clients)
    owners: Tensor  # (rows, clients): numbers of the shards; that of padding follows the last
    sizes: Tensor  # (clients,): samples that are not padding


class StackedSamples:
    """The samples of some shards, one shard after the other, then a padding."""

    def __init__(self, parts: Sequence[tuple[Array, Array]]) -> None:
        lengths = [len(y) for _, y in parts]
        self.spans = list(pairwise(np.cumsum([0, *lengths]).tolist()))  # of each shard's rows
        self.size = sum(lengths)
        x = np.zeros((self.size + 1, *parts[0][0].shape[1:]), dtype=np.float32)
        y = np.full(self.size + 1, IGNORED_LABEL, dtype=np.int64)
        np.concatenate([x for x, _ in parts], out=x[:-1], casting="same_kind")
        np.concatenate([y for _, y in parts], out=y[:-1])
        self._x, self._y = torch.from_numpy(x), torch.from_numpy(y)
        self._owners = torch.arange(len(parts) + 1).repeat_interleave(torch.tensor([*lengths, 1]))

    def steps(self, plan: BatchPlan) -> Iterator[StackedBatch]:
        """Yield step after step, as long as a client has a batch left."""
        for step in range(max(map(len, plan))):
            now = [batches[step] if step < len(batches) else _NOTHING for batches in plan]
            while not now[-1].size:
                now.pop()
            sizes = [batch.size for batch in now]
            rows = np.full((len(now), max(sizes)), self.size, dtype=np.int64)
            for row, batch in zip(rows, now, strict=True):
                row[: batch.size] = batch
            at = torch.from_numpy(rows.T)
            yield StackedBatch(self._x[at], self._y[at], self._owners[at], torch.tensor(sizes))


_NOTHING: Indices = np.empty(0, dtype=np.int64)


def sequential_batches(start: int, stop: int, batch_size: int) -> list[Indices]:
    """Return batches of the samples from `start` to `stop`, in their own order."""
    order = np.arange(start, stop, dtype=np.int64)
    return [order[at : at + batch_size] for at in range(0, stop - start, batch_size)]
