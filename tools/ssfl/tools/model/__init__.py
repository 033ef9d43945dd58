"""`ssfl init` and `ssfl model`: the initial model of a run, and its final model.

No training, and no calls to a coordinator.
"""
