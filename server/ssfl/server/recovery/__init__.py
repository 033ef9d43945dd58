"""Recovery of a run from its state directory, and the checks of an audit. No network."""
