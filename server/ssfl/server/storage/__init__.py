"""Journal, models and uploads on disk: the only package with paths of the state directory."""
