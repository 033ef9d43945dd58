"""Bitmask: one bit per coordinate, then the values of those whose bit is set.

    payload   mask u8[ceil(size / 8)] | values f32[num_kept]

Packed bits: coordinate i is bit i % 8 of byte i // 8; spare bits of the last byte are zero.
The functions beside the encoding are how a mask travels alone: its packed bits, as one zstd
frame where that is smaller.

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
import zstandard

from ssfl.codec import values_only
from ssfl.codec.contract import Encoding, SparseVector, check_counts
from ssfl.codec.errors import MaskError

# Level 1 beats level 3 on saliency masks at every density we measured, and is fastest.
_LEVEL = 1


def packed_bytes(size: int) -> int:
    """Return the bytes of `size` packed bits."""
    return (size + 7) // 8


def compress(bits: bytes) -> bytes | None:
    """Return the zstd frame of packed bits, or None if it would not be smaller."""
    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(bits)
    return frame if len(frame) < len(bits) else None


def decompress(frame: bytes | bytearray | memoryview, size: int) -> bytes:
    """Return the packed bits of a frame that must hold exactly `size` coordinates.

    The frame must state its content size: a mismatch is refused before memory is taken.
    """
    expected = packed_bytes(size)
    try:
        stated = zstandard.frame_content_size(frame)
        if stated != expected:
            raise MaskError(f"the frame holds {stated} bytes, a mask of {size} has {expected}")
        out = zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=expected, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise MaskError(f"not a zstd frame: {error}") from error
    return checked(out, size)


def checked(bits: bytes, size: int) -> bytes:
    """Return `bits` if they can be a mask of `size` coordinates."""
    if len(bits) != packed_bytes(size):
        raise MaskError(f"{len(bits)} bytes for a mask of {size} coordinates")
    if size % 8 and bits[-1] >> (size % 8):
        raise MaskError("bits behind the last coordinate are set")
    return bytes(bits)


class Bitmask(Encoding):
    """A bit for each coordinate: the smallest without a shared mask from 1 kept in 32 on."""

    name = "bitmask"

    def encoded_bytes(self, size: int, num_kept: int) -> int:
        check_counts(size, num_kept)
        return packed_bytes(size) + values_only.encoded_bytes(num_kept)

    def parts(self, vector: SparseVector) -> Iterator[memoryview]:
        yield memoryview(vector.bits)
        yield from values_only.encode_parts(vector.values)

    def unpack(
        self,
        payload: memoryview,
        size: int,
        num_kept: int,
        bits: bytes | None,  # noqa: ARG002  # compared by the caller
    ) -> SparseVector:
        split = packed_bytes(size)
        packed = bytes(payload[:split])
        values = values_only.decode(payload[split:], num_kept)
        # Behind a mask of 4n + 1 … 3 bytes, values stand where no float32 of the machine may.
        return SparseVector(size, packed, np.require(values, requirements="A"))


BITMASK = Bitmask()
