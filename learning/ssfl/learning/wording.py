"""Shapes as text, for messages."""

from collections.abc import Sequence


def format_shape(shape: Sequence[int], scalar: str = "scalar") -> str:
    """Return a shape as text; `scalar` is the text for no dimensions.

    >>> format_shape((3, 32, 32)), format_shape(())
    ('3x32x32', 'scalar')
    """
    return "x".join(str(n) for n in shape) or scalar
