"""Rules that tables and arrays share: which values are classes, dates or local numbers."""

import re
from collections.abc import Iterable

from ssfl.datasets.wording import join_names

_TIME = r"([ ,T]+\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp]\.?[Mm]\.?)?)?"
_DATE = re.compile(
    r"\s*(\d{1,2}[./-]\d{1,2}[./-]\d{4}|\d{4}[./-]\d{1,2}[./-]\d{1,2}|\d{2}[./]\d{2}[./]\d{2})"
    rf"{_TIME}\s*"
)
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


def class_name_notes(names: Iterable[str]) -> list[str]:
    """Return a note if names of classes differ only in surrounding spaces."""
    by_text: dict[str, list[str]] = {}
    for name in names:
        by_text.setdefault(name.strip(), []).append(name)
    equal = [repr(name) for same in by_text.values() if len(same) > 1 for name in same]
    what = "classes that differ only in spaces around their names"
    return [f"{what}: {join_names(equal)}"] if equal else []


def are_classes(num_distinct: int, rows: int) -> bool:
    """Return True if integers with `num_distinct` distinct values in `rows` rows are classes."""
    return num_distinct <= _VERY_FEW or num_distinct <= min(FEW, rows // _ROWS_EACH)
