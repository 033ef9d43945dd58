"""A small shard that a network can learn, for tests of data and learning."""

import numpy as np

from ssfl.datasets.shards.shard_file import Shard
from ssfl.method.streams import Stream


def small_shard() -> Shard:
    """Return 50 training and 20 test images of 8x8; each of four classes has a bright quarter."""
    y = np.arange(70, dtype=np.int64) % 4
    x = Stream(0, "test shard").uniform(70 * 64).astype(np.float32).reshape(70, 1, 8, 8)
    for sample, label in enumerate(y):
        row, column = 4 * (label // 2), 4 * (label % 2)
        x[sample, 0, row : row + 4, column : column + 4] += 1
    return Shard(x[:50], y[:50], x[50:], y[50:], num_classes=4)
