"""Decide if integer labels are classes; tables and arrays share this rule."""

FEW = 100  # more distinct integers than this are not taken for classes
_ROWS_EACH = 10  # rows that each class must have on average
_VERY_FEW = 10  # up to this many distinct integers are always classes
ASK_FOR_TARGET = "are they classes or numbers to predict? Use --target class or --target number"


def are_classes(different: int, rows: int) -> bool:
    """Return True if `different` distinct integers in `rows` rows are clearly classes."""
    return different <= _VERY_FEW or different <= min(FEW, rows // _ROWS_EACH)
