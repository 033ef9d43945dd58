"""What the texts of a column look like, when they are dates or numbers in local writing."""

import re
from collections.abc import Iterable

_TIME = r"([ ,T]+\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp]\.?[Mm]\.?)?)?"
_DATE = re.compile(
    r"\s*(\d{1,2}[./-]\d{1,2}[./-]\d{4}|\d{4}[./-]\d{1,2}[./-]\d{1,2}|\d{2}[./]\d{2}[./]\d{2})"
    rf"{_TIME}\s*"
)
EQUAL_WHEN_STRIPPED = "classes that differ in nothing but spaces around their names"

# 1.005,5 or 1,005.5 or 1'005 or 1 005; 5 % and € 5 too.
_LOCAL = re.compile(
    r"\s*[€$£]?\s*[+-]?\d{1,3}(([.,'’ \u00a0\u202f]\d{3})+|\d*)([.,]\d+)?\s*[%‰€$£]?\s*"
)


def are_dates(texts: Iterable[str]) -> bool:
    """Return whether each is a day, such as 05.01.2020 10:00 or 1/5/2020."""
    return all(_DATE.fullmatch(text) for text in texts)


def are_local_numbers(texts: Iterable[str]) -> bool:
    """Return whether each is a number as people write it, such as 1.005,5 or 5 %."""
    return all(_LOCAL.fullmatch(text) for text in texts)


def equal_when_stripped(texts: Iterable[str]) -> list[str]:
    """Return the texts that differ from another one in nothing but spaces around them."""
    by_text: dict[str, list[str]] = {}
    for text in texts:
        by_text.setdefault(text.strip(), []).append(text)
    return [repr(text) for same in by_text.values() if len(same) > 1 for text in same]
