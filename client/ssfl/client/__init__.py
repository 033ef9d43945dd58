"""The agent on one shard: it dials out, works, and keeps its data to itself."""
