"""The size of one update in many encodings, and entropy bounds for ours (reference.py)."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard
from benchmarks.fashion import Vector

from ssfl.codec import bfloat16, blocks, grid, int8, reference

PCODEC = "pcodec against the base"
RECIPE = "entropy of the recipe's byte planes"
OURS = "reference"


def compare(values: Vector, base: Vector) -> dict[str, float]:
    """Return the bytes of the values in each code; pcodec only if it is installed."""
    difference = zigzagged_difference(values, base)
    sizes: dict[str, float] = {
        "zstd -3 of the values": len(zstandard.compress(values.tobytes(), 3)),
        "byte planes, no reference": len(blocks.encode(reference.CODE, values, None)),
        OURS: len(blocks.encode(reference.CODE, values, base)),
        RECIPE: _plane_entropy(difference) / 8,
        "entropy given the base's exponent": _entropy_by_exponent(difference, base) / 8,
        "bfloat16": len(blocks.encode(bfloat16.CODE, values, base)),
        "int8": len(blocks.encode(int8.CODE, values, base)),
        "grid 2^-16": len(blocks.encode(grid.Grid(16), values, base)),
        "grid 2^-14": len(blocks.encode(grid.Grid(14), values, base)),
    }
    compress = pcodec()
    if compress:
        sizes["pcodec of the values"] = len(compress(values))
        sizes[PCODEC] = len(compress(difference))
    return sizes


def pcodec() -> Callable[[npt.NDArray[Any]], bytes] | None:
    """Return pcodec's compression, or None if it is not installed."""
    try:
        standalone: Any = importlib.import_module("pcodec.standalone")
        config: Any = importlib.import_module("pcodec").ChunkConfig()
    except ImportError:
        return None
    return lambda numbers: bytes(standalone.simple_compress(numbers, config))


def zigzagged_difference(values: Vector, base: Vector) -> npt.NDArray[np.uint32]:
    """Return the numbers that reference.py codes: distances in float32 steps, sign in bit 0."""
    return reference.zigzag((_steps(values) - _steps(base)).astype(np.int32))


def _steps(values: Vector) -> npt.NDArray[np.int64]:
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)


def _plane_entropy(numbers: npt.NDArray[np.uint32]) -> float:
    """Return the bits of an ideal coder of each byte plane, without its tables."""
    planes = numbers.view(np.uint8).reshape(-1, 4)
    return sum(_bits(planes[:, place]) for place in range(4))


def _entropy_by_exponent(numbers: npt.NDArray[np.uint32], base: Vector) -> float:
    """Return the bits of an ideal coder of bit lengths, conditioned on the base's exponent."""
    lengths = np.floor(np.log2(numbers.astype(np.float64) + 1)).astype(np.int64)
    exponents = base.view(np.uint32) >> np.uint32(23) & np.uint32(0xFF)
    coded = sum(_bits(lengths[exponents == exponent]) for exponent in np.unique(exponents))
    return coded + float(lengths.sum())  # the bits below the leading one are random


def _bits(symbols: npt.NDArray[Any]) -> float:
    _, counts = np.unique(symbols, return_counts=True)
    return float(-(counts * np.log2(counts / counts.sum())).sum())
