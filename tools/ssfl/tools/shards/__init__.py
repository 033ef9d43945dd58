"""`ssfl shards`: a data set cut into one shard per client. No training."""
