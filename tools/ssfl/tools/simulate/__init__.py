"""`ssfl simulate` and `ssfl paper`: studies of many simulated runs."""
