"""How values travel, as the run's settings ask: as they are, or through a lossy code.

A lossy run is lossy in both directions, and every end holds the same bits: a client's update is
its base plus a coded change, and the coordinator commits its base plus the coded change to the
mean, so what it sends is that change. Rounding draws from streams of its own, so that the same
seed gives the same bits.
"""

import numpy as np
import numpy.typing as npt

from ssfl.codec import bfloat16, blocks, grid, int8
from ssfl.codec.blocks import ValueCode
from ssfl.codec.errors import UnfitValues
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

Vector = npt.NDArray[np.float32]


def lossy_code(settings: RunSettings) -> ValueCode | None:
    """Return the code of a lossy run; None if values travel as they are."""
    codes: dict[str, ValueCode] = {
        "bfloat16": bfloat16.CODE,
        "int8": int8.CODE,
        "grid": grid.Grid(settings.grid_bits),
    }
    return codes.get(settings.value_type)


def rounding_words(
    settings: RunSettings, count: int, *name: int | str
) -> npt.NDArray[np.uint32] | None:
    """Return a random word per value for stochastic rounding; None to round to nearest."""
    if settings.rounding != "stochastic":
        return None
    return random_words(settings.seed, count, "rounding", *name)


def random_words(seed: int, count: int, purpose: str, *name: int | str) -> npt.NDArray[np.uint32]:
    """Return `count` random 32-bit words of a named stream."""
    words = Stream(seed, purpose, *name).words((count + 1) // 2)
    return words.astype("<u8").view(np.uint32)[:count]


def commit_change(
    settings: RunSettings, base: Vector, mean: Vector, base_digest: bytes
) -> tuple[Vector, memoryview | None]:
    """Return the next values, and the coded change that leads from the base to them.

    Without a lossy code the next values are the mean, and there is no change to send; nor is there
    for a change that the code cannot hold, such as a large one on a fine grid.
    """
    code = lossy_code(settings)
    if code is None:
        return mean, None
    words = rounding_words(settings, mean.size, "broadcast", base_digest.hex())
    try:
        change = blocks.encode(code, mean, base, words)
    except UnfitValues:
        return mean, None
    return blocks.decode(code, change, mean.size, base), change
