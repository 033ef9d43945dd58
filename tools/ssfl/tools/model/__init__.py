"""`ssfl init` and `ssfl model`: the first model of a run, and the one it leaves."""
