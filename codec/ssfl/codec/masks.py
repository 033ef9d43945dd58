"""Encodings of a mask: packed bits, a zstd frame of them, or sorted bits (sorted_bits.py).

Packed bits: coordinate i is bit i % 8 of byte i // 8; spare bits of the last byte are zero.
Relative to a mask that both ends hold, the exclusive or of the two is sent.
"""

import numpy as np
import zstandard

from ssfl.codec.errors import MaskError
from ssfl.codec.sections import Buffer, check_can_hold

_LEVEL = 1  # zstd: smaller than level 3 on saliency masks at every density measured


def packed_bytes(size: int) -> int:
    """Return the bytes of `size` packed bits."""
    return (size + 7) // 8


def checked(bits: Buffer, size: int) -> bytes:
    """Return `bits` as bytes; raise MaskError unless they are a mask of `size` coordinates."""
    if len(bits) != packed_bytes(size):
        raise MaskError(f"{len(bits)} bytes for a mask of {size} coordinates")
    if size % 8 and bits[-1] >> (size % 8):
        raise MaskError("bits behind the last coordinate are set")
    return bytes(bits)


def difference(bits: Buffer, reference: Buffer) -> bytes:
    """Return the exclusive or of two masks of the same size; it is its own inverse."""
    if len(bits) != len(reference):
        raise MaskError(f"a mask of {len(bits)} bytes against one of {len(reference)}")
    return (np.frombuffer(bits, np.uint8) ^ np.frombuffer(reference, np.uint8)).tobytes()


def compress(bits: bytes) -> bytes | None:
    """Return the zstd frame of packed bits, or None if it would not be smaller."""
    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(bits)
    return frame if len(frame) < len(bits) else None


def decompress(frame: Buffer, size: int) -> bytes:
    """Return the packed bits of a frame that must hold exactly `size` coordinates.

    The frame must state its content size; a mismatch is refused before allocation.
    """
    expected = packed_bytes(size)
    try:
        stated = zstandard.frame_content_size(frame)
        if stated != expected:
            raise MaskError(f"the frame holds {stated} bytes, a mask of {size} has {expected}")
        check_can_hold(len(frame), expected)
        out = zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=expected, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise MaskError(f"not a zstd frame: {error}") from error
    return checked(out, size)
