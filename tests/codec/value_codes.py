"""Checks that every value code must pass; see ssfl.codec.blocks.

A new code is checked by adding it to CODES.
"""

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ssfl.codec import bfloat16, blocks, int8, reference
from ssfl.codec.blocks import BLOCK, Floats, ValueCode, Words
from ssfl.codec.grid import Grid

CODES: dict[str, ValueCode] = {
    "reference": reference.CODE,
    "bfloat16": bfloat16.CODE,
    "int8": int8.CODE,
    "grid 1": Grid(1),
    "grid 16": Grid(),
    "grid 40": Grid(40),
}
LOSSY = {name: code for name, code in CODES.items() if not code.lossless}
BLOCK_EDGES = (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1)
# Quiet and signalling NaN with payloads, both zeros, both infinities, subnormals, the largest.
SPECIAL = (
    *(0x7FC01234, 0x7F801234, 0xFFC00001, 0, 0x80000000, 0x7F800000, 0xFF800000),
    *(1, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7FFFFFFF, 0xFFFFFFFF),
)
WORD = st.one_of(st.sampled_from(SPECIAL), st.integers(0, 2**32 - 1))


def patterns(size: int | st.SearchStrategy[int]) -> st.SearchStrategy[Floats]:
    """Draw any bits, as float32."""
    return hnp.arrays(np.uint32, size, elements=WORD).map(lambda words: words.view(np.float32))


def numbers(size: int | st.SearchStrategy[int], largest: float) -> st.SearchStrategy[Floats]:
    """Draw finite float32 up to `largest`, a power of two, including subnormal numbers."""
    element = st.floats(-largest, largest, width=32, allow_subnormal=True)
    return hnp.arrays(np.float32, size, elements=element)


def words(size: int) -> st.SearchStrategy[Words]:
    """Draw random words for stochastic rounding, including both extremes."""
    word = st.one_of(st.sampled_from((0, 1, 2**31, 2**32 - 1)), st.integers(0, 2**32 - 1))
    return hnp.arrays(np.uint32, size, elements=word)


def random_words(size: int, seed: int = 0) -> Words:
    return np.random.default_rng(seed).integers(0, 2**32, size, dtype=np.uint32)


def random_changes(code: ValueCode, size: int, seed: int = 0) -> Floats:
    """Return numbers that `code` can hold and that hardly compress."""
    if code.lossless:
        return random_words(size, seed).view(np.float32)
    rng = np.random.default_rng(seed)
    if isinstance(code, Grid):
        whole = rng.integers(-(2**31) + 256, 2**31 - 256, size).astype(np.float32)
        return whole * np.float32(2.0**-code.bits)
    finite = rng.integers(0, 0x7E000000, size, dtype=np.uint32)
    return (finite | rng.integers(0, 2, size, dtype=np.uint32) << np.uint32(31)).view(np.float32)


def bits(values: npt.NDArray[np.float32]) -> bytes:
    """Return the bytes of a vector, equal if and only if all bits are equal."""
    return values.astype("<f4", copy=False).tobytes()


def round_trip(
    code: ValueCode, values: Floats, against: Floats | None, noise: Words | None = None
) -> Floats:
    """Return the decoded values; check the contract of every payload."""
    payload = blocks.encode(code, values, against, noise)
    assert len(payload) <= blocks.max_encoded_bytes(code, values.size)
    assert payload == blocks.encode(code, values, against, noise), "not deterministic"
    received = blocks.decode(code, payload, values.size, against)
    for form in (bytes(payload), bytearray(payload)):
        assert bits(blocks.decode(code, form, values.size, against)) == bits(received)
    assert (received.dtype.str, received.shape) == ("<f4", values.shape)
    return received


def rounding_slack(values: Floats, against: Floats, received: Floats) -> npt.NDArray[np.float64]:
    """Return the rounding error of float32 itself: of the change, its multiple, and the sum.

    Each is half a unit in the last place, 2^-24 of the number. Subnormal numbers add 127 steps of
    an int8 group whose step is the smallest subnormal, 2^-149.
    """
    changes = np.abs(values.astype(np.float64) - against)
    return 2.0**-24 * (3 * changes + np.abs(received.astype(np.float64))) + 127 * 2.0**-149
