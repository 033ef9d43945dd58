"""Bitmask encoding: one bit per coordinate, then the values of the kept coordinates.

    payload   mask u8[ceil(size / 8)] | values f32[num_kept]

Packed bits: coordinate i is bit i % 8 of byte i // 8; spare bits of the last byte are zero.

>>> import numpy as np
>>> from ssfl.codec.contract import SparseVector
>>> vector = SparseVector(4, b"\\x0d", np.array([1, -2, 0.5], dtype=np.float32))
>>> payload = BITMASK.encode(vector)
>>> payload.hex()
'0d0000803f000000c00000003f'
>>> BITMASK.decode(payload, size=4, num_kept=3) == vector
True
"""

from collections.abc import Iterator

import numpy as np

from ssfl.codec import values_only
from ssfl.codec.contract import Encoding, SparseVector, check_counts
from ssfl.codec.masks import packed_bytes


class Bitmask(Encoding):
    """A bit per coordinate: smallest without a shared mask if at least 1 in 32 is kept."""

    name = "bitmask"

    def encoded_bytes(self, size: int, num_kept: int) -> int:
        check_counts(size, num_kept)
        return packed_bytes(size) + values_only.encoded_bytes(num_kept)

    def parts(self, vector: SparseVector) -> Iterator[memoryview]:
        yield memoryview(vector.bits)
        yield from values_only.encode_parts(vector.values)

    def unpack(
        self, payload: memoryview, size: int, num_kept: int, _bits: bytes | None, /
    ) -> SparseVector:
        split = packed_bytes(size)
        packed = bytes(payload[:split])
        values = values_only.decode(payload[split:], num_kept)
        # A mask whose length is not a multiple of 4 bytes leaves the values unaligned.
        return SparseVector(size, packed, np.require(values, requirements="A"))


BITMASK = Bitmask()
