"""Wording that messages share."""


def counted(number: int, thing: str) -> str:
    """Return a number and what it counts: 1 sample, 2 samples, 1 class, 2 classes."""
    ending = "" if number == 1 else "es" if thing.endswith("s") else "s"
    return f"{number:,} {thing}{ending}"
