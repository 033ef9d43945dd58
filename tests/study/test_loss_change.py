"""|g·w| and the true change of the loss, by hand and on a few digits."""

import numpy as np
import pytest
import torch

from ssfl.method.settings import RunSettings
from ssfl.study.data import DataSpec
from ssfl.study.loss_change import (
    MINIBATCHES,
    SAME,
    compare_scores,
    loss_changes,
    rank_correlation,
)


def test_equal_values_share_their_rank() -> None:
    assert rank_correlation([1, 1, 2, 3], [5, 5, 6, 7]) == 1.0
    assert rank_correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(0.866025, abs=1e-6)
    assert rank_correlation([1, 1], [1, 2]) == 0.0, "no order to compare"


def test_the_change_is_that_of_removing_one_weight_and_all_weights_stay() -> None:
    first, second = torch.tensor([[1.0, -2.0]]), torch.tensor([3.0])
    places = [(first, slice(0, 2)), (second, slice(2, 3))]

    def loss() -> float:
        return float((first.sum() + second.sum()) ** 2)  # (1 - 2 + 3)^2 = 4

    changes = loss_changes(places, np.array([0, 1, 2]), loss)
    assert changes.tolist() == [abs(4 - 1), abs(4 - 16), abs(4 - 1)]
    assert first.tolist() == [[1.0, -2.0]] and second.tolist() == [3.0]


def test_the_score_of_the_same_samples_ranks_the_weights_of_a_small_network() -> None:
    torch.set_num_threads(1)
    settings = RunSettings(model="cnn-small", batch_size=16)
    found = compare_scores(DataSpec(clients=4), settings, (0, 1), removed=60, samples=40)
    for kind in (SAME, MINIBATCHES):
        assert len(found[kind]["rank_correlation"]) == len(found[kind]["top"]) == 2
        assert all(0 <= share <= 1 for share in found[kind]["top"])
    assert min(found[SAME]["rank_correlation"]) > 0.8, "the first-order term, at small weights"
    assert min(found[SAME]["rank_correlation"]) > max(found[MINIBATCHES]["rank_correlation"])
    assert [len(values) for values in found["points"]] == [60, 60]
