import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssfl.study.errors import StudyError
from ssfl.study.intervals import (
    last_rounds_mean,
    mean_and_sd,
    paired_difference,
    spread,
    t_quantile,
)

# Two-sided 95 % and 99 % points of Student's t, from a statistical table.
TABLE = {
    1: (12.706, 63.657),
    2: (4.303, 9.925),
    3: (3.182, 5.841),
    4: (2.776, 4.604),
    5: (2.571, 4.032),
    9: (2.262, 3.250),
    10: (2.228, 3.169),
    29: (2.045, 2.756),
    30: (2.042, 2.750),
    120: (1.980, 2.617),
}


@pytest.mark.parametrize("freedom", TABLE)
def test_quantiles_equal_the_printed_table(freedom: int) -> None:
    found = (t_quantile(0.975, freedom), t_quantile(0.995, freedom))
    assert tuple(round(one, 3) for one in found) == TABLE[freedom]


def test_quantiles_equal_the_closed_formulas() -> None:
    for probability in (0.6, 0.9, 0.975, 0.9995):
        one = math.tan(math.pi * (probability - 0.5))
        two = (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
        assert t_quantile(probability, 1) == pytest.approx(one, rel=1e-12)
        assert t_quantile(probability, 2) == pytest.approx(two, rel=1e-12)
    assert t_quantile(0.5, 7) == pytest.approx(0, abs=1e-12)
    assert t_quantile(0.975, 100_001) == pytest.approx(1.95996, abs=1e-4), "near the normal"


@pytest.mark.parametrize(("probability", "freedom"), [(1.0, 4), (0.4, 4), (0.975, 0)])
def test_an_impossible_quantile_is_refused(probability: float, freedom: int) -> None:
    with pytest.raises(StudyError, match="no quantile of Student's t"):
        t_quantile(probability, freedom)


def test_mean_and_deviation_of_a_few_values() -> None:
    assert mean_and_sd([1.0, 3.0]) == (2.0, math.sqrt(2))
    assert mean_and_sd([5.0])[0] == 5.0 and math.isnan(mean_and_sd([5.0])[1])
    assert all(math.isnan(one) for one in mean_and_sd([]))


def test_a_single_seed_has_no_interval() -> None:
    one = spread([90.0])
    assert (one.mean, one.count) == (90.0, 1)
    assert math.isnan(one.low) and math.isnan(one.half_width)


def test_an_effect_of_the_seed_on_both_sides_cancels_out() -> None:
    """Differences 1, 2, 0, 1, 1 have sd 0.7071 and half width 2.776 * 0.7071 / 5**0.5."""
    theirs = {seed: 10.0 * seed for seed in range(5)}
    ours = {seed: theirs[seed] + more for seed, more in enumerate([1, 2, 0, 1, 1])}
    found = paired_difference(ours, theirs)
    assert found.mean == pytest.approx(1.0)
    assert found.sd == pytest.approx(math.sqrt(0.5))
    assert found.half_width == pytest.approx(0.87798, abs=1e-5)
    assert (found.low, found.high) == pytest.approx((0.12202, 1.87798), abs=1e-5)


def test_sides_with_different_seeds_are_refused() -> None:
    with pytest.raises(StudyError, match=r"only one side has 1, 2$"):
        paired_difference({0: 1.0, 1: 1.0}, {0: 1.0, 2: 1.0})


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.floats(-1e3, 1e3))
def test_a_shift_moves_the_mean_and_leaves_the_width(values: list[float], shift: float) -> None:
    before, after = spread(values), spread([value + shift for value in values])
    assert after.mean == pytest.approx(before.mean + shift, abs=1e-6)
    assert after.half_width == pytest.approx(before.half_width, abs=1e-4)
    assert before.low <= before.mean <= before.high


def history(rounds: int, tested: dict[int, float | None]) -> dict[str, Any]:
    return {
        "rounds_done": rounds,
        "rounds": [{"round": one, "personal": one / 100} for one in range(rounds)],
        "evaluations": [
            {
                "rounds_done": done,
                "mean": value,
                "pooled": 1.0,
                "validation": {"mean": 0.25, "pooled": None} if done % 2 else None,
            }
            for done, value in tested.items()
        ],
    }


def test_the_last_rounds_end_with_the_last_models() -> None:
    document = history(20, {done: float(done) for done in range(1, 21)})
    assert last_rounds_mean(document) == pytest.approx(15.5), "models 11 to 20"
    assert last_rounds_mean(document, count=1) == 20
    assert last_rounds_mean(document, count=3, accuracy="pooled") == 1.0
    assert last_rounds_mean(document, count=3, accuracy="personal") == pytest.approx(0.18)
    assert last_rounds_mean(document, accuracy="validation_mean") == 0.25
    assert last_rounds_mean(document, accuracy="validation_pooled") is None


def test_rounds_without_an_evaluation_are_left_out() -> None:
    assert last_rounds_mean(history(20, {10: 0.5, 20: 0.7})) == 0.7
    assert last_rounds_mean(history(20, {11: 0.5, 20: 0.7})) == pytest.approx(0.6)
    assert last_rounds_mean(history(20, {20: None})) is None


def test_an_unknown_accuracy_is_refused() -> None:
    with pytest.raises(StudyError, match=r"one of pooled, mean, personal, .* not 'best'"):
        last_rounds_mean(history(2, {2: 0.5}), accuracy="best")
