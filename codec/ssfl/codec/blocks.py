"""Values coded against a reference, block by block.

A *value code* encodes up to BLOCK values relative to the reference values at the same places.
Blocks are independent, so that a payload of any size can be written (`encode_block`) and read
(`decode_blocks`) in small buffers.

    payload   block 0 | block 1 | …      BLOCK values each; the last block may be shorter

Contract of every value code (`ValueCode`):
- `block_bound(count)` is known before encoding, and no block is larger.
- A `lossless` code restores every bit pattern, including NaN payloads and -0.0.
- A lossy code refuses NaN and infinity. It rounds to nearest or, given random words,
  stochastically: the probability of rounding up makes the expectation exact.
- Any bytes decode or raise a CodecError. Allocation never depends on a length the sender claims.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ssfl.codec.errors import CodecError, TrailingBytes, UnfitValues
from ssfl.codec.sections import Buffer, SectionReader, check_can_hold

BLOCK = 1 << 16  # values: 256 KiB, so that scratch memory fits in a core's cache
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]
Doubles = npt.NDArray[np.float64]


class ValueCode(Protocol):
    """One way to code values against a reference."""

    @property
    def name(self) -> str: ...
    @property
    def lossless(self) -> bool: ...

    def block_bound(self, count: int) -> int:
        """Return the largest possible size of a block of `count` values, in bytes."""
        ...

    def encode_block(
        self, values: Floats, reference: Floats, words: Words | None, out: memoryview
    ) -> int:
        """Write a block into the caller's buffer; return the number of bytes written."""
        ...

    def decode_block(self, reader: SectionReader, reference: Floats) -> Floats:
        """Return the values of the next block; it has as many as the reference."""
        ...


def max_encoded_bytes(code: ValueCode, count: int) -> int:
    """Return the largest possible payload of `count` values, in bytes."""
    whole, rest = divmod(count, BLOCK)
    return whole * code.block_bound(BLOCK) + (code.block_bound(rest) if rest else 0)


def encode_into(
    code: ValueCode,
    values: Floats,
    reference: Floats | None,
    out: memoryview,
    words: Words | None = None,
) -> int:
    """Write the payload into the caller's buffer of `max_encoded_bytes`; return its length.

    A `reference` of None means zeros, which every receiver has. `words`, one random word per
    value, make a lossy code round stochastically.
    """
    _check(values, words)
    at = 0
    for part, against in _blocks(values.size, reference):
        noise = None if words is None else words[part]
        at += code.encode_block(values[part], against, noise, out[at:])
    return at


def encode(
    code: ValueCode, values: Floats, reference: Floats | None, words: Words | None = None
) -> memoryview:
    """Return the payload."""
    _check(values, words)
    payload = bytearray(max_encoded_bytes(code, values.size))
    with memoryview(payload) as out:
        used = encode_into(code, values, reference, out, words)
    del payload[used:]
    return memoryview(payload)


def decode_blocks(
    code: ValueCode, payload: Buffer, count: int, reference: Floats | None
) -> Iterator[tuple[int, Floats]]:
    """Yield (start, values) for every block of a payload that must hold `count` values."""
    reader = SectionReader(payload)
    for part, against in _blocks(count, reference):
        yield part.start, code.decode_block(reader, against)
    if reader.left:
        raise TrailingBytes(reader.at, reader.at + reader.left)


def decode(code: ValueCode, payload: Buffer, count: int, reference: Floats | None) -> Floats:
    """Return the `count` values of a payload."""
    check_can_hold(len(payload), count)  # a value has at least one byte before compression
    values = np.empty(count, dtype=np.float32)
    for start, block in decode_blocks(code, payload, count, reference):
        values[start : start + block.size] = block
    return values


def relative_error(values: Floats, sent: Floats, reference: Floats) -> float:
    """Return the coding error relative to the change: |sent - values| / |values - reference|."""
    lost = float(np.linalg.norm(sent.astype(np.float64) - values))
    change = float(np.linalg.norm(values.astype(np.float64) - reference))
    return lost / change if lost else 0.0


def check_row(what: str, array: npt.NDArray[np.generic], dtype: type[np.generic]) -> None:
    """Raise TypeError unless an array is one row of `dtype`; nothing is converted silently."""
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != dtype:
        got = getattr(array, "dtype", type(array).__name__), getattr(array, "shape", "")
        raise TypeError(f"{what} must be one row of {dtype.__name__}, got {got[0]} {got[1]}")


def change(values: Floats, reference: Floats) -> Floats:
    """Return values - reference as float32; raise UnfitValues unless it is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = values - reference
    if not np.isfinite(difference).all():
        raise UnfitValues("a lossy code holds finite changes only: there is a NaN or an infinity")
    return difference


def rounded(numbers: Doubles, words: Words | None) -> Doubles:
    """Round in place to nearest (ties to even), or stochastically if random words are given."""
    if words is None:
        return np.rint(numbers, out=numbers)
    numbers += words * 2.0**-32  # in [0, 1)
    return np.floor(numbers, out=numbers)


def _check(values: Floats, words: Words | None) -> None:
    check_row("values", values, np.float32)
    if words is not None:
        check_row("random words", words, np.uint32)
        if words.size != values.size:
            raise CodecError(f"{words.size} random words for {values.size} values")


def _blocks(count: int, reference: Floats | None) -> Iterator[tuple[slice, Floats]]:
    """Yield the places of every block and the reference values at these places."""
    if reference is not None:
        check_row("the reference", reference, np.float32)
        if reference.size != count:
            raise CodecError(f"a reference of {reference.size} values for {count}")
    zeros = np.zeros(min(count, BLOCK) if reference is None else 0, dtype=np.float32)
    for start in range(0, count, BLOCK):
        part = slice(start, min(start + BLOCK, count))
        yield part, zeros[: part.stop - start] if reference is None else reference[part]
