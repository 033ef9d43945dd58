"""Whether whole numbers to predict are classes: one rule for tables and for arrays."""

FEW = 100  # different whole numbers may be classes,
_ROWS_EACH = 10  # if on average so many rows have the same;
_VERY_FEW = 10  # so few are classes in any case
ASK_FOR_TARGET = "are they classes or numbers to predict? Say --target class or --target number"


def are_classes(different: int, rows: int) -> bool:
    """Return whether so many different whole numbers in so many rows are surely classes."""
    return different <= _VERY_FEW or different <= min(FEW, rows // _ROWS_EACH)
