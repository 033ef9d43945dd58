import numpy as np
import pytest

from ssfl import api
from ssfl.datasets.published.digits import digits
from ssfl.method.streams import Stream


@pytest.fixture(scope="session")
def shards() -> list[api.Shard]:
    """Three shards of digits: 20, 30 and 40 training samples, 15 to test on."""
    whole = digits()
    return [
        api.Shard(
            whole.train_x[start:stop], whole.train_y[start:stop],
            whole.test_x[start : start + 15], whole.test_y[start : start + 15], 10,
        )
        for start, stop in ((0, 20), (20, 50), (50, 90))
    ]  # fmt: skip


@pytest.fixture(scope="session")
def numbers() -> list[api.Shard]:
    """Two shards whose targets are numbers: the sum of three inputs."""
    found = []
    for client in range(2):
        x = Stream(client, "numbers").uniform(60).astype(np.float32).reshape(20, 3)
        y = x.sum(axis=1)
        found.append(api.Shard(x[:15], y[:15], x[15:], y[15:], 0))
    return found
