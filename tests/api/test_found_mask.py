import math

import numpy as np
import pytest
import torch

from ssfl import api
from ssfl.api.simulation import run_settings
from ssfl.client.local_work import Site
from ssfl.learning.errors import ModelError, TaskError
from ssfl.learning.load_task import load_task
from ssfl.method.errors import SettingsError
from ssfl.method.mask import top_k
from ssfl.server.errors import ModelUnusable
from ssfl.strategies.contract import ScoringRequest


def test_scores_are_the_mean_over_clients_weighted_by_data_size(shards: list[api.Shard]) -> None:
    found = api.find_mask(shards, model="mlp", scores="exact", sparsity=0.8)
    settings = run_settings({"model": "mlp"}, len(shards))
    total = np.zeros(found.manifest.num_masked)
    batches = math.ceil(100 / len(shards))  # so that all of them make a hundred
    for number, shard in enumerate(shards):
        name = f"shard_{number:02d}"
        site = Site.build(load_task("image"), shard, settings, name, torch.device("cpu"))
        assert np.array_equal(site.initial, found.initial)
        scores = site.score(ScoringRequest(found.initial, num_batches=batches))
        total += scores.astype(np.float64) * shard.num_samples
    mean = total / sum(shard.num_samples for shard in shards)
    assert np.allclose(found.scores, mean, rtol=1e-5)
    assert found.scores.dtype == np.float32
    assert found.mask == top_k(found.scores, found.manifest.num_masked // 5)


def test_compact_scores_give_nearly_the_same_mask(shards: list[api.Shard]) -> None:
    exact, compact = (api.find_mask(shards, model="mlp", scores=s) for s in ("exact", "compact"))
    assert not np.array_equal(exact.scores, compact.scores)
    both = np.count_nonzero(exact.mask.bools() & compact.mask.bools())
    assert both > 0.9 * exact.mask.num_kept


def test_layers_add_up_to_the_mask(shards: list[api.Shard]) -> None:
    found = api.find_mask(shards, model="cnn", sparsity=0.9)
    layers = found.layers
    assert layers.names == (
        "conv1.weight", "conv2.weight", "linear1.weight", "linear2.weight",
    )  # fmt: skip
    assert layers.kept.sum() == found.mask.num_kept
    assert layers.size.sum() == found.manifest.num_masked
    assert np.array_equal(layers.density, layers.kept / layers.size)
    assert layers.density[0] > layers.density.min()


def test_torch_settings_are_restored(shards: list[api.Shard]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        before = torch.random.get_rng_state()
        api.find_mask(shards, model="mlp")
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.random.get_rng_state(), before)
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(was_deterministic, warn_only=True)


def test_impossible_settings_of_find_mask_are_refused(shards: list[api.Shard]) -> None:
    with pytest.raises(SettingsError, match="fedavg keeps every weight"):
        api.find_mask(shards, strategy="fedavg")
    with pytest.raises(ModelUnusable, match="bytes-per-round 100 is too small"):
        api.find_mask(shards, bytes_per_round=100)
    with pytest.raises(ModelError, match="lenet5 needs images of 28x28"):
        api.find_mask(shards, model="lenet5")
    with pytest.raises(TaskError, match=r"there is no task file nowhere\.py"):
        api.find_mask(shards, task="nowhere.py")


def test_shards_of_different_shapes_are_refused_by_name(shards: list[api.Shard]) -> None:
    x, y = np.zeros((4, 1, 6, 6), dtype=np.float32), np.arange(4)
    other = api.Shard(x, y, x, y, 10)
    with pytest.raises(
        ModelError,
        match=r"shard_01 does not build .* shard_00: samples of 1x6x6 here, 1x8x8 in the run",
    ):
        api.find_mask([shards[0], other], model="mlp")
