"""Fixtures of the learning tests: one torch thread, and a small shard that can be learnt."""

import pytest

from datasets.small_shard import small_shard
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.device import prepare_torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Fix the number of threads, on which the bits of training depend."""
    prepare_torch(1)


@pytest.fixture
def shard() -> Shard:
    return small_shard()
