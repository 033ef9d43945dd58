"""`ssfl simulate`, `ssfl compare` and `ssfl paper`: studies of many simulated runs."""
