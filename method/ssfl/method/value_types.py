"""The value type of a run: values are sent exactly, or through a lossy code.

A lossy run is lossy in both directions, and all ends hold the same bits. A client's update is its
base plus a coded change. The coordinator commits its base plus the coded change to the mean, and
sends that change. Rounding draws from its own streams, so the same seed gives the same bits.
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
    """Return the code of a lossy run; None if values are sent exactly."""
    codes: dict[str, ValueCode] = {
        "bfloat16": bfloat16.CODE,
        "int8": int8.CODE,
        "grid": grid.Grid(settings.grid_bits),
    }
    return codes.get(settings.value_type)


def rounding_words(
    settings: RunSettings, count: int, *name: int | str
) -> npt.NDArray[np.uint32] | None:
    """Return a random word per value for stochastic rounding; None for rounding to nearest."""
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
    """Return the next values, and the coded change from the base to them.

    The next values are the mean, without a change, if there is no lossy code or if it cannot hold
    the change, such as a large change on a fine grid.
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
