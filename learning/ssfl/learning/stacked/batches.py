"""Samples of many shards as one tensor, and batches of many clients.

A step has as many rows as its longest batch. Shorter batches are padded with a sample of zeros
and a label that cross-entropy ignores.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ssfl.datasets.shards.shard_file import Array
from ssfl.learning.augment import Crops, crop_and_flip
from ssfl.learning.batches import Indices

IGNORED_LABEL = -100  # the default of cross_entropy's ignore_index

BatchPlan = Sequence[Sequence[Indices]]  # each client's batches, as row numbers of StackedSamples
CropPlan = Callable[[int, int, int], Crops]  # by client, step from 0, and number of samples


@dataclass(frozen=True, slots=True)
class StackedBatch:
    """One step of the first clients; the others have no batches left."""

    x: Tensor  # (rows, clients, ...)
    y: Tensor  # (rows, clients)
    owners: Tensor  # (rows, clients): shard numbers; padding has the number after the last
    sizes: Tensor  # (clients,): number of samples without padding


class StackedSamples:
    """The samples of several shards, one after the other, and a padding sample."""

    def __init__(self, parts: Sequence[tuple[Array, Array]]) -> None:
        lengths = [len(y) for _, y in parts]
        self.spans = list(pairwise(np.cumsum([0, *lengths]).tolist()))  # rows of each shard
        self.size = sum(lengths)
        x = np.zeros((self.size + 1, *parts[0][0].shape[1:]), dtype=np.float32)
        y = np.full(self.size + 1, IGNORED_LABEL, dtype=np.int64)
        np.concatenate([x for x, _ in parts], out=x[:-1], casting="same_kind")
        np.concatenate([y for _, y in parts], out=y[:-1])
        self._x, self._y = torch.from_numpy(x), torch.from_numpy(y)
        self._owners = torch.arange(len(parts) + 1).repeat_interleave(torch.tensor([*lengths, 1]))

    def steps(self, plan: BatchPlan, crops: CropPlan | None = None) -> Iterator[StackedBatch]:
        """Yield the steps until no client has a batch left.

        With `crops`, the samples are images, which are augmented.
        """
        for step in range(max(map(len, plan))):
            current = [batches[step] if step < len(batches) else _NO_SAMPLES for batches in plan]
            while not current[-1].size:
                current.pop()
            sizes = [batch.size for batch in current]
            rows = np.full((len(current), max(sizes)), self.size, dtype=np.int64)
            for row, batch in zip(rows, current, strict=True):
                row[: batch.size] = batch
            at = torch.from_numpy(rows.T)
            x = self._x[at]
            if crops is not None:
                _augment(x.numpy(), [crops(client, step, n) for client, n in enumerate(sizes)])
            yield StackedBatch(x, self._y[at], self._owners[at], torch.tensor(sizes))


def _augment(x: Array, crops: Sequence[Crops]) -> None:
    """Augment images (rows, clients, ...) in place; padding stays as it is."""
    for client, own in enumerate(crops):
        x[: len(own), client] = crop_and_flip(x[: len(own), client], own)


_NO_SAMPLES: Indices = np.empty(0, dtype=np.int64)


def sequential_batches(start: int, stop: int, batch_size: int) -> list[Indices]:
    """Return batches of the samples from `start` to `stop`, in order."""
    order = np.arange(start, stop, dtype=np.int64)
    return [order[at : at + batch_size] for at in range(0, stop - start, batch_size)]
