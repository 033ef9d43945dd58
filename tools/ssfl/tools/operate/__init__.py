"""Commands for a running coordinator, through its admin port. They never read its files."""
