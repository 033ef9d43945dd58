"""The shard file of a site, and how a data set is cut into shards. No network, no torch."""

from ssfl.datasets.shards.shard_file import Shard, read_shard, write_shard

__all__ = ["Shard", "read_shard", "write_shard"]
