"""What the learning tests share: one torch thread, and a small shard that can be learnt."""

import pytest

from datasets.small_shard import small_shard
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.device import prepare_torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Equal bits are promised for a fixed number of threads."""
    prepare_torch(1)


@pytest.fixture
def shard() -> Shard:
    return small_shard()
