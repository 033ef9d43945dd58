"""How far may one update move the model? Its change of the base, measured and scaled down.

The norm is the L2 norm of (value - base) over all values that travel, in doubles: squares are
summed block by block, and the blocks' sums are added without rounding in between. What is too
long is shortened to the limit, in its own direction:

    value' = float32(base + (value - base) * (limit / norm))

Whoever has the same values, base and limit gets the same bits: the coordinator before it keeps
an upload, and the simulator.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

BLOCK = 1 << 16  # values; part of what decides the bits of the norm

Vector = npt.NDArray[np.float32]
Blocks = Iterable[tuple[int, Vector]]  # where each begins, and its BLOCK values (the last: fewer)


def in_blocks(values: Vector) -> Iterator[tuple[int, Vector]]:
    """Yield a vector in blocks."""
    for start in range(0, values.size, BLOCK):
        yield start, values[start : start + BLOCK]


def change_norm(blocks: Blocks, base: Vector) -> float:
    """Return the L2 norm of what an update changes of its base."""
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
    """Return an update that is at most `limit` long, and how long it was if it was longer.

    A limit of 0 is none.
    """
    if not limit:
        return values, None
    norm = change_norm(in_blocks(values), base)
    if norm <= limit:
        return values, None
    parts = [part for _, part in scale_change(in_blocks(values), base, limit / norm)]
    return np.concatenate(parts), norm
