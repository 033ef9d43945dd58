import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ssfl.method.errors import DensityError
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask, top_k
from ssfl.method.mask_choice import choose_mask, grow_mask, top_k_signed
from ssfl.method.streams import Stream

Scores = npt.NDArray[np.float32]

SIGNED = hnp.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.one_of(
        st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0]),  # many ties
        st.floats(width=32, allow_nan=False),
    ),
)


def scores_of(*values: float) -> Scores:
    return np.array(values, dtype=np.float32)


def kept(mask: Mask) -> list[int]:
    return np.flatnonzero(mask.bools()).tolist()


def slow_top_k(scores: Scores, k: int) -> list[int]:
    """Sort all by (largest score, lowest coordinate) and keep the first k."""
    return sorted(sorted(range(scores.size), key=lambda i: (-float(scores[i]), i))[:k])


def slow_choice(scores: Scores, k: int, sizes: list[int], quotas: list[int]) -> list[int]:
    """Choose each tensor's quota first, then the best of the rest."""
    chosen: list[int] = []
    for start, size, quota in zip(np.cumsum([0, *sizes]).tolist(), sizes, quotas, strict=False):
        chosen += [start + i for i in slow_top_k(scores[start : start + size], quota)]
    rest = sorted(set(range(scores.size)) - set(chosen), key=lambda i: (-float(scores[i]), i))
    return sorted(chosen + rest[: k - len(chosen)])


def layers(*sizes: int) -> Manifest:
    return Manifest(
        tuple(
            TensorSpec(f"layer{i}", (size,), Role.MASKED, Init("ones"))
            for i, size in enumerate(sizes)
        )
    )


# -- the guard


def test_without_a_guard_a_layer_may_lose_everything(manifest: Manifest) -> None:
    scores = scores_of(9, 8, 7, 6, 5, 4, 3, 2, 1, 0)  # six of conv, four of fc
    assert kept(choose_mask(scores, 4, manifest, guard=0.0)) == [0, 1, 2, 3]


def test_a_guard_leaves_every_layer_its_best_weights_and_the_rest_to_the_best_of_all(
    manifest: Manifest,
) -> None:
    """Half of six and of four are 3 and 2 weights; the sixth kept weight is the best other."""
    scores = scores_of(9, 8, 7, 6, 5, 4, 0, 2, 1, 3)
    assert kept(choose_mask(scores, 6, manifest, guard=0.5)) == [0, 1, 2, 3, 7, 9]


def test_a_guard_that_is_less_than_one_weight_keeps_one(manifest: Manifest) -> None:
    scores = scores_of(9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
    assert kept(choose_mask(scores, 4, manifest, guard=0.001)) == [0, 1, 2, 6]


def test_a_guard_is_the_decimal_that_was_written() -> None:
    """0.29 * 100 is 28.999999999999996 in floats."""
    scores = np.concatenate([np.zeros(100), np.ones(100)]).astype(np.float32)
    mask = choose_mask(scores, 100, layers(100, 100), guard=0.29)
    assert kept(mask) == [*range(29), *range(100, 171)]


def test_equal_scores_of_a_guarded_layer_go_to_its_lowest_coordinates(manifest: Manifest) -> None:
    scores = scores_of(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    assert kept(choose_mask(scores, 5, manifest, guard=0.5)) == [0, 1, 2, 6, 7]
    assert kept(choose_mask(scores, 6, manifest, guard=0.5)) == [0, 1, 2, 3, 6, 7]


def test_a_guard_that_needs_more_than_may_be_kept_is_refused(manifest: Manifest) -> None:
    scores = np.ones(10, dtype=np.float32)
    assert choose_mask(scores, 5, manifest, guard=0.5).num_kept == 5
    with pytest.raises(DensityError) as refusal:
        choose_mask(scores, 4, manifest, guard=0.5)
    assert str(refusal.value) == (
        "--layer-guard 0.5 alone keeps 5 of 10 weights, but only 4 may be kept: "
        "use a smaller guard or a lower sparsity"
    )


def test_signed_scores_can_be_guarded(manifest: Manifest) -> None:
    scores = scores_of(3, 2, 1, -1, -2, -3, -9, -7, -8, -6)
    assert kept(choose_mask(scores, 3, manifest, guard=0.0)) == [0, 1, 2]
    assert kept(choose_mask(scores, 6, manifest, guard=0.5)) == [0, 1, 2, 3, 7, 9]


@given(data=st.data(), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_a_guarded_mask_is_that_of_the_obvious_computation(
    data: st.DataObject, sizes: list[int]
) -> None:
    total = sum(sizes)
    few = st.integers(-2, 3).map(float)
    scores = scores_of(*data.draw(st.lists(few, min_size=total, max_size=total)))
    percent = data.draw(st.integers(1, 100))
    quotas = [max(1, percent * size // 100) for size in sizes]
    k = data.draw(st.integers(sum(quotas), total))
    mask = choose_mask(scores, k, layers(*sizes), percent / 100)
    assert kept(mask) == slow_choice(scores, k, sizes, quotas)


# -- signed scores


@pytest.mark.parametrize(
    ("k", "wanted"),
    [
        (0, []),
        (1, [4]),  # 5
        (2, [1, 4]),  # and the first 2
        (3, [1, 4, 6]),
        (4, [1, 2, 4, 6]),  # the first of two zeros; -0.0 is one
        (5, [1, 2, 4, 6, 7]),
        (6, [1, 2, 3, 4, 6, 7]),  # the first -1
        (7, [1, 2, 3, 4, 5, 6, 7]),
        (8, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_the_larger_of_signed_scores_are_kept(k: int, wanted: list[int]) -> None:
    assert kept(top_k_signed(scores_of(-3, 2, -0.0, -1, 5, -1, 2, 0), k)) == wanted


@given(scores=SIGNED, share=st.floats(0, 1))
@settings(max_examples=300, deadline=None)
def test_signed_scores_are_ranked_as_by_sorting_them_all(scores: Scores, share: float) -> None:
    k = round(share * scores.size)
    assert kept(top_k_signed(scores, k)) == slow_top_k(scores, k)


def test_tiny_differences_between_signed_scores_count() -> None:
    """If all were shifted to be positive, the last four would be equal."""
    scores = scores_of(-1e30, 1e-30, 2e-30, -1e-30, -2e-30)
    assert [kept(top_k_signed(scores, k)) for k in range(1, 5)] == [
        [2],
        [1, 2],
        [1, 2, 3],
        [1, 2, 3, 4],
    ]


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.7, 0.99])
def test_many_signed_scores_are_ranked(share: float) -> None:
    scores = (Stream(0, "signed").uniform(200_000) - 0.5).astype(np.float32)
    scores[50_000:90_000] = 0
    k = round(share * scores.size)
    wanted = np.sort(np.argsort(-scores, kind="stable")[:k])
    np.testing.assert_array_equal(kept(top_k_signed(scores, k)), wanted)


def test_unsigned_scores_are_ranked_as_by_top_k() -> None:
    scores = Stream(0, "unsigned").uniform(5000).astype(np.float32)
    for k in (0, 1, 2500, 5000):
        assert (
            top_k_signed(scores, k)
            == top_k(scores, k)
            == choose_mask(scores, k, layers(5000), guard=0.0)
        )


@pytest.mark.parametrize("k", [-1, 4])
@pytest.mark.parametrize("scores", [(1, 2, 3), (-1, -2, -3), (-1, 0, 1)])
def test_no_mask_keeps_more_than_there_are(k: int, scores: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=f"cannot keep {k} of 3"):
        top_k_signed(scores_of(*scores), k)


def test_nan_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be NaN"):
        top_k_signed(scores_of(1, float("nan"), -1), 1)


# -- growth


def test_a_grown_mask_keeps_the_old_one_and_adds_the_best_others() -> None:
    old = Mask.from_bools(np.array([False, True, False, False, True, False]))
    scores = scores_of(5, 0, 7, 7, 1, 6)
    assert kept(grow_mask(old, scores, 2)) == [1, 4]
    assert kept(grow_mask(old, scores, 3)) == [1, 2, 4]  # the first of two 7
    assert kept(grow_mask(old, scores, 4)) == [1, 2, 3, 4]
    assert kept(grow_mask(old, scores, 6)) == [0, 1, 2, 3, 4, 5]
    assert kept(old) == [1, 4]


def test_a_mask_cannot_grow_smaller_or_beyond_its_size() -> None:
    old = Mask.from_bools(np.array([True, True, False]))
    with pytest.raises(ValueError, match="a mask that keeps 2 cannot grow to 1"):
        grow_mask(old, scores_of(1, 2, 3), 1)
    with pytest.raises(ValueError, match="cannot keep 2 of 1"):
        grow_mask(old, scores_of(1, 2, 3), 4)
    with pytest.raises(ValueError, match="4 scores for a mask of 3 weights"):
        grow_mask(old, scores_of(1, 2, 3, 4), 3)
