"""Dense encoding: every coordinate as float32, zero off the mask.

    payload   values f32[size]            4 * size bytes

The payload does not show which coordinates are kept: a kept zero looks like a pruned one. A
receiver without the mask treats every coordinate as kept. A receiver with the mask gets the kept
coordinates, and a MaskError if any other coordinate is not +0.0.

>>> from ssfl.codec.contract import SparseVector
>>> vector = SparseVector(4, b"\\x0d", np.array([1, -2, 0.5], dtype=np.float32))
>>> payload = DENSE.encode(vector)
>>> payload.hex(" ", 4)
'0000803f 00000000 000000c0 0000003f'
>>> DENSE.decode(payload, size=4, num_kept=3).values.tolist()
[1.0, 0.0, -2.0, 0.5]
>>> DENSE.decode(payload, size=4, num_kept=3, bits=b"\\x0d").values.tolist()
[1.0, -2.0, 0.5]
"""

from collections.abc import Iterator

import numpy as np

from ssfl.codec import values_only
from ssfl.codec.contract import Encoding, SparseVector, check_counts, kept_blocks
from ssfl.codec.errors import MaskError


class Dense(Encoding):
    """Every coordinate: the simplest encoding, and the smallest if nearly all are kept."""

    name = "dense"

    def encoded_bytes(self, size: int, num_kept: int) -> int:
        check_counts(size, num_kept)
        return values_only.encoded_bytes(size)

    def parts(self, vector: SparseVector) -> Iterator[memoryview]:
        at = 0
        for _, kept in kept_blocks(vector.bits, vector.size):
            num_kept = int(np.count_nonzero(kept))
            block = np.zeros(kept.size, dtype=np.float32)
            block[kept] = vector.values[at : at + num_kept]
            at += num_kept
            yield values_only.encode(block)

    def unpack(
        self, payload: memoryview, size: int, num_kept: int, bits: bytes | None, /
    ) -> SparseVector:
        values = values_only.decode(payload, size)
        words = values.view(np.uint32)  # -0.0 and +0.0 differ
        if bits is None:
            if np.count_nonzero(words) > num_kept:
                raise MaskError(f"more than {num_kept} coordinates are not zero")
            last = bytes([(1 << size % 8) - 1]) if size % 8 else b""
            return SparseVector(size, b"\xff" * (size // 8) + last, values)  # all are kept
        chosen = np.empty(num_kept, dtype=np.float32)
        at = 0
        for start, kept in kept_blocks(bits, size):
            block = slice(start, start + kept.size)
            taken = values[block][kept]
            if np.count_nonzero(words[block]) != np.count_nonzero(taken.view(np.uint32)):
                raise MaskError("a coordinate off the mask is not zero")
            chosen[at : at + taken.size] = taken
            at += taken.size
        return SparseVector(size, bits, chosen)


DENSE = Dense()
