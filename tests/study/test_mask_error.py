import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from ssfl.learning import image_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.flatten import initial_weights, write_vector
from ssfl.learning.saliency import saliency_scores, score_locally
from ssfl.method.density import kept_for_sparsity
from ssfl.method.mask import Mask, top_k
from ssfl.method.settings import RunSettings
from ssfl.study.data import DataSpec, build_shards
from ssfl.study.mask_error import FULL_GRADIENT, MEAN_OF_SCORES, flat_at, mask_error, missed

SPEC = DataSpec(clients=10, samples_per_client=64)
SETTINGS = RunSettings(model="cnn-small", batch_size=16)


def test_more_minibatches_reduce_the_error() -> None:
    torch.set_num_threads(1)
    found = mask_error(SPEC, SETTINGS, seeds=(0, 1), minibatches=(1, 10, 40))
    assert json.loads(json.dumps(found)) == found
    for sparsity, curve in found["oracles"][MEAN_OF_SCORES].items():
        assert np.array(curve["errors"]).shape == (2, 3), sparsity
        assert all(later < earlier for earlier, later in pairwise(curve["mean"])), sparsity
        assert curve["mean"][-1] < curve["mean"][0] / 2, sparsity
        assert curve["mean"][-1] < found["oracles"][FULL_GRADIENT][sparsity]["mean"][-1], sparsity
        np.testing.assert_allclose(curve["mean"], np.mean(curve["errors"], axis=0))


def test_a_single_minibatch_of_all_data_has_no_error() -> None:
    """The data of the only client fill one minibatch, so both oracles agree with it."""
    spec = DataSpec(clients=1, samples_per_client=40)
    settings = RunSettings(model="cnn-small", batch_size=40)
    found = mask_error(spec, settings, seeds=(3,), minibatches=(1,), sparsities=("0.9",))
    assert found["oracles"][MEAN_OF_SCORES]["0.9"]["errors"] == [[0.0]]
    assert found["oracles"][FULL_GRADIENT]["0.9"]["errors"] == [[0.0]]


def test_the_error_compares_the_mask_of_a_run_with_that_of_the_full_gradient() -> None:
    """With ten clients and ten minibatches, the mean is that of a run."""
    torch.set_num_threads(1)
    found = mask_error(SPEC, SETTINGS, seeds=(0,), minibatches=(10,), sparsities=("0.9",))
    shards = build_shards(SPEC, 0)
    model = image_task.build_model(SETTINGS, shards["shard_00"])
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_weights(model, manifest, 0))
    scores = [
        score_locally(model, manifest, image_task, shard, SETTINGS, name)
        for name, shard in shards.items()
    ]
    x = torch.from_numpy(np.concatenate([shard.train_x for shard in shards.values()]))
    y = torch.from_numpy(np.concatenate([shard.train_y for shard in shards.values()]))
    kept = kept_for_sparsity("0.9", manifest.num_masked)
    run = top_k((np.array(scores, dtype=np.float64).sum(axis=0) / 10).astype(np.float32), kept)
    oracle = top_k(saliency_scores(model, manifest, image_task, x, y), kept)
    ((error,),) = found["oracles"][FULL_GRADIENT]["0.9"]["errors"]
    assert error == pytest.approx(missed(oracle, run), abs=2 / kept)  # sums in another order
    assert error > 0.1


def test_missed_is_the_share_of_the_oracles_weights() -> None:
    oracle = Mask.from_bools(np.array([True, True, True, True, False, False]))
    found = Mask.from_bools(np.array([False, True, True, True, True, False]))
    assert missed(oracle, found) == 0.25
    assert missed(oracle, oracle) == 0


def test_the_error_is_flat_from_where_it_stays_near_the_last_one() -> None:
    counts = (1, 10, 100, 400)
    assert flat_at(counts, [0.4, 0.12, 0.109, 0.1], deviation=0.0) == 100
    assert flat_at(counts, [0.4, 0.12, 0.109, 0.1], deviation=0.03) == 10
    assert flat_at(counts, [0.4, 0.1, 0.2, 0.1], deviation=0.0) == 400
    assert flat_at(counts, [0.1, 0.1, 0.1, 0.1], deviation=0.0) == 1
