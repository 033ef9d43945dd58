"""Encodings of a sparse model: vectors, values, masks, scores and chunks.

The package needs only numpy and zstandard. docs/codec.md explains its use, docs/wire-format.md
specifies every byte.
"""

from ssfl.codec import (
    bfloat16,
    bitmask,
    blocks,
    choose,
    coo,
    csr,
    dense,
    grid,
    int8,
    masks,
    reference,
    scores,
    sorted_bits,
    values_only,
)
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
    "bfloat16",
    "bitmask",
    "blocks",
    "choose",
    "coo",
    "csr",
    "dense",
    "grid",
    "int8",
    "masks",
    "pieces",
    "reference",
    "scores",
    "sorted_bits",
    "values_only",
]
