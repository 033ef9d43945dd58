"""Values-only: float32 in an order both ends know; no index travels.

Contract: `decode(encode(v), v.size)` equals v bit for bit, NaN payloads and -0.0 included;
the size is `encoded_bytes(v.size)` before anything is encoded. The same layout, over every
coordinate instead of the kept ones, is the dense encoding.
"""

import numpy as np
import numpy.typing as npt

from ssfl.codec.errors import TrailingBytes, TruncatedPayload

BYTES_PER_VALUE = 4


def encoded_bytes(count: int) -> int:
    """Return the payload size of `count` values."""
    return BYTES_PER_VALUE * count


def encode(values: npt.NDArray[np.float32]) -> memoryview:
    """Return the payload, without a copy where the machine is little-endian."""
    return np.ascontiguousarray(values, dtype="<f4").data.cast("B")


def decode(payload: bytes | bytearray | memoryview, count: int) -> npt.NDArray[np.float32]:
    """Return the `count` values of a payload, as a view on it."""
    expected, actual = encoded_bytes(count), len(payload)
    if actual < expected:
        raise TruncatedPayload(expected, actual)
    if actual > expected:
        raise TrailingBytes(expected, actual)
    return np.frombuffer(payload, dtype="<f4").astype(np.float32, copy=False)
