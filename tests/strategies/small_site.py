"""A real site with a small network and 30 samples."""

from dataclasses import replace

import numpy as np
import torch

from ssfl.client.local_work import Site
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.load_task import load_task
from ssfl.method.settings import RunSettings

SMALL = RunSettings(model="mlp", width=4, batch_size=5, local_epochs=3, sparsity="0.8", seed=2)


def small_site(settings: RunSettings, validation: int = 0) -> Site:
    """Return a site; the first training samples are its validation samples."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 1, 4, 4)).astype(np.float32), np.arange(30) % 3
    shard = Shard(x, y, x[:9], y[:9], 3)
    if validation:
        shard = replace(shard, val_x=x[:validation], val_y=y[:validation])
    return Site.build(load_task("image"), shard, settings, "c1", torch.device("cpu"))
