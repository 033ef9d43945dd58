"""Shared fixture of the data tests: a small shard."""

import pytest

from datasets.small_shard import small_shard
from ssfl.datasets.shards.shard_file import Shard


@pytest.fixture
def shard() -> Shard:
    return small_shard()
