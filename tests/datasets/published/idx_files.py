"""Generate IDX files for tests in the format of the published files."""

import struct
from typing import Any

import numpy as np

from ssfl.datasets.published.idx import FILES
from ssfl.method.streams import Stream

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def idx(array: Bytes) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def images(count: int) -> Bytes:
    pixels = Stream(count, "images").uniform(count * 28 * 28) * 256
    return pixels.astype(np.uint8).reshape(count, 28, 28)


def labels(count: int) -> Bytes:
    return (np.arange(count) * 3 % 10).astype(np.uint8)


def contents() -> dict[str, bytes]:
    parts = (images(7), labels(7), images(3), labels(3))
    return {file: idx(part) for file, part in zip(FILES, parts, strict=True)}
