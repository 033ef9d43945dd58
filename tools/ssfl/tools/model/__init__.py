"""`ssfl init` and `ssfl model`: the initial model of a run, and its final model."""
