"""Values-only encoding: float32 in an order both ends know, without indices.

    payload   values f32[num_kept]        4 * num_kept bytes

`VALUES_ONLY` encodes a sparse vector whose mask the receiver holds. The functions of this module
do the same for bare values: `decode(encode(v), v.size)` equals v bit for bit, including NaN
payloads and -0.0. The encoded payload is `encoded_bytes(v.size)` bytes long.

>>> from ssfl.codec.contract import SparseVector
>>> vector = SparseVector(4, b"\\x0d", np.array([1, -2, 0.5], dtype=np.float32))
>>> payload = VALUES_ONLY.encode(vector)
>>> payload.hex()
'0000803f000000c00000003f'
>>> VALUES_ONLY.decode(payload, size=4, num_kept=3, bits=b"\\x0d").dense().tolist()
[1.0, 0.0, -2.0, 0.5]
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ssfl.codec.contract import BLOCK, Encoding, SparseVector, check_counts, check_length
from ssfl.codec.errors import MaskError
from ssfl.codec.sections import Buffer

BYTES_PER_VALUE = 4


def encoded_bytes(count: int) -> int:
    """Return the payload size of `count` values."""
    return BYTES_PER_VALUE * count


def encode(values: npt.NDArray[np.float32]) -> memoryview:
    """Return the payload, without a copy of contiguous values on little-endian machines."""
    if values.dtype.kind != "f" or values.dtype.itemsize != BYTES_PER_VALUE:
        raise TypeError(f"values must be float32, got {values.dtype}")
    return np.ascontiguousarray(values, dtype="<f4").data.cast("B")


def encode_parts(values: npt.NDArray[np.float32]) -> Iterator[memoryview]:
    """Yield the payload block by block, so that a strided vector is never copied whole."""
    for start in range(0, values.size, BLOCK):
        yield encode(values[start : start + BLOCK])


def decode(payload: Buffer, count: int) -> npt.NDArray[np.float32]:
    """Return the `count` values of a payload, as a view of it."""
    payload = memoryview(payload).cast("B")
    check_length(encoded_bytes(count), len(payload))
    return np.frombuffer(payload, dtype="<f4").astype(np.float32, copy=False)


class ValuesOnly(Encoding):
    """The kept values only: the smallest encoding, for a receiver that holds the mask."""

    name = "values_only"
    needs_mask = True

    def encoded_bytes(self, size: int, num_kept: int) -> int:
        check_counts(size, num_kept)
        return encoded_bytes(num_kept)

    def parts(self, vector: SparseVector) -> Iterator[memoryview]:
        return encode_parts(vector.values)

    def unpack(
        self, payload: memoryview, size: int, num_kept: int, bits: bytes | None, /
    ) -> SparseVector:
        if bits is None:
            raise MaskError("values alone cannot be placed: the mask is needed")
        return SparseVector(size, bits, decode(payload, num_kept))


VALUES_ONLY = ValuesOnly()
