"""Clip the L2 norm of an update.

The norm of (value - base) covers all values of the update, in doubles: squares are summed block
by block, and the blocks' sums are added exactly. A larger change is scaled down to the limit:

    value' = float32(base + (value - base) * (limit / norm))

The same values, base and limit give the same bits in the coordinator and in the simulator.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

BLOCK = 1 << 16  # values; the bits of the norm depend on it

Vector = npt.NDArray[np.float32]
Blocks = Iterable[tuple[int, Vector]]  # (start, BLOCK values); the last block may be shorter


def in_blocks(values: Vector) -> Iterator[tuple[int, Vector]]:
    """Yield the blocks of a vector."""
    for start in range(0, values.size, BLOCK):
        yield start, values[start : start + BLOCK]


def change_norm(blocks: Blocks, base: Vector) -> float:
    """Return the L2 norm of an update's change of its base."""
    return math.sqrt(
        math.fsum(
            float(np.square(values.astype(np.float64) - base[start : start + values.size]).sum())
            for start, values in blocks
        )
    )


def scale_change(blocks: Blocks, base: Vector, scale: float) -> Iterator[tuple[int, Vector]]:
    """Yield the update with its change of the base multiplied by `scale`."""
    for start, values in blocks:
        origin = base[start : start + values.size].astype(np.float64)
        yield start, (origin + (values - origin) * scale).astype(np.float32)


def clip(values: Vector, base: Vector, limit: float) -> tuple[Vector, float | None]:
    """Return the update clipped to `limit`, and its original norm if that was larger.

    A limit of 0 means no limit.
    """
    if not limit:
        return values, None
    norm = change_norm(in_blocks(values), base)
    if norm <= limit:
        return values, None
    parts = [part for _, part in scale_change(in_blocks(values), base, limit / norm)]
    return np.concatenate(parts), norm
