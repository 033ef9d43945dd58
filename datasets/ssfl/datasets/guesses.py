"""Guess what values mean: classes, dates or numbers in local notation. Tables and arrays share it."""

import re
from collections.abc import Iterable

_TIME = r"([ ,T]+\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp]\.?[Mm]\.?)?)?"
_DATE = re.compile(
    r"\s*(\d{1,2}[./-]\d{1,2}[./-]\d{4}|\d{4}[./-]\d{1,2}[./-]\d{1,2}|\d{2}[./]\d{2}[./]\d{2})"
    rf"{_TIME}\s*"
)
EQUAL_WHEN_STRIPPED = "classes that differ only in spaces around their names"

# 1.005,5 or 1,005.5 or 1'005 or 1 005, also 5 % and € 5.
_LOCAL = re.compile(
    r"\s*[€$£]?\s*[+-]?\d{1,3}(([.,'’ \u00a0\u202f]\d{3})+|\d*)([.,]\d+)?\s*[%‰€$£]?\s*"
)

FEW = 100  # more distinct integers than this are not taken for classes
_ROWS_EACH = 10  # rows that each class must have on average
_VERY_FEW = 10  # up to this many distinct integers are always classes
ASK_FOR_TARGET = "are they classes or numbers to predict? Use --target class or --target number"


def are_dates(texts: Iterable[str]) -> bool:
    """Return True if every text is a date, such as 05.01.2020 10:00 or 1/5/2020."""
    return all(_DATE.fullmatch(text) for text in texts)


def are_local_numbers(texts: Iterable[str]) -> bool:
    """Return True if every text is a number in local notation, such as 1.005,5 or 5 %."""
    return all(_LOCAL.fullmatch(text) for text in texts)


def equal_when_stripped(texts: Iterable[str]) -> list[str]:
    """Return the texts that differ from another one only in surrounding spaces."""
    by_text: dict[str, list[str]] = {}
    for text in texts:
        by_text.setdefault(text.strip(), []).append(text)
    return [repr(text) for same in by_text.values() if len(same) > 1 for text in same]


def are_classes(different: int, rows: int) -> bool:
    """Return True if `different` distinct integers in `rows` rows are clearly classes."""
    return different <= _VERY_FEW or different <= min(FEW, rows // _ROWS_EACH)
