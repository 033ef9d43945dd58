import math
from dataclasses import replace

import pytest

from ssfl.learning.batches import epoch_rate, round_rate, step_rates
from ssfl.learning.masked_training import personal_settings
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


def over_rounds(settings: RunSettings, count: int) -> list[float]:
    return [round_rate(settings, number) for number in range(count)]


def test_a_cosine_over_the_rounds_falls_to_half_in_the_middle_and_never_to_zero() -> None:
    settings = RunSettings(learning_rate=0.8, lr_schedule="cosine", rounds=4)
    half = math.sqrt(0.5)
    expected = [0.8, 0.4 * (1 + half), 0.4, 0.4 * (1 - half)]
    assert over_rounds(settings, 4) == pytest.approx(expected)
    assert round_rate(settings, 4) == round_rate(settings, 3), "of a personal model"


def test_a_step_lowers_the_rate_every_so_many_rounds() -> None:
    settings = RunSettings(learning_rate=0.8, lr_schedule="step:2:0.5", lr_decay=0.1)
    assert over_rounds(settings, 5) == [0.8, 0.8, 0.4, 0.4, 0.2]


def test_a_warm_up_rises_in_equal_steps_to_the_schedule() -> None:
    settings = RunSettings(learning_rate=0.8, lr_decay=1.0, lr_warmup_rounds=3)
    assert over_rounds(settings, 5) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    falling = replace(settings, lr_schedule="step:2:0.5", lr_warmup_rounds=1)
    assert over_rounds(falling, 4) == pytest.approx([0.4, 0.8, 0.4, 0.4])


def test_the_schedule_inside_a_round_starts_at_the_rate_of_the_round() -> None:
    settings = replace(COSINE, lr_schedule="step:1:0.25")
    assert epoch_rate(settings, 2, 0) == pytest.approx(0.2 / 16)
    assert epoch_rate(settings, 2, 2) == pytest.approx(1e-5 + (0.2 / 16 - 1e-5) / 2)


def test_a_restarted_personal_model_has_the_whole_rate() -> None:
    settings = RunSettings(
        learning_rate=0.8, lr_schedule="cosine", lr_warmup_rounds=2, rounds=4,
        personalize_epochs=1, personalize_lr="restart",
    )  # fmt: skip
    assert round_rate(personal_settings(settings), 4) == 0.8
