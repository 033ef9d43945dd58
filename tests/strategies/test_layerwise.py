"""Counts and masks layer by layer."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssfl.method.errors import DensityError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.strategies.layerwise import (
    exact_counts,
    filled,
    grow_by_layer,
    kept_by_layer,
    layer_counts,
    layer_sizes,
    moved,
    num_kept,
    run_counts,
    spread,
    sums_by_layer,
    top_by_layer,
)
from strategies.scripted_site import bits_of, manifest_of, mask_of, vector, votes

# Two convolutions of 3x3 and a linear layer: 36, 288 and 320 weights, 644 in total.
NET = manifest_of((4, 1, 3, 3), (8, 4, 3, 3), (10, 32), biases=22)
SHAPE_SUMS = [4 + 1 + 3 + 3, 8 + 4 + 3 + 3, 10 + 32]  # 11, 18 and 42, 71 in total


def erk_counts(manifest: Manifest, total: int) -> list[int]:
    return layer_counts(exact_counts("erk", manifest, total), manifest, total)


def test_erk_keeps_eps_times_the_sum_of_the_shape() -> None:
    """64 of 644: eps = 64 / 71, so 9.915, 16.225 and 37.859; densities 0.275, 0.056 and 0.118."""
    exact = filled(SHAPE_SUMS, layer_sizes(NET), 64)
    assert exact == [Fraction(11 * 64, 71), Fraction(18 * 64, 71), Fraction(42 * 64, 71)]
    densities = [float(kept / size) for kept, size in zip(exact, layer_sizes(NET), strict=True)]
    assert densities == pytest.approx([0.27543, 0.056338, 0.118310], rel=1e-4)
    assert erk_counts(NET, 64) == [10, 16, 38], "the first and the last have the largest remainders"


def test_erk_makes_a_small_layer_dense_and_solves_again() -> None:
    """322 of 644: eps = 4.535 would keep 49.9 of 36. The other 286 give eps = 286 / 60."""
    assert filled(SHAPE_SUMS, layer_sizes(NET), 322) == [36, Fraction(858, 10), Fraction(2002, 10)]
    assert erk_counts(NET, 322) == [36, 86, 200]


def test_erk_makes_several_layers_dense_one_after_another() -> None:
    """600 of 644: without the first layer eps = 564 / 60 = 9.4, which keeps 394.8 of 320."""
    assert erk_counts(NET, 600) == [36, 600 - 36 - 320, 320]
    assert erk_counts(NET, 644) == [36, 288, 320]


def test_erk_ignores_the_tensors_that_are_always_dense() -> None:
    assert erk_counts(manifest_of((4, 1, 3, 3), (8, 4, 3, 3), (10, 32), biases=0), 64) == [
        10, 16, 38,
    ]  # fmt: skip


def test_equal_densities_sum_to_the_total() -> None:
    """A tenth: 3.6, 28.8 and 32; the floors miss one weight, which the second layer gets."""
    assert layer_counts(exact_counts("uniform", NET, 64), NET, 64) == [3, 29, 32]


def test_linear_sparsities_are_proportional_to_those_of_erk() -> None:
    """Shapes (4, 9) and (10, 32): 23 / 36 and 278 / 320; half of 356 is pruned by 178 / 301."""
    layers = manifest_of((4, 9), (10, 32))
    exact = exact_counts("linear", layers, 178)
    assert exact == [36 - Fraction(23 * 178, 301), 320 - Fraction(278 * 178, 301)]
    assert [int(count) for count in exact] == [22, 155]
    assert [int(count) for count in exact_counts("linear", layers, Fraction(712, 10))] == [14, 56]
    assert exact_counts("linear", manifest_of((2, 2), (6, 6)), 8) == [4, 4], "4 - 4 = 0: dense"


def test_of_equal_remainders_the_first_is_rounded_up() -> None:
    assert spread([1, 1], [9, 9], 3) == [2, 1]
    assert spread([1, 1, 1], [9, 9, 9], 5) == [2, 2, 1]


def test_layers_without_a_share_get_the_rest_by_size() -> None:
    """The first is full with 2. The others have no shares: 6 places of 9 are filled."""
    assert filled([5, 0, 0], [2, 3, 6], 8) == [2, 2, 4]
    assert spread([0, 0], [4, 2], 3) == [2, 1]
    assert spread([0, 0], [4, 2], 0) == [0, 0]


def test_more_than_all_places_cannot_be_spread() -> None:
    with pytest.raises(ValueError, match="cannot spread 7 over 6 places"):
        spread([1, 1], [4, 2], 7)


def test_every_layer_keeps_a_weight_if_there_are_enough() -> None:
    sizes = manifest_of(2, 2, 96)
    assert spread([0, 0, 96], layer_sizes(sizes), 10) == [0, 0, 10]
    assert layer_counts([0, 0, 96], sizes, 10) == [1, 1, 8]
    assert layer_counts([0, 0, 96], sizes, 2) == [1, 0, 1], "two weights for three layers"
    assert layer_counts([0, 0, 96], sizes, 0) == [0, 0, 0]


@given(
    layers=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=6),
    share=st.integers(0, 100),
)
def test_counts_sum_to_the_total_and_fit_into_their_layers(
    layers: list[tuple[int, int]], share: int
) -> None:
    shares, sizes = [share for share, _ in layers], [size for _, size in layers]
    total = sum(sizes) * share // 100
    for counts in (spread(shares, sizes, total), layer_counts(shares, manifest_of(*sizes), total)):
        assert sum(counts) == total
        assert all(0 <= count <= size for count, size in zip(counts, sizes, strict=True))


def test_the_sparsity_counts_the_masked_weights() -> None:
    assert num_kept(RunSettings(sparsity="0.9"), NET) == 64  # floor(64.4)


def test_counts_are_rounded_to_the_total_or_down() -> None:
    """A tenth, uniform: 3.6, 28.8, 32. ERK has eps = 64.4 / 71: 9.977, 16.327, 38.096."""
    settings = RunSettings(sparsity="0.9")
    assert run_counts(settings, NET, "uniform") == [3, 29, 32]
    assert run_counts(settings, NET, "uniform", "floor") == [3, 28, 32]
    assert run_counts(settings, NET, "erk") == [10, 16, 38]
    assert run_counts(settings, NET, "erk", "floor") == [9, 16, 38]


def test_rounding_down_may_leave_a_layer_empty_but_not_all() -> None:
    """A quarter of 2, of 2 and of 8 weights."""
    settings, layers = RunSettings(sparsity="0.75"), manifest_of(2, 2, 8)
    assert run_counts(settings, layers, "uniform") == [1, 1, 1]
    assert run_counts(settings, layers, "uniform", "floor") == [0, 0, 2]
    with pytest.raises(DensityError, match="rounded down, keeps no weight of any layer"):
        run_counts(settings, manifest_of(2, 2), "uniform", "floor")


def test_each_layer_keeps_its_own_largest() -> None:
    layers = manifest_of(3, 3)
    scores = vector(0.1, 0.3, 0.2, 9, 7, 8)
    assert bits_of(top_by_layer(scores, [2, 1], layers)) == "011100"
    assert bits_of(top_by_layer(scores, [0, 3], layers)) == "000111"


def test_of_equal_scores_the_lowest_coordinates_win() -> None:
    assert bits_of(top_by_layer(vector(1, 1, 1, 0, 0), [2, 1], manifest_of(3, 2))) == "11010"


def test_a_layer_with_few_candidates_keeps_them_all() -> None:
    among = mask_of("001 000").bools()
    found = top_by_layer(vector(9, 8, 0, 1, 2, 3), [2, 2], manifest_of(3, 3), among)
    assert bits_of(found) == "001000", "a score of zero counts, a weight outside does not"


def test_growing_adds_the_largest_of_the_other_weights() -> None:
    layers = manifest_of(3, 3)
    grown = grow_by_layer(mask_of("100 010"), vector(9, 1, 2, 5, 9, 5), [1, 1], layers)
    assert bits_of(grown) == "101110"
    assert kept_by_layer(grown, layers) == [2, 2]


def test_votes_are_summed_by_layer() -> None:
    assert sums_by_layer(votes(1, 2, 0, 4, 0), manifest_of(3, 2)) == [3, 4]


def test_a_moved_mask_takes_its_values_from_the_whole_vector() -> None:
    layers = manifest_of(4)
    state = ModelState(layers, vector(0, 0, 0, 0, 0), Mask.full(4), 1, vector(1, 2, 3, 4, 5))
    after = moved(RunSettings(), state, mask_of("0110"), vector(6, 7, 8, 9, 10))
    assert bits_of(after.mask) == "0110" and np.array_equal(after.values, vector(7, 8, 10))  # type: ignore[arg-type]


def test_values_on_the_same_mask_pass_the_lossy_code_of_the_run() -> None:
    """Steps of 0.5: a change of 0.6 becomes 0.5."""
    layers = manifest_of(1, biases=0)
    state = ModelState(layers, vector(0), Mask.full(1), 1, vector(0))
    settings = RunSettings(value_type="grid", grid_bits=1, rounding="nearest")
    after = moved(settings, state, Mask.full(1), vector(0.6))
    assert after.values is not None and after.values.tolist() == [0.5] and after.change is not None
