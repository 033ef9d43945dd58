"""The samples and the learning rate of each step.

Every order comes from a named stream, none from torch. Round r starts at the rate
`learning_rate * lr_decay ** r`. With `local_schedule` cosine, epoch e of the round's E epochs has
the rate lowest + (rate - lowest) * (1 + cos(pi e / E)) / 2 with a lowest rate of 1e-5. The cosine
restarts in every round.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ssfl.datasets.shards.shard_file import Array, Shard
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

Indices = npt.NDArray[np.int64]

LOWEST_RATE = 1e-5  # the limit of the cosine


def count_steps(num_samples: int, settings: RunSettings) -> int:
    """Return the number of steps in a round: `local_steps`, or those of `local_epochs` passes."""
    per_epoch = -(-num_samples // settings.batch_size)
    return settings.local_steps or settings.local_epochs * per_epoch


def training_batches(
    num_samples: int, settings: RunSettings, round_number: int, client_id: str
) -> Iterator[Indices]:
    """Yield the samples of each step of a round; the last batch of an epoch may be smaller."""
    left, epoch = count_steps(num_samples, settings), 0
    while left > 0:
        stream = Stream(settings.seed, "batches", round_number, client_id, epoch)
        order = stream.permutation(num_samples)
        for start in range(0, num_samples, settings.batch_size)[:left]:
            yield order[start : start + settings.batch_size]
            left -= 1
        epoch += 1


def epoch_rate(
    settings: RunSettings, round_number: int, epoch: int, num_epochs: int | None = None
) -> float:
    """Return the rate of an epoch, counted from 0; `num_epochs` defaults to `local_epochs`."""
    rate = settings.learning_rate * settings.lr_decay**round_number
    if settings.local_schedule == "constant":
        return rate
    turn = math.pi * epoch / (num_epochs or settings.local_epochs)
    return LOWEST_RATE + (rate - LOWEST_RATE) * (1 + math.cos(turn)) / 2


def step_rates(settings: RunSettings, round_number: int, num_samples: int) -> list[float]:
    """Return the rate of every step of a round at a client with `num_samples` samples.

    Every pass over the samples is an epoch, also with `local_steps`, where the last pass may be
    incomplete.
    """
    per_epoch = -(-num_samples // settings.batch_size)
    steps = count_steps(num_samples, settings)
    num_epochs = -(-steps // per_epoch)
    rates = [epoch_rate(settings, round_number, e, num_epochs) for e in range(num_epochs)]
    return [rates[step // per_epoch] for step in range(steps)]


def balanced_batch(labels: Array, batch_size: int, stream: Stream) -> Indices:
    """Return the samples of a class-balanced minibatch, ascending and without repetition.

    Classes take turns in random order, each giving a random sample, until the batch is full.
    Counts are thus as equal as the data allow, the remainder goes to random classes, and classes
    with many samples fill in for small ones. If `batch_size` is not smaller than the number of
    samples, all are returned.
    """
    if batch_size >= len(labels):
        return np.arange(len(labels), dtype=np.int64)
    shuffled = stream.permutation(len(labels))
    _, members, counts = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    by_class = np.argsort(members, kind="stable")
    first = np.cumsum(counts) - counts  # start of each class in by_class
    turn = np.arange(len(labels)) - np.repeat(first, counts)  # 0 for the first sample of a class
    seat = stream.permutation(len(counts))[members[by_class]]  # place of the class in each turn
    chosen = np.lexsort((seat, turn))[:batch_size]
    return np.sort(shuffled[by_class[chosen]])


def plain_batch(num_samples: int, batch_size: int, stream: Stream) -> Indices:
    """Return the samples of a uniformly drawn minibatch, ascending."""
    return stream.choose(num_samples, min(batch_size, num_samples))


def scoring_batches(
    shard: Shard, settings: RunSettings, client_id: str, mask_epoch: int, num_batches: int
) -> Iterator[Indices]:
    """Yield the training samples of each minibatch that a client scores, drawn independently.

    A shard that fits into one minibatch gives only one, since all others would be the same.
    """
    if num_batches < 1:
        raise ValueError(f"cannot score {num_batches} minibatches")
    labels = shard.train_y if shard.num_classes else np.zeros(shard.num_samples, dtype=np.int64)
    one_is_all = shard.num_samples <= settings.batch_size
    for number in range(1 if one_is_all else num_batches):
        parts = [number] if number else []  # the first is named as if it were the only one
        stream = Stream(settings.seed, "scoring", mask_epoch, client_id, *parts)
        if settings.scoring_samples == "plain":
            yield plain_batch(shard.num_samples, settings.batch_size, stream)
        else:
            yield balanced_batch(labels, settings.batch_size, stream)


def batch_tensors(x: Array, y: Array, indices: Indices, model: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the samples at `indices` as tensors on the model's device; float64 becomes float32."""
    device = next(model.parameters()).device
    return _tensor(x[indices], device), _tensor(y[indices], device)


def _tensor(array: Array, device: torch.device) -> Tensor:
    if array.dtype == np.float64:  # models are float32, and mps has no float64
        array = array.astype(np.float32)
    return torch.from_numpy(array).to(device)
