"""Commands for a running coordinator, through its admin port."""
