"""From a state directory back to a run, and the checks of an audit. No network."""
