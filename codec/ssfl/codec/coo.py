"""COO encoding: the indices of the kept coordinates, then their values.

    payload   indices u32[num_kept] | values f32[num_kept]        8 * num_kept bytes

Indices ascend strictly and are below `size`; others raise MaskError, so that a vector has exactly
one payload. All numbers are little-endian.

>>> from ssfl.codec.contract import SparseVector
>>> vector = SparseVector(4, b"\\x0d", np.array([1, -2, 0.5], dtype=np.float32))
>>> payload = COO.encode(vector)
>>> payload.hex(" ", 4)
'00000000 02000000 03000000 0000803f 000000c0 0000003f'
>>> COO.decode(payload, size=4, num_kept=3) == vector
True
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ssfl.codec import values_only
from ssfl.codec.contract import BLOCK, Encoding, SparseVector, check_counts, kept_blocks
from ssfl.codec.errors import MaskError
from ssfl.codec.masks import packed_bytes

BYTES_PER_INDEX = 4

Indices = npt.NDArray[np.uint32]


class Coo(Encoding):
    """An index per value: smallest without a shared mask if fewer than 1 in 32 are kept."""

    name = "coo"

    def encoded_bytes(self, size: int, num_kept: int) -> int:
        check_counts(size, num_kept)
        return BYTES_PER_INDEX * num_kept + values_only.encoded_bytes(num_kept)

    def parts(self, vector: SparseVector) -> Iterator[memoryview]:
        for start, kept in kept_blocks(vector.bits, vector.size):
            indices = np.flatnonzero(kept).astype("<u4")  # (kept in this block,)
            indices += np.uint32(start)
            yield indices.data.cast("B")
        yield from values_only.encode_parts(vector.values)

    def unpack(
        self, payload: memoryview, size: int, num_kept: int, _bits: bytes | None, /
    ) -> SparseVector:
        split = BYTES_PER_INDEX * num_kept
        indices = np.frombuffer(payload[:split], dtype="<u4").astype(np.uint32, copy=False)
        _check_indices(indices, size)
        return SparseVector(
            size, _packed(indices, size), values_only.decode(payload[split:], num_kept)
        )


def _check_indices(indices: Indices, size: int) -> None:
    ascends = indices[1:] > indices[:-1]
    if not ascends.all():
        place = int(np.argmin(ascends))  # the first that does not
        raise MaskError(f"index {indices[place + 1]} follows {indices[place]}: not ascending")
    if indices.size and indices[-1] >= size:
        raise MaskError(f"index {indices[-1]} in a vector of {size} coordinates")


def _packed(indices: Indices, size: int) -> bytes:
    """Return the packed mask of ascending indices, block by block to save memory."""
    packed = bytearray(packed_bytes(size))
    begin = 0
    while begin < indices.size:  # blocks without kept coordinates are skipped
        start = int(indices[begin]) // BLOCK * BLOCK
        # uint32: numpy would convert all indices to int64 to compare them with an int.
        end = int(np.searchsorted(indices, np.uint32(start + BLOCK)))
        kept = np.zeros(min(BLOCK, size - start), dtype=np.bool_)
        kept[indices[begin:end] - np.uint32(start)] = True
        block = np.packbits(kept, bitorder="little").data
        packed[start // 8 : start // 8 + len(block)] = block
        begin = end
    return bytes(packed)


COO = Coo()
