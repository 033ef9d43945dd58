import hashlib

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


def test_kept_and_size_are_told_by_tensor(manifest: Manifest) -> None:
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
    scores = np.round(random_scores(size) * 8)  # few values, so many ties
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
def test_blocks_and_samples_do_not_change_the_mask(data: st.DataObject) -> None:
    """Tiny blocks and samples, so that their edges fall everywhere."""
    scores = data.draw(hnp.arrays(np.float32, st.integers(1, 70), elements=SCORES))
    k = data.draw(st.integers(0, scores.size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", data.draw(st.sampled_from([8, 16, 64])))
        patch.setattr(module, "_SAMPLE", data.draw(st.integers(1, 20)))
        assert top_k(scores, k).bools().tolist() == slow_top_k(scores, k)


@pytest.mark.parametrize("size", [511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097])
def test_sizes_around_block_edges(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 512)
    monkeypatch.setattr(module, "_SAMPLE", 64)
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


def sampled_only(size: int, stride: int, at_stride: float, elsewhere: float) -> Scores:
    """Scores of which a sample of every `stride`-th sees nothing but `at_stride`."""
    scores = np.full(size, elsewhere, dtype=np.float32)
    scores[::stride] = at_stride
    return scores + random_scores(size) / np.float32(1000)


def watch_partition(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that will hold the size of every array that is partitioned."""
    sizes: list[int] = []
    partition = np.partition

    def watched(values: Scores, place: int) -> Scores:
        sizes.append(values.size)
        return partition(values, place)

    monkeypatch.setattr(np, "partition", watched)
    return sizes


@pytest.mark.parametrize(("at_stride", "elsewhere"), [(1.0, 2.0), (2.0, 1.0)])
def test_a_sample_that_misleads_costs_time_but_not_exactness(
    at_stride: float, elsewhere: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data with the period of the sample: all sampled scores are small, or all are large."""
    monkeypatch.setattr(module, "_SAMPLE", 256)
    size = 4096
    scores = sampled_only(size, size // 256, at_stride, elsewhere)
    partitioned = watch_partition(monkeypatch)
    for k in (100, 1000, 4000):
        assert top_k(scores, k).bools().tolist() == slow_top_k(scores, k)
    assert size in partitioned, "the sample did not mislead: this test tests nothing"


def test_an_honest_sample_leaves_few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAMPLE", 1 << 12)
    scores = random_scores(1 << 16)
    partitioned = watch_partition(monkeypatch)
    assert top_k(scores, 6000).bools().tolist() == slow_top_k(scores, 6000)
    # Twice six standard deviations of a sampled rank: 12 / 2 * sqrt(4096) of 4096, so 9.4 %.
    assert len(partitioned) == 1 and partitioned[0] < 0.12 * scores.size
