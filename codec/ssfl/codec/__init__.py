"""Bytes of a sparse model: encodings, masks and chunks. numpy and zstandard only.

>>> import numpy as np
>>> from ssfl.codec import values_only
>>> payload = values_only.encode(np.array([1.0, -2.0, 0.5], dtype=np.float32))
>>> bytes(payload).hex()
'0000803f000000c00000003f'
>>> values_only.decode(payload, count=3).tolist()
[1.0, -2.0, 0.5]
"""

from ssfl.codec import bitmask, values_only
from ssfl.codec.chunks import MAX_CHUNK_BYTES, ChunkSizer, Receiver, pieces
from ssfl.codec.errors import (
    ChecksumMismatch,
    ChunkError,
    CodecError,
    DigestMismatch,
    MaskError,
    TrailingBytes,
    TruncatedPayload,
)

__all__ = [
    "MAX_CHUNK_BYTES",
    "ChecksumMismatch",
    "ChunkError",
    "ChunkSizer",
    "CodecError",
    "DigestMismatch",
    "MaskError",
    "Receiver",
    "TrailingBytes",
    "TruncatedPayload",
    "bitmask",
    "pieces",
    "values_only",
]
