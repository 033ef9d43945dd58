"""The umbrella command `ssfl`: try it, prepare a run, watch it. May import every package."""
