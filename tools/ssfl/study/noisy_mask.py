"""The mask of noisy scores: what differential privacy of the one scoring step leaves of it.

The Gaussian mechanism for a sum over clients: each client scales its scores to norm 1, so that one
client changes the sum by at most 1, and the sum gets noise of deviation z in every coordinate. For
epsilon and delta, z is the smallest with (Balle and Wang 2018)

    Phi(1 / 2z - epsilon z) - e^epsilon Phi(-1 / 2z - epsilon z) <= delta

A kept coordinate of n clients that agree has about n / sqrt(k) in the sum, k kept weights having
all of the norm. The mask survives only if that is well above z: n >> z sqrt(k). The noise covers
the scores alone. The updates of the rounds are sent as they are.
"""

import math

from ssfl.method.initialize import normal
from ssfl.method.streams import Stream
from ssfl.study.loss_change import top_overlap
from ssfl.study.mask_error import Doubles

RATIO = 3.0  # signal over noise that a usable mask needs
_HALVINGS = 100


def noise_of(epsilon: float, delta: float) -> float:
    """Return z, the deviation of the noise for a sum to which a client adds at most 1.

    >>> [round(noise_of(epsilon, 1e-3), 2) for epsilon in (1, 4, 8)]
    [2.57, 0.82, 0.48]
    """
    low, high = 1e-3, 1e6
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if _delta(middle, epsilon) > delta:
            low = middle
        else:
            high = middle
    return high


def _delta(z: float, epsilon: float) -> float:
    return _phi(0.5 / z - epsilon * z) - math.exp(epsilon) * _phi(-0.5 / z - epsilon * z)


def _phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def signal_to_noise(clients: int, kept: int, z: float) -> float:
    """Return what clients that agree add to a kept coordinate, relative to the noise.

    >>> signal_to_noise(100, 2500, 0.5)
    4.0
    """
    return clients / (z * math.sqrt(kept))


def clients_needed(kept: int, z: float) -> int:
    """Return the clients with which the signal is three times the noise.

    >>> clients_needed(2500, 0.5)
    75
    """
    return math.ceil(RATIO * z * math.sqrt(kept))


def noisy_overlap(exact: Doubles, unit_sum: Doubles, kept: int, z: float, stream: Stream) -> float:
    """Return the share of the exact mask that the mask of the noisy sum has.

    `unit_sum` is the sum of the clients' scores, each scaled to norm 1.
    """
    noise = normal(stream.uniform(len(unit_sum)))
    return top_overlap(exact, unit_sum + z * noise, kept)
