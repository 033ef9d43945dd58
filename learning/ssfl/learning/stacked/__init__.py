"""Many clients trained in one batched step, for the fast simulator. No scoring and no files."""
