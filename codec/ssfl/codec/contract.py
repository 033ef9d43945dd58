"""Sparse vectors, and the contract of their encodings.

A sparse vector has `size` coordinates. A mask keeps `num_kept` of them; kept coordinates have a
value, all others are zero. An encoding turns the vector into a payload and back. Its contract:

- `encoded_bytes(size, num_kept)` is the exact payload length, known before encoding.
- `decode(encode(v), v.size, v.num_kept, v.bits)` equals v bit for bit, including NaN payloads,
  -0.0 and subnormal numbers.
- Without `bits`, an encoding that `needs_mask` refuses to decode. Any other encoding restores
  `v.dense()` bit for bit, and also the mask if the payload names the kept coordinates.
- With `bits`, a payload of another mask raises MaskError: no value lands on a wrong coordinate.
- `parts` and `reader` produce the payload piece by piece with a fixed amount of scratch memory.
  Reading all of it takes time linear in `size`, for any buffer size.
- Any bytes decode or raise a CodecError. Counts and lengths are checked before allocation, which
  is bounded by the payload's length and a few bits per coordinate.

`size` must come from the receiver's own model, never from the sender.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ssfl.codec.errors import ChunkError, MaskError, TrailingBytes, TruncatedPayload
from ssfl.codec.masks import checked
from ssfl.codec.sections import Buffer

MAX_SIZE = 1 << 31  # coordinates: indices fit in 32 bits, a mask in 256 MiB
BLOCK = 1 << 16  # coordinates at a time; a multiple of 8, so that blocks start on a byte boundary


@dataclass(frozen=True, eq=False)
class SparseVector:
    """The kept coordinates of a vector and their values.

    Coordinate i is bit i % 8 of byte i // 8 of `bits`; spare bits of the last byte are zero.

    >>> dense = np.array([1, 9, -2, 0.5], dtype=np.float32)
    >>> vector = SparseVector.from_dense(dense, np.array([True, False, True, True]))
    >>> vector.num_kept, vector.bits.hex(), vector.values.tolist()
    (3, '0d', [1.0, -2.0, 0.5])
    >>> vector.dense().tolist()
    [1.0, 0.0, -2.0, 0.5]
    """

    size: int
    bits: bytes
    values: npt.NDArray[np.float32]  # (num_kept,) in ascending order of coordinates

    def __post_init__(self) -> None:
        if self.values.dtype != np.float32 or self.values.ndim != 1:
            shape, dtype = self.values.shape, self.values.dtype
            raise TypeError(f"values must be one row of float32, got {shape} of {dtype}")
        check_counts(self.size, self.num_kept)
        check_mask(self.bits, self.size, self.num_kept)

    @classmethod
    def from_dense(
        cls, dense: npt.NDArray[np.float32], kept: npt.NDArray[np.bool_]
    ) -> "SparseVector":
        """Return the coordinates of `dense` where `kept` is true."""
        if kept.dtype != np.bool_:
            raise TypeError(f"a mask must be bool, got {kept.dtype}")
        if dense.shape != kept.shape:
            raise MaskError(f"a mask of shape {kept.shape} for a vector of shape {dense.shape}")
        return cls(dense.size, np.packbits(kept, bitorder="little").tobytes(), dense[kept])

    @property
    def num_kept(self) -> int:
        return self.values.size

    def dense(self) -> npt.NDArray[np.float32]:
        """Return every coordinate: zero off the mask."""
        dense = np.zeros(self.size, dtype=np.float32)
        at = 0
        for start, kept in kept_blocks(self.bits, self.size):
            num_kept = int(np.count_nonzero(kept))
            dense[start : start + kept.size][kept] = self.values[at : at + num_kept]
            at += num_kept
        return dense

    def __eq__(self, other: object) -> bool:
        """Compare masks and the bits of the values: NaN equals itself, 0.0 differs from -0.0."""
        if not isinstance(other, SparseVector):
            return NotImplemented
        return (self.size, self.bits) == (other.size, other.bits) and bool(
            np.array_equal(self.values.view(np.uint32), other.values.view(np.uint32))
        )

    __hash__ = None  # type: ignore[assignment]  # the values are mutable


class Encoding(ABC):
    """A way to write a sparse vector as bytes; the module docstring states the contract."""

    name: ClassVar[str]
    needs_mask: ClassVar[bool] = False  # only a receiver that holds the mask can decode

    @abstractmethod
    def encoded_bytes(self, size: int, num_kept: int) -> int:
        """Return the payload's length; raise MaskError if `num_kept` of `size` is impossible."""

    @abstractmethod
    def parts(self, vector: SparseVector) -> Iterator[memoryview]:
        """Yield the payload's bytes in order: views of the vector, or up to a block of scratch.

        A part stays valid after the next one is produced. A part may be empty.
        """

    @abstractmethod
    def unpack(
        self, payload: memoryview, size: int, num_kept: int, bits: bytes | None, /
    ) -> SparseVector:
        """Return the vector of a payload; the caller has checked its length and `bits`."""

    def reader(self, vector: SparseVector, at: int = 0) -> "PayloadReader":
        """Return the payload as a stream that starts at byte `at`."""
        return PayloadReader(self, vector, at)

    def encode(self, vector: SparseVector) -> bytearray:
        """Return the whole payload."""
        reader = self.reader(vector)
        payload = bytearray(reader.encoded_bytes)
        reader.readinto(payload)
        return payload

    def decode(
        self, payload: Buffer, size: int, num_kept: int, bits: bytes | None = None
    ) -> SparseVector:
        """Return the vector of a payload; its values may be a view of the payload's memory.

        `bits` is the receiver's mask, if it holds one. For any payload bytes this raises only
        TruncatedPayload, TrailingBytes or MaskError.
        """
        view = memoryview(payload).cast("B")
        check_length(self.encoded_bytes(size, num_kept), len(view))
        if bits is not None:
            check_mask(bits, size, num_kept)
        vector = self.unpack(view, size, num_kept, bits)
        if bits is not None and vector.bits != bits:
            raise MaskError("the payload keeps other coordinates than the receiver's mask")
        return vector


class PayloadReader(io.RawIOBase):
    """The payload of a vector as a raw binary stream.

    Starting at a byte `at` above 0 (a resumed transfer) costs at most one pass over the bytes
    before it. The vector must not change while it is read.
    """

    def __init__(self, encoding: Encoding, vector: SparseVector, at: int = 0) -> None:
        self.encoded_bytes = encoding.encoded_bytes(vector.size, vector.num_kept)
        if not 0 <= at <= self.encoded_bytes:
            raise ChunkError(f"a payload of {self.encoded_bytes} bytes cannot begin at byte {at}")
        self._parts = encoding.parts(vector)
        self._part = memoryview(b"")  # unread rest of the current part
        while at and (skipped := self._next_bytes(at)):
            at -= len(skipped)

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any, /) -> int:  # Any: Python 3.11 has no name for a writable buffer
        """Fill `out` with the next bytes and return their number; 0 at the end."""
        view = memoryview(out).cast("B")
        filled = 0
        while filled < len(view) and (taken := self._next_bytes(len(view) - filled)):
            view[filled : filled + len(taken)] = taken
            filled += len(taken)
        return filled

    def _next_bytes(self, limit: int) -> memoryview:
        """Return the next 1 to `limit` bytes; empty at the end."""
        while not self._part:
            part = next(self._parts, None)
            if part is None:
                break
            self._part = part
        taken, self._part = self._part[:limit], self._part[limit:]
        return taken


def kept_blocks(bits: bytes, size: int) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Yield (first coordinate, one bool per coordinate) for each BLOCK of a mask."""
    packed = np.frombuffer(bits, dtype=np.uint8)
    for start in range(0, size, BLOCK):
        count = min(BLOCK, size - start)
        block = packed[start // 8 : (start + BLOCK) // 8]
        yield start, np.unpackbits(block, count=count, bitorder="little").view(np.bool_)


def check_counts(size: int, num_kept: int) -> None:
    """Raise MaskError unless a vector can keep `num_kept` of `size` coordinates."""
    if not 0 <= num_kept <= size:
        raise MaskError(f"cannot keep {num_kept} of {size} coordinates")
    if size > MAX_SIZE:
        raise MaskError(f"{size} coordinates are more than the limit of {MAX_SIZE}")


def check_mask(bits: bytes, size: int, num_kept: int) -> None:
    """Raise MaskError unless `bits` keep `num_kept` of `size` coordinates."""
    actual = int(np.bitwise_count(np.frombuffer(checked(bits, size), dtype=np.uint8)).sum())
    if actual != num_kept:
        raise MaskError(f"the mask keeps {actual} coordinates, not {num_kept}")


def check_length(expected: int, actual: int) -> None:
    """Raise TruncatedPayload or TrailingBytes unless a payload has the expected length."""
    if actual < expected:
        raise TruncatedPayload(expected, actual)
    if actual > expected:
        raise TrailingBytes(expected, actual)
