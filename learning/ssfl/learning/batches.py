"""The samples and the learning rate of each step.

Random orders come from named streams, never from torch. Round r of R starts at the rate
`learning_rate * lr_decay ** r`. With `lr_schedule` cosine it is `learning_rate` times
(1 + cos(pi r / R)) / 2, with step:N:F times F ** (r // N). The first W = `lr_warmup_rounds` rounds
have (r + 1) / (W + 1) of that. With `local_schedule` cosine, epoch e of the round's E epochs has
the rate lowest + (rate - lowest) * (1 + cos(pi e / E)) / 2 with a lowest rate of 1e-5. The cosine
restarts in every round.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ssfl.datasets.shards.shard_file import Array, Shard
from ssfl.learning.augment import Crops, crop_and_flip, is_augmented, scoring_crops
from ssfl.learning.task import HasLoss
from ssfl.method.schedule import parse_lr_schedule
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

Indices = npt.NDArray[np.int64]

LOWEST_RATE = 1e-5  # at the end of the cosine


def count_steps(num_samples: int, settings: RunSettings) -> int:
    """Return the number of steps in a round: `local_steps`, or that of `local_epochs` epochs."""
    per_epoch = -(-num_samples // settings.batch_size)
    return settings.local_steps or settings.local_epochs * per_epoch


def training_batches(
    num_samples: int, settings: RunSettings, round_number: int, client_id: str
) -> Iterator[Indices]:
    """Yield the sample indices of each step of a round; an epoch's last batch may be smaller."""
    left, epoch = count_steps(num_samples, settings), 0
    while left > 0:
        stream = Stream(settings.seed, "batches", round_number, client_id, epoch)
        order = stream.permutation(num_samples)
        for start in range(0, num_samples, settings.batch_size)[:left]:
            yield order[start : start + settings.batch_size]
            left -= 1
        epoch += 1


def steps_of(epochs: range | None, num_samples: int, settings: RunSettings) -> tuple[int, int]:
    """Return the first step of some epochs of a round, and the step after the last; None: all."""
    steps = count_steps(num_samples, settings)
    if epochs is None:
        return 0, steps
    per_epoch = -(-num_samples // settings.batch_size)
    return min(epochs.start * per_epoch, steps), min(epochs.stop * per_epoch, steps)


def round_rate(settings: RunSettings, round_number: int) -> float:
    """Return the rate at the start of a round; after the last round, the last one of a cosine."""
    kind, every, factor = parse_lr_schedule(settings.lr_schedule)
    if kind == "cosine":
        share = min(round_number, settings.rounds - 1) / settings.rounds
        rate = settings.learning_rate * (1 + math.cos(math.pi * share)) / 2
    elif kind == "step":
        rate = settings.learning_rate * factor ** (round_number // every)
    else:
        rate = settings.learning_rate * settings.lr_decay**round_number
    warmup = settings.lr_warmup_rounds
    return rate * (round_number + 1) / (warmup + 1) if round_number < warmup else rate


def epoch_rate(
    settings: RunSettings, round_number: int, epoch: int, num_epochs: int | None = None
) -> float:
    """Return the rate of an epoch, counted from 0; `num_epochs` defaults to `local_epochs`."""
    rate = round_rate(settings, round_number)
    if settings.local_schedule == "constant":
        return rate
    angle = math.pi * epoch / (num_epochs or settings.local_epochs)
    return LOWEST_RATE + (rate - LOWEST_RATE) * (1 + math.cos(angle)) / 2


def step_rates(settings: RunSettings, round_number: int, num_samples: int) -> list[float]:
    """Return the rate of every step of a round at a client with `num_samples` samples.

    With `local_steps`, too, every pass over the samples is an epoch; the last one may be
    incomplete.
    """
    per_epoch = -(-num_samples // settings.batch_size)
    steps = count_steps(num_samples, settings)
    num_epochs = -(-steps // per_epoch)
    rates = [epoch_rate(settings, round_number, e, num_epochs) for e in range(num_epochs)]
    return [rates[step // per_epoch] for step in range(steps)]


def balanced_batch(labels: Array, batch_size: int, stream: Stream) -> Indices:
    """Return the sample indices of a class-balanced minibatch, ascending and without repetition.

    Classes take turns in random order, each giving a random sample, until the batch is full.
    A class without samples left is skipped. Class counts are thus as equal as the data allow; the
    random classes of an incomplete last turn have one sample more. If `batch_size` is not smaller
    than the number of samples, all are returned.
    """
    if batch_size >= len(labels):
        return np.arange(len(labels), dtype=np.int64)
    shuffled = stream.permutation(len(labels))
    _, class_of, counts = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    by_class = np.argsort(class_of, kind="stable")
    first = np.cumsum(counts) - counts  # start of each class in by_class
    turn = np.arange(len(labels)) - np.repeat(first, counts)  # 0 for the first sample of a class
    class_order = stream.permutation(len(counts))[class_of[by_class]]  # order within each turn
    chosen = np.lexsort((class_order, turn))[:batch_size]
    return np.sort(shuffled[by_class[chosen]])


def plain_batch(num_samples: int, batch_size: int, stream: Stream) -> Indices:
    """Return the sample indices of a uniformly drawn minibatch, ascending."""
    return stream.choose(num_samples, min(batch_size, num_samples))


def scoring_batches(
    shard: Shard, settings: RunSettings, client_id: str, mask_epoch: int, num_batches: int
) -> Iterator[Indices]:
    """Yield the training sample indices of each minibatch that a client scores.

    Minibatches are drawn independently. A shard that fits into one minibatch gives only one, since
    all others would be the same.
    """
    if num_batches < 1:
        raise ValueError(f"cannot score {num_batches} minibatches")
    labels = shard.train_y if shard.num_classes else np.zeros(shard.num_samples, dtype=np.int64)
    one_is_all = shard.num_samples <= settings.batch_size
    for number in range(1 if one_is_all else num_batches):
        parts = [number] if number else []  # the first stream has no number in its name
        stream = Stream(settings.seed, "scoring", mask_epoch, client_id, *parts)
        if settings.scoring_samples == "plain":
            yield plain_batch(shard.num_samples, settings.batch_size, stream)
        else:
            yield balanced_batch(labels, settings.batch_size, stream)


def scoring_tensors(
    model: nn.Module,
    task: HasLoss,
    shard: Shard,
    settings: RunSettings,
    client_id: str,
    mask_epoch: int,
    batches: Iterable[Indices],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the minibatches of `scoring_batches` as tensors: plain, or augmented as in training."""
    is_ours = getattr(task, "fit", None) is None  # a task's own loop does not augment
    augmented = settings.scoring_augment and is_ours and is_augmented(settings, shard)
    crops = None
    for number, indices in enumerate(batches):
        if augmented:
            crops = scoring_crops(settings, mask_epoch, client_id, number, len(indices))
        yield batch_tensors(shard.train_x, shard.train_y, indices, model, crops)


def batch_tensors(
    x: Array, y: Array, indices: Indices, model: nn.Module, crops: Crops | None = None
) -> tuple[Tensor, Tensor]:
    """Return the samples at `indices` as tensors on the model's device; float64 becomes float32.

    With `crops`, the samples are images, which are augmented.
    """
    device = next(model.parameters()).device
    chosen = x[indices] if crops is None else crop_and_flip(x[indices], crops)
    return _tensor(chosen, device), _tensor(y[indices], device)


def _tensor(array: Array, device: torch.device) -> Tensor:
    if array.dtype == np.float64:  # models are float32, and mps has no float64
        array = array.astype(np.float32)
    return torch.from_numpy(array).to(device)
