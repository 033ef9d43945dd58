import hashlib
import tracemalloc
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ssfl.method import mask as module
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask, top_k
from ssfl.method.streams import Stream

Scores = npt.NDArray[np.float32]
BOOLS = hnp.arrays(np.bool_, st.integers(0, 65))


def slow_top_k(scores: Scores, k: int) -> list[bool]:
    """Sort all by (largest score, lowest coordinate) and keep the first k."""
    order = sorted(range(scores.size), key=lambda i: (-scores[i], i))
    kept = set(order[:k])
    return [i in kept for i in range(scores.size)]


def random_scores(size: int, seed: int = 0) -> Scores:
    return Stream(seed, "scores", size).uniform(size).astype(np.float32)


def test_bit_i_of_byte_j_is_coordinate_8j_plus_i() -> None:
    kept = [True, False, True, True, False, False, False, False, False, True]
    mask = Mask.from_bools(np.array(kept))
    assert mask.bits == bytes([0b00001101, 0b00000010])
    assert (mask.size, mask.num_kept) == (10, 4)
    assert mask.bools().tolist() == kept


def test_the_digest_covers_the_size_and_the_bits() -> None:
    mask = Mask(bytes([0b00001101, 0b00000010]), 10)
    assert mask.digest == hashlib.sha256(bytes([10, 0, 0, 0, 0, 0, 0, 0, 0x0D, 0x02])).digest()
    assert mask.digest != Mask(mask.bits, 11).digest


@given(BOOLS)
def test_bools_survive_packing(kept: npt.NDArray[np.bool_]) -> None:
    mask = Mask.from_bools(kept)
    assert mask.bools().tolist() == kept.tolist()
    assert mask.num_kept == kept.sum()
    assert Mask(mask.bits, mask.size) == mask


@pytest.mark.parametrize(("bits", "size"), [(b"", 1), (b"\0", 0), (b"\0\0", 8), (b"\0", 9)])
def test_bits_of_another_size_are_refused(bits: bytes, size: int) -> None:
    with pytest.raises(ValueError, match="do not hold"):
        Mask(bits, size)


def test_spare_bits_must_be_zero() -> None:
    Mask(b"\x07", 3)
    with pytest.raises(ValueError, match="spare bits"):
        Mask(b"\x08", 3)


def test_the_full_mask_keeps_everything() -> None:
    for size in range(18):
        mask = Mask.full(size)
        assert mask.num_kept == size
        assert mask.bools().all()


def test_gather_takes_kept_values_then_all_that_is_not_masked() -> None:
    mask = Mask.from_bools(np.array([True, False, True]))
    vector = np.array([1, 2, 3, 40, 50], dtype=np.float32)
    assert mask.gather(vector).tolist() == [1, 3, 40, 50]
    assert mask.scatter(mask.gather(vector)).tolist() == [1, 0, 3, 40, 50]


@given(BOOLS, st.integers(0, 5))
def test_scatter_is_gathers_inverse_and_zero_off_the_mask(
    kept: npt.NDArray[np.bool_], num_unmasked: int
) -> None:
    mask = Mask.from_bools(kept)
    vector = np.arange(1, kept.size + num_unmasked + 1, dtype=np.float32)
    expected = vector.copy()
    expected[: kept.size][~kept] = 0
    assert mask.scatter(mask.gather(vector)).tolist() == expected.tolist()


def test_kept_and_size_are_reported_by_tensor(manifest: Manifest) -> None:
    mask = Mask.from_bools(np.array([1, 1, 0, 0, 0, 1, 0, 0, 0, 1], dtype=np.bool_))
    assert mask.kept_by_tensor(manifest) == {"conv.weight": (3, 6), "fc.weight": (1, 4)}


def test_ties_go_to_the_lowest_coordinate() -> None:
    scores = np.array([3, 1, 3, 0, 3, 5], dtype=np.float32)
    assert top_k(scores, 3).bools().tolist() == [True, False, True, False, False, True]


@pytest.mark.parametrize("size", range(66))
def test_all_equal_keeps_the_first_k(size: int) -> None:
    scores = np.full(size, 0.25, dtype=np.float32)
    for k in range(size + 1):
        assert top_k(scores, k).bools().tolist() == [i < k for i in range(size)]


@pytest.mark.parametrize("size", range(66))
def test_every_k_of_every_size_is_what_sorting_gives(size: int) -> None:
    scores = np.round(random_scores(size) * 8)  # few values, many ties
    for k in range(size + 1):
        mask = top_k(scores, k)
        assert mask.num_kept == k
        assert mask.bools().tolist() == slow_top_k(scores, k)


@pytest.mark.parametrize("k", [-1, 4])
def test_more_than_there_are_cannot_be_kept(k: int) -> None:
    with pytest.raises(ValueError, match=f"cannot keep {k} of 3"):
        top_k(np.ones(3, dtype=np.float32), k)


SCORES = st.floats(0, width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, 1.0, 2.0, float(np.float32(1e-45))]
)


@settings(max_examples=200)
@given(st.data())
def test_blocks_do_not_change_the_mask(data: st.DataObject) -> None:
    """Tiny blocks, so that their edges fall everywhere."""
    scores = data.draw(hnp.arrays(np.float32, st.integers(1, 70), elements=SCORES))
    k = data.draw(st.integers(0, scores.size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", data.draw(st.sampled_from([8, 16, 64])))
        assert top_k(scores, k).bools().tolist() == slow_top_k(scores, k)


@pytest.mark.parametrize("size", [511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097])
def test_sizes_around_block_edges(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 512)
    scores = np.round(random_scores(size) * 100)
    for k in (1, 2, size // 10, size // 2, size - 1, size):
        assert top_k(scores, k).bools().tolist() == slow_top_k(scores, k)


def test_a_large_vector_at_the_real_block_sizes() -> None:
    scores = random_scores((1 << 20) + 12_345)
    k = 100_000
    mask = top_k(scores, k)
    assert mask.num_kept == k
    kept = mask.bools()
    assert scores[kept].min() >= scores[~kept].max()


@settings(max_examples=200)
@given(st.data())
def test_the_mask_is_exact_for_any_sample(data: st.DataObject) -> None:
    """The bracket is any two numbers: around the k-th largest, off it, equal to it, infinite."""
    scores = data.draw(hnp.arrays(np.float32, st.integers(1, 40), elements=SCORES))
    k = data.draw(st.integers(1, scores.size))
    anything = SCORES | st.sampled_from([float(score) for score in scores] + [-np.inf, np.inf])
    bracket = sorted(np.float32(data.draw(anything)) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", 8)
        patch.setattr(module, "_bracket", lambda *_: tuple(bracket))
        assert top_k(scores, k).bools().tolist() == slow_top_k(scores, k)


def watch_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every pass appends its number of scores."""
    sizes: list[int] = []
    blocks = module._blocks

    def watched(scores: Scores) -> list[tuple[int, Scores]]:
        sizes.append(scores.size)
        return blocks(scores)

    monkeypatch.setattr(module, "_blocks", watched)
    return sizes


def sampled_at(size: int) -> npt.NDArray[np.int64]:
    """Return the coordinates that a sample reads."""
    seen: list[npt.NDArray[np.int64]] = []

    class Spy(np.ndarray[tuple[int], np.dtype[np.float32]]):
        def __getitem__(self, at: npt.NDArray[np.int64]) -> Scores:  # type: ignore[override]
            seen.append(at)
            return np.zeros(at.size, dtype=np.float32)

    module._bracket(np.zeros(size, dtype=np.float32).view(Spy), size // 2)
    return seen[0]


@pytest.mark.parametrize(("sampled", "elsewhere"), [(1.0, 2.0), (2.0, 1.0)])
def test_a_misleading_sample_costs_time_but_not_exactness(
    sampled: float, elsewhere: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sampled scores are small, or all are large."""
    size = 4096
    scores = np.full(size, elsewhere, dtype=np.float32)
    scores[sampled_at(size)] = sampled
    scores += random_scores(size) / np.float32(1000)
    passes = watch_passes(monkeypatch)
    for k in (100, 1000, 4000):
        assert top_k(scores, k).bools().tolist() == slow_top_k(scores, k)
    assert len(passes) > 32, "the sample was not misleading, so nothing was tested"


PERIODS = [1, 2, 3, 9, 16, 25, 64, 576, 1024, 4096]


@pytest.mark.parametrize("period", PERIODS)
def test_periods_do_not_mislead_the_sample(period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One channel in `period` has larger scores, in several phases; the stride is 64."""
    size = 1 << 18
    passes = watch_passes(monkeypatch)
    for phase in {0, 1, period // 2, period - 1} & set(range(period)):
        scores = random_scores(size)
        scores[phase::period] += 1
        for k in (size // 100, size // 10, size // 2):
            mask = top_k(scores, k)
            threshold = np.sort(scores)[size - k]
            assert mask.num_kept == k
            assert (mask.bools() <= (scores >= threshold)).all()
            assert len(passes) == 1
            passes.clear()


@pytest.mark.parametrize("k", [1, 1000, 60_000, 1 << 16])
@pytest.mark.parametrize("value", [0.0, 1e-30, 3.5])
def test_a_score_that_many_share_takes_few_passes(
    value: float, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = watch_passes(monkeypatch)
    mask = top_k(np.full(1 << 16, value, dtype=np.float32), k)
    assert mask.bools().tolist() == [True] * k + [False] * ((1 << 16) - k)
    assert len(passes) <= 8


def half_dead(size: int) -> Scores:
    """Return scores of which half are zero, as for a dead layer."""
    scores = random_scores(size)
    scores[scores < 0.5] = 0
    return scores


def all_equal(size: int) -> Scores:
    return np.ones(size, dtype=np.float32)


@pytest.mark.parametrize("kind", [random_scores, half_dead, all_equal])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.7])
def test_memory_beyond_the_scores_is_little_more_than_their_bits(
    kind: Callable[[int], Scores], share: float
) -> None:
    scores = kind(1 << 23)  # 32 MiB
    tracemalloc.start()
    top_k(scores, int(share * scores.size))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    packed = scores.size // 8
    # The bits, their copy, and the few scores that the sample leaves open with their coordinates.
    assert peak < 2 * packed + 0.2 * scores.nbytes


@pytest.mark.parametrize("bad", [-1.0, float("nan")])
def test_scores_that_cannot_be_ranked_are_refused(bad: float) -> None:
    scores = np.full(20, bad, dtype=np.float32)
    scores[3] = 1
    assert top_k(scores, 1).bools().tolist() == [i == 3 for i in range(20)]
    with pytest.raises(ValueError, match="non-negative and not NaN"):
        top_k(scores, 2)
