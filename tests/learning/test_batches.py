from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ssfl.datasets.shards.shard_file import Shard, class_counts
from ssfl.learning.batches import (
    balanced_batch,
    batch_tensors,
    count_steps,
    plain_batch,
    scoring_batches,
    training_batches,
)
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

EPOCHS = RunSettings(local_epochs=3, batch_size=4)
STEPS = replace(EPOCHS, local_steps=5)


def test_every_epoch_sees_every_sample_once_in_its_own_order() -> None:
    batches = list(training_batches(10, EPOCHS, round_number=2, client_id="a"))
    assert [len(batch) for batch in batches] == [4, 4, 2] * 3
    epochs = [np.concatenate(batches[i : i + 3]).tolist() for i in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_is_that_of_the_named_stream() -> None:
    batches = list(training_batches(10, EPOCHS, round_number=2, client_id="a"))
    second = Stream(0, "batches", 2, "a", 1).permutation(10)
    np.testing.assert_array_equal(np.concatenate(batches[3:6]), second)


def test_a_number_of_steps_takes_the_place_of_epochs() -> None:
    by_epoch = list(training_batches(10, EPOCHS, 0, "a"))
    by_step = list(training_batches(10, STEPS, 0, "a"))
    assert len(by_step) == 5
    assert all(np.array_equal(a, b) for a, b in zip(by_step, by_epoch, strict=False))


@pytest.mark.parametrize(("settings", "steps"), [(EPOCHS, 9), (STEPS, 5)])
def test_the_number_of_steps_is_known_in_advance(settings: RunSettings, steps: int) -> None:
    assert count_steps(10, settings) == steps
    assert len(list(training_batches(10, settings, 0, "a"))) == steps


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    batch_size=st.integers(1, 70),
    seed=st.integers(0, 10**6),
)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_a_batch_is_as_balanced_as_the_data_allow(
    labels: list[int], batch_size: int, seed: int
) -> None:
    array = np.array(labels)
    batch = balanced_batch(array, batch_size, Stream(seed, "test"))
    assert len(batch) == len(set(batch.tolist())) == min(batch_size, len(labels))
    chosen, available = class_counts(array[batch]), class_counts(array)
    highest = max(chosen.values())
    for label, count in available.items():  # a class more than one below the highest is used up
        assert chosen.get(label, 0) >= min(highest - 1, count)


def test_the_remainder_goes_to_random_classes() -> None:
    labels = np.repeat(np.arange(3), 10)
    extra = [class_counts(labels[balanced_batch(labels, 4, Stream(s, "x"))]) for s in range(40)]
    favoured = {max(counts, key=lambda label: counts[label]) for counts in extra}
    assert favoured == {0, 1, 2}


def test_samples_of_a_class_are_chosen_at_random() -> None:
    labels = np.zeros(10, dtype=np.int64)
    chosen = {i for s in range(60) for i in balanced_batch(labels, 2, Stream(s, "x")).tolist()}
    assert chosen == set(range(10))


def test_the_same_stream_gives_the_same_batch_and_few_samples_are_all_used() -> None:
    labels = np.arange(20) % 3
    first, again = (balanced_batch(labels, 7, Stream(5, "x")) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(balanced_batch(labels, 20, Stream(5, "x")), np.arange(20))


def test_batch_tensors_hold_the_samples_at_the_indices() -> None:
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    x.flags.writeable = False
    inputs, targets = batch_tensors(x, np.arange(4), np.array([3, 1]), nn.Linear(2, 1))
    assert inputs.tolist() == [[6, 7], [2, 3]] and targets.tolist() == [3, 1]


# -- minibatches to score


def uneven_shard() -> Shard:
    """90 samples of class 0, and 5 of each of two others."""
    y = np.repeat(np.arange(3), [90, 5, 5])
    x = np.zeros((100, 2), dtype=np.float32)
    return Shard(x, y, x[:0], y[:0], num_classes=3)


def test_balanced_minibatches_have_equal_classes_and_plain_ones_do_not() -> None:
    shard = uneven_shard()
    for samples, even in (("balanced", True), ("plain", False)):
        settings = RunSettings(batch_size=12, scoring_samples=samples)
        for indices in scoring_batches(shard, settings, "a", 0, 5):
            assert len(set(indices.tolist())) == 12
            assert (class_counts(shard.train_y[indices]) == {0: 4, 1: 4, 2: 4}) is even


def test_the_first_minibatch_is_drawn_as_if_it_were_the_only_one() -> None:
    shard, settings = uneven_shard(), RunSettings(seed=3, batch_size=12)
    batches = list(scoring_batches(shard, settings, "a", 7, 3))
    streams = [Stream(3, "scoring", 7, "a", *parts) for parts in ([], [1], [2])]
    wanted = [balanced_batch(shard.train_y, 12, stream) for stream in streams]
    assert len(batches) == 3
    for indices, expected in zip(batches, wanted, strict=True):
        np.testing.assert_array_equal(indices, expected)
    assert len({indices.tobytes() for indices in batches}) == 3


@pytest.mark.parametrize("samples", ["balanced", "plain"])
@pytest.mark.parametrize(("batch_size", "wanted"), [(99, 4), (100, 1), (101, 1)])
def test_a_shard_that_fits_in_one_minibatch_gives_one(
    samples: str, batch_size: int, wanted: int
) -> None:
    settings = RunSettings(batch_size=batch_size, scoring_samples=samples)
    batches = list(scoring_batches(uneven_shard(), settings, "a", 0, 4))
    assert [len(indices) for indices in batches] == [min(batch_size, 100)] * wanted


def test_scoring_no_minibatch_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot score 0 minibatches"):
        list(scoring_batches(uneven_shard(), RunSettings(), "a", 0, 0))


def test_a_plain_minibatch_draws_every_sample_equally_often() -> None:
    """Of 300 minibatches of 4 of 10 samples, about 120 hold a sample; 5 deviations are 42."""
    drawn = [plain_batch(10, 4, Stream(seed, "x")) for seed in range(300)]
    assert all(np.array_equal(batch, np.unique(batch)) and len(batch) == 4 for batch in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=10)
    assert np.abs(counts - 120).max() < 42
    np.testing.assert_array_equal(plain_batch(3, 4, Stream(0, "x")), np.arange(3))
