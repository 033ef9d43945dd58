import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.shards.split import choose_share, groups_of
from ssfl.method.streams import Stream


def numbers(*targets: float) -> DataSet:
    y = np.array(targets, dtype=np.float32)
    x = np.zeros((len(y), 2), dtype=np.float32)
    return DataSet("numbers", x, y, x[:1], y[:1])


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any),
    share=st.sampled_from([0.01, 0.1, 0.2, 0.29, 0.5, 0.99]),
    seed=st.integers(0, 1000),
)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_the_share_applies_to_all_samples_and_to_every_group(
    sizes: list[int], share: float, seed: int
) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    chosen = choose_share(groups, share, Stream(seed, "x"), keep_each=False)
    assert len(chosen) == min(int(share * len(groups) + 0.5), len(groups) - 1)
    assert (np.diff(chosen) > 0).all()
    taken = np.bincount(groups[chosen], minlength=len(sizes))
    assert (np.abs(taken - share * np.array(sizes)) < 1).all()


@given(sizes=st.lists(st.integers(0, 6), min_size=1, max_size=20).filter(any))
@settings(derandomize=True, max_examples=60, deadline=None)
def test_keep_each_keeps_one_sample_of_every_group(sizes: list[int]) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    chosen = choose_share(groups, 0.5, Stream(0, "x"), keep_each=True)
    taken = np.bincount(groups[chosen], minlength=len(sizes))
    assert all(kept or not size for kept, size in zip(sizes - taken, sizes, strict=True))


def test_the_stream_decides_which_samples_are_chosen() -> None:
    groups = np.zeros(100, dtype=np.int64)
    first, again, other = (
        choose_share(groups, 0.1, Stream(seed, "x"), keep_each=False).tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


def test_the_last_sample_is_never_set_aside() -> None:
    one = np.zeros(1, dtype=np.int64)
    assert choose_share(one, 0.99, Stream(0, "x"), keep_each=False).size == 0
    assert choose_share(one[:0], 0.5, Stream(0, "x"), keep_each=False).size == 0


def test_numbers_are_put_into_ten_groups_of_equal_size() -> None:
    groups = groups_of(numbers(*range(100)))
    assert np.bincount(groups.train).tolist() == [10] * 10
    assert groups.names[:2] == ("below 10", "10 … 20") and groups.names[-1] == "from 90"
    assert groups.test.tolist() == [0]


@pytest.mark.parametrize(
    ("targets", "sizes"),
    [([5.0] * 7, [7]), ([0.0] * 50 + [1.0] * 50, [50, 50]), ([3.0], [1]), ([1.0, 2.0], [1, 1])],
)
def test_repeated_numbers_make_fewer_groups(targets: list[float], sizes: list[int]) -> None:
    groups = groups_of(numbers(*targets))
    assert np.bincount(groups.train).tolist() == sizes
    assert len(groups.names) == len(sizes)


def test_the_first_of_several_targets_decides_the_group() -> None:
    y = np.stack([np.arange(20), -np.arange(20)], axis=1).astype(np.float32)
    x = np.zeros((20, 1), dtype=np.float32)
    groups = groups_of(DataSet("two", x, y, x[:0], y[:0]))
    assert (np.diff(groups.train) >= 0).all() and groups.train.max() == 9
