"""The value type of a run: values are sent exactly, or through a lossy code.

A lossy run is lossy in both directions, and all ends hold the same bits. A client's update is its
base plus a coded change. The coordinator commits its base plus the coded change to the mean, and
sends that change. Rounding draws from its own streams, so the same seed gives the same bits.

With `downloads` = `values` the coordinator codes the values instead of the change. It commits the
coded values, and adds their rounding error, the residual, to the values of the next round. Every
client can read them, whatever it holds.
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

    The next values are the mean, without a change, if there is no lossy code, if it cannot hold
    the change, such as a large change on a fine grid, or if the values are coded instead.
    """
    code = lossy_code(settings)
    if code is None or settings.downloads == "values":
        return mean, None
    words = rounding_words(settings, mean.size, "broadcast", base_digest.hex())
    try:
        change = blocks.encode(code, mean, base, words)
    except UnfitValues:
        return mean, None
    return blocks.decode(code, change, mean.size, base), change


def commit_values(
    settings: RunSettings, values: Vector, residual: Vector | None
) -> tuple[Vector, memoryview | None, Vector | None]:
    """Return the next values, their payload, and the residual, for `downloads` = `values`.

    The next values are exact, without payload and residual, if the code cannot hold them. They are
    rounded to nearest: the residual makes up for it in later rounds.
    """
    code = lossy_code(settings)
    assert code is not None
    target = values if residual is None else values + residual
    try:
        payload = blocks.encode(code, target, None)
    except UnfitValues:
        return target, None, None
    sent = blocks.decode(code, payload, target.size, None)
    return sent, payload, target - sent
