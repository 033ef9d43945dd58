"""Robust means: median, trimmed mean and Krum on numbers worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ssfl.method.errors import SettingsError
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import (
    ClientHalf,
    ClientId,
    Position,
    Reduced,
    Reducer,
    StepDone,
    Work,
)
from ssfl.strategies.methods import robust
from ssfl.strategies.methods.robust import add_distances, krum_scores, lowest, median, trimmed_mean
from ssfl.strategies.registry import check_settings
from strategies.fakes import FakeUploads, floats, mask_of, model, rule_of, vector

NOTHING = Reduced(np.empty(0, dtype=np.float32))


def column(*values: float) -> Vector:
    return vector(*values).reshape(-1, 1)


def combined(uploads: FakeUploads, state: ModelState | None = None, **options: Any) -> list[float]:
    rule = rule_of("robust", **options)
    state = state or model(mask_of(1, 3), 2, 4, 5, 6)
    after = rule.finish(StepDone(Work.TRAIN, 0), state, NOTHING, uploads)
    assert after.mask == state.mask
    return floats(after.values)


# -- median and trimmed mean


def test_the_median_of_an_odd_number_is_the_middle_value_and_of_an_even_number_the_mean() -> None:
    assert floats(median(column(5, -1, 3))) == [3]
    assert floats(median(column(5, -1, 3, 4))) == [3.5]
    assert floats(median(column(7))) == [7]
    assert floats(median(column(7, 8))) == [7.5]


def test_each_value_has_its_own_median() -> None:
    assert floats(median(np.array([[1, 30], [2, 10], [3, 20]], dtype=np.float32))) == [2, 20]


def test_the_trimmed_mean_drops_values_at_both_ends() -> None:
    assert floats(trimmed_mean(column(100, 1, 2, 3, -100), 1)) == [2]
    assert floats(trimmed_mean(column(100, 1, 2, 3, -100), 2)) == [2]
    assert floats(trimmed_mean(column(4, 4, 4, 9), 1)) == [4], "equal values"
    assert floats(trimmed_mean(column(-3, -1, -2), 0)) == [-2]


def test_sums_are_float64() -> None:
    """In float32, 2^24 + 1 + 1 is 2^24."""
    assert floats(trimmed_mean(column(2**24, 1, 1, -(2**24)), 0)) == [0.5]


def test_one_attacker_of_three_cannot_move_the_median_beyond_the_others() -> None:
    uploads = FakeUploads(
        {"a": vector(1, 1, 1, 1), "b": vector(2, 2, 2, 2), "evil": vector(900, -900, 900, -900)}
    )
    assert combined(uploads) == [2, 1, 2, 1]


def test_all_clients_have_the_same_weight() -> None:
    uploads = FakeUploads(
        {"a": vector(1, 1, 1, 1), "b": vector(1, 1, 1, 1), "heavy": vector(9, 9, 9, 9)}
    )
    assert combined(uploads) == [1, 1, 1, 1]


def same(*values: float) -> FakeUploads:
    """Return uploads whose values are all the same."""
    return FakeUploads({f"c{n:03}": np.full(4, x, np.float32) for n, x in enumerate(values)})


def test_the_share_is_rounded_down_and_taken_as_written() -> None:
    """In floats 0.29 * 100 is below 29, and one of 29 outliers would count."""
    outliers = same(*[500.0] * 29, *[1.0] * 71)
    assert combined(outliers, kind="trimmed-mean", trim=0.29) == [1] * 4
    nine = same(*[1.0] * 8, 10.0)  # floor(0.9) = 0 are dropped
    assert combined(nine, kind="trimmed-mean", trim=0.1) == [2] * 4


def test_zeros_of_both_signs_give_one_result() -> None:
    """The order in which a sort leaves 0.0 and -0.0 must not decide the bits of the model."""
    for signs in ((0.0, -0.0, -0.0), (-0.0, 0.0, -0.0), (-0.0, -0.0, -0.0)):
        state = model(mask_of(1, 3), 2, 4, 5, 6)
        after = rule_of("robust").finish(StepDone(Work.TRAIN, 0), state, NOTHING, same(*signs))
        assert after.values is not None
        assert after.values.tobytes() == vector(0, 0, 0, 0).tobytes()


# -- Krum


def distances_of(*rows: tuple[float, ...]) -> robust.Distances:
    found = np.zeros((len(rows), len(rows)))
    add_distances(found, np.array(rows, dtype=np.float32))
    return found


def test_distances_are_squared_and_symmetric() -> None:
    assert distances_of((0, 0), (3, 4), (0, 1)).tolist() == [[0, 25, 1], [25, 0, 18], [1, 18, 0]]


def test_distances_of_blocks_add_up() -> None:
    found = np.zeros((2, 2))
    for rows in ([[0, 0], [3, 4]], [[1], [3]]):
        add_distances(found, np.array(rows, dtype=np.float32))
    assert found.tolist() == [[0, 29], [29, 0]]


def test_distances_of_long_updates_are_complete() -> None:
    num_values = 2 * robust.CACHED + 3
    rows = np.outer([0, 1, 3], np.ones(num_values)).astype(np.float32)
    found = np.zeros((3, 3))
    add_distances(found, rows)
    assert (found / num_values).tolist() == [[0, 1, 9], [1, 0, 4], [9, 4, 0]]


def test_a_score_is_the_sum_over_the_nearest_others() -> None:
    """At 0, 1, 3, 7 and 100 with f = 1, two neighbours count.

    0: 1 + 9, 1: 1 + 4, 3: 4 + 9, 7: 16 + 36, 100: 93^2 + 97^2.
    """
    scores = krum_scores(distances_of((0,), (1,), (3,), (7,), (100,)), 1)
    assert scores.tolist() == [10, 5, 13, 52, 8649 + 9409]
    assert lowest(scores, 1) == [1]
    assert lowest(scores, 3) == [0, 1, 2]


def test_without_attackers_all_but_one_neighbour_counts() -> None:
    assert krum_scores(distances_of((0,), (1,), (3,)), 0).tolist() == [1, 1, 4]


def test_equal_updates_have_distance_zero_and_the_first_of_them_wins() -> None:
    scores = krum_scores(distances_of((5,), (2,), (2,), (2,), (5,)), 1)
    assert scores.tolist() == [9, 0, 0, 0, 9]
    assert lowest(scores, 1) == [1]
    assert lowest(scores, 2) == [1, 2]
    assert lowest(np.zeros(4), 2) == [0, 1], "all equal"
    assert lowest(np.zeros(2), 5) == [0, 1], "more than there are"


FIVE = {name: vector(x, x, x, x) for name, x in zip("abcde", (0, 1, 3, 7, 100), strict=True)}


def test_krum_takes_one_update_and_multi_krum_the_mean_of_several() -> None:
    assert combined(FakeUploads(FIVE), kind="krum") == [1] * 4
    third = float(np.float32(4 / 3))
    assert combined(FakeUploads(FIVE), kind="krum", chosen=3) == [third] * 4
    assert combined(FakeUploads(FIVE), kind="krum", chosen=2) == [0.5] * 4


def test_krum_does_not_mix_updates() -> None:
    """One client's values, although another is nearer in each single value."""
    rows = {"a": (0, 9), "b": (0, 0), "c": (9, 0), "d": (1, 1), "e": (0, 1)}
    uploads = FakeUploads({name: vector(*row, 0, 0) for name, row in rows.items()})
    # b: 1 + 2, d: 1 + 2, e: 1 + 1
    assert combined(uploads, kind="krum") == [0, 1, 0, 0]


# -- blocks


@pytest.mark.parametrize(
    "options",
    [{}, {"kind": "trimmed-mean", "trim": 0.2}, {"kind": "krum"}, {"kind": "krum", "chosen": 3}],
)
def test_uploads_are_read_in_blocks(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    values = {name: rng.integers(-9, 9, 4).astype(np.float32) for name in "abcde"}
    whole = combined(FakeUploads(values), **options)
    monkeypatch.setattr(robust, "BLOCK", 3)
    uploads = FakeUploads(values)
    assert combined(uploads, **options) == whole
    assert set(uploads.reads) == {3, 1}, "four values"


# -- the rule


def test_the_rounds_are_fedavgs_with_single_uploads_and_equal_weights() -> None:
    rule = rule_of("robust", RunSettings(rounds=1, clients_per_round=2))
    clients = [ClientId(name) for name in "abc"]
    plan = rule.plan(Position(0, 1, 0), clients)
    assert plan is not None
    assert (plan.work, plan.reducer, plan.equal_weights) == (Work.TRAIN, Reducer.NONE, True)
    assert len(plan.cohort) == 2
    assert rule.plan(Position(1, 1, 0), clients) is None
    assert rule.reads_single_uploads and type(rule.client()) is ClientHalf


def test_a_lossy_run_commits_the_coded_change() -> None:
    settings = RunSettings(value_type="grid", grid_bits=1, rounding="nearest")
    rule, state = rule_of("robust", settings), model(mask_of(1, 3), 2, 4, 5, 6)
    uploads = FakeUploads({"a": vector(2.4, 4.1, 5, 6)})
    after = rule.finish(StepDone(Work.TRAIN, 0), state, NOTHING, uploads)
    assert (floats(after.values), after.change is not None) == ([2.5, 4, 5, 6], True)


def test_a_dense_model_is_combined_as_well() -> None:
    uploads = FakeUploads({"a": vector(1, 2, 3, 4, 5, 6), "b": vector(3, 4, 5, 6, 7, 8)})
    state = model(Mask.full(4), *range(6))
    assert combined(uploads, state) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("options", "fewest"),
    [
        ({"kind": "krum"}, 5),
        ({"kind": "krum", "byzantine": 0}, 3),
        ({"kind": "krum", "byzantine": 3}, 9),
        ({"kind": "krum", "chosen": 6}, 7),
        ({"kind": "trimmed-mean"}, 10),
        ({"kind": "trimmed-mean", "trim": 0.29}, 4),
        ({"kind": "median"}, 1),
    ],
)
def test_a_round_must_have_enough_updates(options: dict[str, Any], fewest: int) -> None:
    rule_of("robust", RunSettings(min_clients=fewest), **options).check()
    if fewest > 1:
        with pytest.raises(SettingsError, match=f"at least {fewest}"):
            rule_of("robust", RunSettings(min_clients=fewest - 1), **options).check()


@pytest.mark.parametrize("trim", [0.0, 0.5])
def test_a_share_that_drops_nothing_or_all_is_refused(trim: float) -> None:
    with pytest.raises(SettingsError, match="above 0 and below"):
        rule_of("robust", kind="trimmed-mean", trim=trim).check()


def test_clients_with_own_masks_are_refused() -> None:
    settings = RunSettings(strategy="robust")
    check_settings(settings)
    with pytest.raises(SettingsError, match="--criterion client-random"):
        check_settings(replace(settings, criterion="client-random"))
