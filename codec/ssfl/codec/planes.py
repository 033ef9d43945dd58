"""Integers as byte planes: the lowest bytes of all, then the second lowest, and so on.

Small integers have high bytes that are nearly always zero; side by side, an entropy coder sees
them as what they are. A plane is one section (sections.py).
"""

import numpy as np
import numpy.typing as npt

from ssfl.codec.sections import HEADER_BYTES, SectionReader, SectionWriter

Integers = npt.NDArray[np.uint32] | npt.NDArray[np.uint16] | npt.NDArray[np.uint8]


def bound(count: int, item_bytes: int) -> int:
    """Return the most bytes `count` integers can take."""
    return item_bytes * (HEADER_BYTES + count)


def write(integers: Integers, writer: SectionWriter, out: memoryview) -> int:
    """Write the planes of little-endian integers; return the bytes they took."""
    item_bytes = integers.itemsize
    interleaved = integers.view(np.uint8).reshape(-1, item_bytes)
    at = 0
    for place in range(item_bytes):
        at += writer.write(np.ascontiguousarray(interleaved[:, place]), out[at:])
    return at


def read(reader: SectionReader, count: int, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """Return `count` integers of the next planes."""
    integers = np.empty(count, dtype=dtype)
    interleaved = integers.view(np.uint8).reshape(-1, integers.itemsize)
    for place in range(integers.itemsize):
        interleaved[:, place] = reader.read(count)
    return integers
