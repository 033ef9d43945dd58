import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssfl.datasets.errors import ShardError
from ssfl.datasets.partition import (
    KINDS,
    client_mixes,
    count_classes,
    dirichlet,
    partition,
    partition_test,
)
from ssfl.method.streams import Stream


def labels_of(num_samples: int, num_classes: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return (Stream(0, "labels").uniform(num_samples) * num_classes).astype(np.int64)


@given(
    clients=st.integers(1, 40),
    extra=st.integers(0, 160),
    kind=st.sampled_from(KINDS),
    alpha=st.sampled_from([1e-6, 0.05, 0.3, 1.0, 100.0]),
    seed=st.integers(0, 2**63 - 1),
)
@settings(derandomize=True, max_examples=60, deadline=None)
def test_every_sample_is_used_once_and_sizes_differ_by_at_most_one(
    clients: int, extra: int, kind: str, alpha: float, seed: int
) -> None:
    labels = labels_of(clients + extra, num_classes=7)
    parts = partition(labels, clients, kind, alpha, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert {len(part) for part in parts} <= {len(labels) // clients, len(labels) // clients + 1}
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_the_partition(kind: str) -> None:
    labels = labels_of(200, 5)
    first, again, other = (partition(labels, 8, kind, 0.3, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_small_alpha_makes_clients_of_few_classes_and_a_large_one_of_all() -> None:
    labels = labels_of(4000, 10)

    def mean_largest_share(kind: str, alpha: float) -> float:
        counts = count_classes(labels, partition(labels, 20, kind, alpha, seed=3), 10)
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    shares = [mean_largest_share("dirichlet", alpha) for alpha in (0.01, 0.3, 1000.0)]
    assert shares[0] > 0.5  # not 1: a class that many want is soon used up
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] == pytest.approx(mean_largest_share("iid", 0), abs=0.03)


def test_every_client_comes_equally_near_to_the_mix_it_wished_for() -> None:
    labels = labels_of(1000, 10)
    distances = []  # between what a client got and its wish: 0 … 1
    for seed in range(20):
        counts = count_classes(labels, partition(labels, 10, "dirichlet", 0.3, seed), 10)
        wishes = client_mixes(0.3, 10, 10, seed)
        distances.append(np.abs(counts / 100 - wishes).sum(axis=1) / 2)
    mean = np.mean(distances, axis=0)  # (clients,)
    assert mean.max() < 0.35  # measured 0.2; clients served one after another: 0.05 … 0.7


def test_dirichlet_rows_have_the_mean_and_variance_of_the_distribution() -> None:
    for alpha in (0.3, 2.5):
        mixes = dirichlet(alpha, rows=20_000, columns=4, stream=Stream(0, "mixes"))
        np.testing.assert_allclose(mixes.sum(axis=1), 1)
        # Dirichlet(a, a, a, a): mean 1/4, variance (1/4 * 3/4) / (4 a + 1); five standard errors.
        np.testing.assert_allclose(mixes.mean(axis=0), 0.25, atol=0.016)
        np.testing.assert_allclose(mixes.var(axis=0), 0.1875 / (4 * alpha + 1), rtol=0.06)


def test_a_tiny_alpha_gives_one_class_per_row_instead_of_dividing_zero_by_zero() -> None:
    mixes = dirichlet(1e-6, rows=50, columns=10, stream=Stream(0, "mixes"))
    np.testing.assert_array_equal(np.sort(mixes, axis=1)[:, -1], 1)


@pytest.mark.parametrize(
    ("clients", "kind", "alpha", "complaint"),
    [
        (11, "iid", 0.3, "cannot split 10 samples among 11 clients"),
        (0, "iid", 0.3, "among 0 clients"),
        (2, "dirichlet", 0.0, "alpha must be a number above 0, got 0.0"),
        (2, "dirichlet", float("nan"), "alpha must be a number above 0, got nan"),
        (2, "dirichlet", float("inf"), "alpha must be a number above 0, got inf"),
        (2, "pathological", 0.3, "must be one of dirichlet, iid, got 'pathological'"),
    ],
)
def test_an_impossible_partition_is_refused_with_the_reason(
    clients: int, kind: str, alpha: float, complaint: str
) -> None:
    with pytest.raises(ShardError, match=complaint):
        partition(labels_of(10, 2), clients, kind, alpha, seed=0)


@given(clients=st.integers(1, 12), num_test=st.integers(0, 90), seed=st.integers(0, 1000))
@settings(derandomize=True, max_examples=60, deadline=None)
def test_the_test_slices_are_disjoint_and_cover_the_test_set(
    clients: int, num_test: int, seed: int
) -> None:
    train_labels, test_labels = labels_of(120, 6), labels_of(num_test, 6)
    parts = partition(train_labels, clients, "dirichlet", 0.2, seed)
    slices = partition_test(test_labels, count_classes(train_labels, parts, 6))
    assert len(slices) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(slices)), np.arange(num_test))


def test_test_samples_follow_the_training_counts() -> None:
    test_labels = np.array([0] * 8 + [1] * 6)
    slices = partition_test(test_labels, np.array([[30, 0], [10, 5], [0, 10]]))
    assert count_classes(test_labels, slices, 2).tolist() == [[6, 0], [2, 2], [0, 4]]


def test_a_class_nobody_trains_on_is_dealt_out_evenly() -> None:
    slices = partition_test(np.array([0, 1, 1, 1]), np.array([[5, 0], [5, 0], [5, 0]]))
    assert [len(part) for part in slices] == [1, 1, 2]
