"""The noise of a private scoring step, and what it leaves of the mask."""

import math

import numpy as np
import pytest

from ssfl.method.streams import Stream
from ssfl.study.noisy_mask import clients_needed, noise_of, noisy_overlap, signal_to_noise


def test_the_noise_meets_epsilon_and_delta_and_no_less_does() -> None:
    def delta(z: float, epsilon: float) -> float:
        phi = [
            math.erfc(-x / math.sqrt(2)) / 2
            for x in (0.5 / z - epsilon * z, -0.5 / z - epsilon * z)
        ]
        return phi[0] - math.exp(epsilon) * phi[1]

    for epsilon in (0.5, 1.0, 8.0):
        z = noise_of(epsilon, 1e-3)
        assert delta(z, epsilon) == pytest.approx(1e-3, rel=1e-6)
        assert delta(0.99 * z, epsilon) > 1e-3
    assert noise_of(1, 1e-6) > noise_of(1, 1e-3) > noise_of(4, 1e-3)


def test_hundred_clients_are_too_few_for_the_mask_of_a_resnet18() -> None:
    z, kept = noise_of(1, 1e-3), 1_116_435
    assert signal_to_noise(100, kept, z) < 0.04
    assert 8_000 < clients_needed(kept, z) < 8_300


def test_noise_drowns_the_mask_of_a_few_clients_but_not_of_many() -> None:
    scores = Stream(0, "scores").uniform(1000) ** 8
    unit = scores / np.linalg.norm(scores)
    exact, none = noisy_overlap(scores, 10 * unit, 100, 0.0, Stream(0, "noise")), 0.1
    few, many = (noisy_overlap(scores, n * unit, 100, 1.0, Stream(0, "noise")) for n in (1, 1000))
    assert exact == 1.0
    assert few < 0.25 and few < many and many > 0.9 > none
