"""Lossy value code: changes from the reference as bfloat16, 2 bytes per value before compression.

The relative error of a change is at most 1/256 (1/128 with stochastic rounding). The receiver
adds the change to its reference in float32. Layout: byte planes of the 16-bit patterns, rotated
so that the sign is the lowest bit and the high plane holds only the exponent.
"""

import numpy as np

from ssfl.codec import planes
from ssfl.codec.blocks import Floats, Words, change
from ssfl.codec.errors import MalformedPayload, UnfitValues
from ssfl.codec.sections import SectionReader

_INFINITY = 0x7F80  # exponent of infinity and NaN


class Bfloat16:
    """Changes with 8 bits of precision."""

    name = "bfloat16"
    lossless = False

    def block_bound(self, count: int) -> int:
        return planes.bound(count, 2)

    def encode_block(
        self, values: Floats, reference: Floats, words: Words | None, out: memoryview
    ) -> int:
        bits = change(values, reference).view(np.uint32)
        if words is None:  # to nearest, ties to even
            half = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        else:
            half = words & np.uint32(0xFFFF)
        top = ((bits + half) >> np.uint32(16)).astype(np.uint16)
        if ((top & _INFINITY) == _INFINITY).any():
            raise UnfitValues("a change is too large for bfloat16")
        rotated = (top << np.uint16(1)) | (top >> np.uint16(15))
        return planes.write(rotated, out)

    def decode_block(self, reader: SectionReader, reference: Floats) -> Floats:
        rotated = planes.read(reader, reference.size, np.uint16)
        top = (rotated >> np.uint16(1)) | (rotated << np.uint16(15))
        if ((top & _INFINITY) == _INFINITY).any():
            raise MalformedPayload("a change that is not finite")
        with np.errstate(over="ignore", invalid="ignore"):  # the receiver checks the values
            return reference + (top.astype(np.uint32) << np.uint32(16)).view(np.float32)


CODE = Bfloat16()
