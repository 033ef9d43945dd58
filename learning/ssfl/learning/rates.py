"""The learning rate of every step.

Round r starts at `learning_rate * lr_decay ** r`. With `local_schedule` cosine, epoch e of the
round's E epochs has the rate lowest + (rate - lowest) * (1 + cos(pi e / E)) / 2 with a lowest
rate of 1e-5. The cosine restarts in every round.
"""

import math

from ssfl.learning.batches import count_steps
from ssfl.method.settings import RunSettings

LOWEST = 1e-5  # the limit of the cosine


def epoch_rate(
    settings: RunSettings, round_number: int, epoch: int, num_epochs: int | None = None
) -> float:
    """Return the rate of an epoch, counted from 0; `num_epochs` defaults to `local_epochs`."""
    rate = settings.learning_rate * settings.lr_decay**round_number
    if settings.local_schedule == "constant":
        return rate
    turn = math.pi * epoch / (num_epochs or settings.local_epochs)
    return LOWEST + (rate - LOWEST) * (1 + math.cos(turn)) / 2


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
