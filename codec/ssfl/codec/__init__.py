"""Encodings of a sparse model: vectors, values, masks, scores and chunks.

The package needs only numpy and zstandard. docs/codec.md explains its use, docs/wire-format.md
specifies every byte.

>>> import numpy as np
>>> from ssfl.codec import values_only
>>> payload = values_only.encode(np.array([1.0, -2.0, 0.5], dtype=np.float32))
>>> bytes(payload).hex()
'0000803f000000c00000003f'
>>> values_only.decode(payload, count=3).tolist()
[1.0, -2.0, 0.5]
"""

from ssfl.codec.chunks import MAX_CHUNK_BYTES, ChunkSizer, Receiver, pieces
from ssfl.codec.contract import Encoding, SparseVector
from ssfl.codec.errors import (
    ChecksumMismatch,
    ChunkError,
    CodecError,
    DigestMismatch,
    MalformedPayload,
    MaskError,
    TrailingBytes,
    TruncatedPayload,
    UnfitValues,
)

__all__ = [
    "MAX_CHUNK_BYTES",
    "ChecksumMismatch",
    "ChunkError",
    "ChunkSizer",
    "CodecError",
    "DigestMismatch",
    "Encoding",
    "MalformedPayload",
    "MaskError",
    "Receiver",
    "SparseVector",
    "TrailingBytes",
    "TruncatedPayload",
    "UnfitValues",
    "pieces",
]
