"""Names from the network and from files that become names of folders and files."""

import re

# Dots alone would be a folder outside.
_RUN_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,64}")
RUN_ID_RULE = "1 to 64 letters, digits, '.', '_', '-'"


def is_run_id(text: str) -> bool:
    """Return True if `text` can be a run id, and so a name inside a results folder."""
    return _RUN_ID.fullmatch(text) is not None
