import hashlib
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssfl.datasets.errors import PartitionError
from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.draw import dirichlet
from ssfl.datasets.shards.partition import (
    KINDS,
    client_mixes,
    count_classes,
    partition,
    partition_test,
)
from ssfl.method.streams import Stream


def labels_of(num_samples: int, num_classes: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return (Stream(0, "labels").uniform(num_samples) * num_classes).astype(np.int64)


@given(
    clients=st.integers(1, 40),
    extra=st.integers(0, 160),
    kind=st.sampled_from(["dirichlet", "iid"]),
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


@given(
    clients=st.integers(1, 30),
    samples=st.integers(300, 600),
    alpha=st.sampled_from([0.3, 1.0, 100.0]),
    seed=st.integers(0, 2**63 - 1),
)
@settings(derandomize=True, max_examples=60, deadline=None)
def test_unbalanced_uses_every_sample_once_or_reports_an_empty_client(
    clients: int, samples: int, alpha: float, seed: int
) -> None:
    labels = labels_of(samples, num_classes=7)
    try:
        parts = partition(labels, clients, "dirichlet-unbalanced", alpha, seed)
    except PartitionError as error:
        assert alpha < 100 and "would get no samples" in str(error)
        return
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    assert len(parts) == clients and min(map(len, parts)) >= 1


@given(
    clients=st.integers(1, 30),
    per_client=st.integers(1, 7),
    gap=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
@settings(derandomize=True, max_examples=80, deadline=None)
def test_classes_gives_clients_equal_numbers_of_classes_and_classes_similar_numbers_of_clients(
    clients: int, per_client: int, gap: bool, seed: int
) -> None:
    labels = labels_of(700, num_classes=7)
    if gap:
        labels[labels >= 3] += 1  # class 3 has no samples
    if clients * per_client < 7:
        with pytest.raises(PartitionError, match="samples would be left out"):
            partition(labels, clients, "classes", 0, seed, per_client)
        return
    parts = partition(labels, clients, "classes", 0, seed, per_client)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(700))
    counts = count_classes(labels, parts, 8)[:, np.unique(labels)]
    assert set((counts > 0).sum(axis=1)) == {per_client}
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for column in counts.T:  # a class is dealt evenly to its holders
        assert np.ptp(column[column > 0]) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_the_partition(kind: str) -> None:
    labels = labels_of(400, 5)
    first, again, other = (partition(labels, 8, kind, 1.0, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        ("dirichlet", "b17410e8396b92f0"),
        ("dirichlet-unbalanced", "ae932da31984207a"),
        ("classes", "5fc1b1cf925f1ca6"),
        ("iid", "152ac5125c3f1212"),
    ],
)
def test_the_partitions_of_the_digits_do_not_change(kind: str, digest: str) -> None:
    parts = partition(digits().train_y, 8, kind, 0.3, seed=0)
    found = hashlib.sha256(b"".join(part.astype("<i8").tobytes() for part in parts)).hexdigest()
    assert found[:16] == digest


def one_sample_at_a_time(
    labels: np.ndarray[tuple[int], np.dtype[np.int64]], clients: int, alpha: float, seed: int
) -> list[list[int]]:
    """Return the paper's split, drawn one sample at a time instead of in blocks."""
    shuffled = Stream(seed, "partition", "samples").permutation(len(labels))
    slots = np.arange(len(labels)) % clients
    slots = slots[Stream(seed, "partition", "slots").permutation(len(labels))]
    pools = [shuffled[labels[shuffled] == label].tolist() for label in np.unique(labels)]
    mixes = client_mixes(alpha, clients, len(pools), seed)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for client, chance in zip(
        slots, Stream(seed, "partition", "draws").uniform(len(labels)), strict=True
    ):
        reach = np.cumsum(mixes[client] * np.array([len(pool) > 0 for pool in pools]))
        label = int(np.searchsorted(reach, chance * reach[-1], side="right"))
        parts[client].append(pools[label].pop())
    return [sorted(part) for part in parts]


@pytest.mark.parametrize(
    ("samples", "num_classes", "clients", "alpha"),
    [(3000, 10, 8, 0.3), (3000, 100, 17, 0.3), (50, 7, 50, 1.0), (2000, 10, 3, 100.0)],
)
def test_drawing_in_blocks_equals_drawing_one_sample_at_a_time(
    samples: int, num_classes: int, clients: int, alpha: float
) -> None:
    labels = labels_of(samples, num_classes)
    found = partition(labels, clients, "dirichlet", alpha, seed=5)
    assert [part.tolist() for part in found] == one_sample_at_a_time(labels, clients, alpha, 5)


def test_two_million_samples_are_partitioned_among_a_hundred_clients() -> None:
    labels = labels_of(2_000_000, 50)
    parts = partition(labels, 100, "dirichlet", 0.3, seed=0)
    used = np.zeros(len(labels), dtype=np.int64)
    for part in parts:
        used[part] += 1
        assert len(part) == 20_000
    assert used.min() == used.max() == 1


def test_as_many_classes_as_samples_can_be_partitioned() -> None:
    parts = partition(np.arange(500), 20, "dirichlet", 0.05, seed=0)
    assert {len(part) for part in parts} == {25}


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_sample_goes_to_the_single_client(kind: str) -> None:
    (part,) = partition(np.array([2]), 1, kind, 0.3, seed=0, classes_per_client=1)
    assert part.tolist() == [0]


def test_a_small_alpha_gives_clients_few_classes_and_a_large_alpha_all() -> None:
    labels = labels_of(4000, 10)

    def mean_largest_share(kind: str, alpha: float) -> float:
        counts = count_classes(labels, partition(labels, 20, kind, alpha, seed=3), 10)
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    shares = [mean_largest_share("dirichlet", alpha) for alpha in (0.01, 0.3, 1000.0)]
    assert shares[0] > 0.5  # not 1, because popular classes are soon used up
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] == pytest.approx(mean_largest_share("iid", 0), abs=0.03)


def test_all_clients_come_equally_close_to_their_drawn_mix() -> None:
    labels = labels_of(1000, 10)
    distances = []  # between the classes of a client and its mix: 0 … 1
    for seed in range(20):
        counts = count_classes(labels, partition(labels, 10, "dirichlet", 0.3, seed), 10)
        mixes = client_mixes(0.3, 10, 10, seed)
        distances.append(np.abs(counts / 100 - mixes).sum(axis=1) / 2)
    mean = np.mean(distances, axis=0)  # (clients,)
    assert mean.max() < 0.35  # measured 0.2; if clients drew one after another: 0.05 … 0.7


def test_dirichlet_rows_have_the_mean_and_variance_of_the_distribution() -> None:
    for alpha in (0.3, 2.5):
        mixes = dirichlet(alpha, rows=20_000, columns=4, stream=Stream(0, "mixes"))
        np.testing.assert_allclose(mixes.sum(axis=1), 1)
        # Dirichlet(a, a, a, a): mean 1/4, variance (1/4 * 3/4) / (4 a + 1); five standard errors.
        np.testing.assert_allclose(mixes.mean(axis=0), 0.25, atol=0.016)
        np.testing.assert_allclose(mixes.var(axis=0), 0.1875 / (4 * alpha + 1), rtol=0.06)


def test_a_tiny_alpha_gives_one_class_per_row_and_no_division_by_zero() -> None:
    mixes = dirichlet(1e-6, rows=50, columns=10, stream=Stream(0, "mixes"))
    np.testing.assert_array_equal(np.sort(mixes, axis=1)[:, -1], 1)


@pytest.mark.parametrize(
    ("clients", "kind", "alpha", "complaint"),
    [
        (
            11, "iid", 0.3,
            "cannot split 10 training samples among 11 clients: each needs at least one, "
            "so use --clients 1 to 10",
        ),
        (0, "iid", 0.3, "among 0 clients"),
        (2, "dirichlet", 0.0, "--alpha must be between 0.000001 and 1000000, got 0"),
        (2, "dirichlet", float("nan"), "got nan"),
        (2, "dirichlet-unbalanced", float("inf"), "got inf"),
        (
            2, "pathological", 0.3,
            "must be one of dirichlet, dirichlet-unbalanced, classes, iid, got 'pathological'",
        ),
    ],
)  # fmt: skip
def test_an_impossible_partition_is_refused_with_the_reason(
    clients: int, kind: str, alpha: float, complaint: str
) -> None:
    with pytest.raises(PartitionError, match=re.escape(complaint)):
        partition(labels_of(10, 2), clients, kind, alpha, seed=0)


@pytest.mark.parametrize(
    ("clients", "per_client", "complaint"),
    [
        (8, 4, "--classes-per-client 4 is impossible: the training samples have 3 classes"),
        (8, 0, "--classes-per-client 0 is impossible"),
        (
            1, 2,
            "with --clients 1 and --classes-per-client 2 only 2 of the 3 classes are held, so "
            "samples would be left out: "
            "use at least 2 --clients or 3 --classes-per-client",
        ),
        (
            6, 2,
            "class 'rare' has 2 samples for the 4 clients that should hold it, so some would get "
            "none: use fewer --clients or fewer --classes-per-client, or drop the rare classes",
        ),
    ],
)  # fmt: skip
def test_an_impossible_number_of_classes_per_client_is_refused_with_a_remedy(
    clients: int, per_client: int, complaint: str
) -> None:
    labels = np.array([0] * 20 + [1] * 20 + [2] * 2)
    with pytest.raises(PartitionError, match=re.escape(complaint)):
        partition(labels, clients, "classes", 0.3, 0, per_client, ["a", "b", "rare"])


def test_an_empty_client_is_reported_with_a_remedy() -> None:
    labels = np.array([0] * 10 + [1] * 10)
    with pytest.raises(
        PartitionError,
        match=r"client \d+ and \d+ others of 10 would get no samples with --alpha 0.05 "
        "--seed 0: try a larger --alpha, fewer --clients or another --seed",
    ):
        partition(labels, 10, "dirichlet-unbalanced", 0.05, seed=0)


def test_unbalanced_sizes_differ_more_for_a_smaller_alpha() -> None:
    labels = labels_of(20_000, 10)

    def spread(alpha: float) -> float:
        sizes = [len(part) for part in partition(labels, 10, "dirichlet-unbalanced", alpha, 1)]
        return float(np.std(sizes) / np.mean(sizes))

    assert spread(0.1) > spread(1.0) > spread(100.0)
    assert spread(100.0) < 0.1


@given(clients=st.integers(1, 12), num_test=st.integers(0, 90), seed=st.integers(0, 1000))
@settings(derandomize=True, max_examples=60, deadline=None)
def test_local_test_sets_are_disjoint_and_cover_the_test_set(
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


def test_test_samples_of_a_class_without_training_samples_are_dealt_evenly() -> None:
    slices = partition_test(np.array([0, 1, 1, 1]), np.array([[5, 0], [5, 0], [5, 0]]))
    assert [len(part) for part in slices] == [1, 2, 1]


def test_the_number_of_test_samples_does_not_depend_on_the_client_number() -> None:
    test_labels = np.repeat(np.arange(100), 10)
    slices = partition_test(test_labels, np.full((40, 100), 5))
    assert sum(map(len, slices)) == 1000
    first, last = (sum(map(len, half)) for half in (slices[:20], slices[20:]))
    assert first == last
