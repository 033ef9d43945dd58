"""Integers as byte planes: the lowest byte of every integer, then the second lowest, and so on.

The high bytes of small integers are nearly always zero; grouped into planes they compress well.
Each plane is a section (sections.py).
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ssfl.codec.sections import HEADER_BYTES, SectionReader, SectionWriter

Integers = npt.NDArray[np.uint32] | npt.NDArray[np.uint16] | npt.NDArray[np.uint8]
Integer = TypeVar("Integer", np.uint32, np.uint16, np.uint8)


def bound(count: int, item_bytes: int) -> int:
    """Return the largest possible size of `count` integers, in bytes."""
    return item_bytes * (HEADER_BYTES + count)


def write(integers: Integers, out: memoryview) -> int:
    """Write the planes of the integers into `out`; return the number of bytes written."""
    at, writer = 0, SectionWriter()
    for plane in range(integers.itemsize):
        # Shifting and narrowing is twice as fast as a strided view of the bytes.
        shifted = integers >> integers.dtype.type(8 * plane) if plane else integers
        at += writer.write(shifted.astype(np.uint8), out[at:])
    return at


def read(reader: SectionReader, count: int, dtype: type[Integer]) -> npt.NDArray[Integer]:
    """Return `count` integers from the next planes."""
    planes = [reader.read(count) for _ in range(np.dtype(dtype).itemsize)]
    # If all integers are small, as is common, the high planes are zero and need no shift.
    while len(planes) > 1 and not planes[-1].max(initial=0):
        planes.pop()
    integers = planes.pop().astype(dtype)
    while planes:
        integers <<= np.uint8(8)
        integers |= planes.pop()
    return integers
