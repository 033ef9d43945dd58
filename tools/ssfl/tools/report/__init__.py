"""`ssfl report`, `ssfl compare` and `ssfl audit`: what a run left, shown and recomputed."""
