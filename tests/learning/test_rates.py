import math

import pytest

from ssfl.learning.batches import epoch_rate, step_rates
from ssfl.method.settings import RunSettings

CONSTANT = RunSettings(learning_rate=0.2, lr_decay=0.5, local_epochs=4, batch_size=16)
COSINE = RunSettings(
    learning_rate=0.2, lr_decay=0.5, local_epochs=4, batch_size=16, local_schedule="cosine"
)


def test_the_rate_decays_from_round_to_round() -> None:
    assert [epoch_rate(CONSTANT, r, 0) for r in range(3)] == [0.2, 0.1, 0.05]
    assert [epoch_rate(CONSTANT, 1, epoch) for epoch in range(4)] == [0.1] * 4


def test_a_cosine_falls_from_the_rounds_rate_and_restarts_every_round() -> None:
    half = math.sqrt(0.5)
    shares = [1, (1 + half) / 2, 0.5, (1 - half) / 2]
    for round_number, rate in enumerate((0.2, 0.1)):
        rates = [epoch_rate(COSINE, round_number, epoch) for epoch in range(4)]
        assert rates == pytest.approx([1e-5 + (rate - 1e-5) * share for share in shares])


def test_a_step_has_the_rate_of_its_pass() -> None:
    first, second, third, fourth = (epoch_rate(COSINE, 0, epoch) for epoch in range(4))
    expected = [first] * 3 + [second] * 3 + [third] * 3 + [fourth] * 3
    assert step_rates(COSINE, 0, num_samples=33) == expected


def test_with_local_steps_the_passes_needed_are_the_epochs() -> None:
    steps = RunSettings(batch_size=16, local_steps=5, local_schedule="cosine")
    first, second = (epoch_rate(steps, 0, epoch, num_epochs=2) for epoch in range(2))
    assert first > second
    assert step_rates(steps, 0, num_samples=33) == [first] * 3 + [second] * 2
