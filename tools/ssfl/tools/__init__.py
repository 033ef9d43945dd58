"""The command `ssfl`: try, prepare, watch and study runs. May import every package."""
