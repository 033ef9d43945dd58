"""Scores in a compact logarithmic code: large scores get a code, small ones become zero.

A score is a non-negative float32. Its bits, truncated after m mantissa bits, are its logarithm in
steps of about 2^-m octaves:

    code 0        the score is dropped (0.0)
    code c >= 1   the float32 with the bits (lowest + c - 1) << (23 - m)

Truncation is stochastic: random bits are added first, so that the expected decoded value is the
score itself and the errors of many clients cancel in the mean. Only about the largest `num_coded`
scores of a client get codes; smaller ones do not decide the mask.

    payload   m u8 | lowest u16 | sections of BLOCK codes each, one byte per code (sections.py)

>>> import numpy as np
>>> scores = np.array([0.5, 0.0, 3.0, 0.001], dtype=np.float32)
>>> payload = encode(scores, num_coded=3, words=np.zeros(4, dtype=np.uint32))
>>> decode(payload, 4).tolist()
[0.5, 0.0, 3.0, 0.0009765625]
"""

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ssfl.codec.blocks import Floats, Words, check_row
from ssfl.codec.errors import CodecError, MalformedPayload, TrailingBytes, UnfitValues
from ssfl.codec.sections import HEADER_BYTES, Buffer, SectionReader, SectionWriter

BLOCK = 1 << 16  # scores
MANTISSA_BITS = 3  # steps of 1/8 octave; see benchmarks/one_off_bytes.py
MAX_MANTISSA_BITS = 7
_HEADER = struct.Struct("<BH")
_MANTISSA = 23
_INFINITY = 0x7F800000
_MAGNITUDE = np.uint32(0x7FFFFFFF)  # clears the sign of -0.0, which is a valid score
_CODES = 255
_SAMPLE = 1 << 20


def max_encoded_bytes(count: int) -> int:
    """Return the largest possible payload of `count` scores, in bytes."""
    return _HEADER.size + count + HEADER_BYTES * -(-count // BLOCK)


def encode(
    scores: Floats, num_coded: int, words: Words, mantissa_bits: int = MANTISSA_BITS
) -> memoryview:
    """Return the payload; `words`, one random word per score, decide the rounding.

    About the largest `num_coded` scores are coded; their threshold is estimated from a sample.
    """
    check_row("scores", scores, np.float32)
    check_row("random words", words, np.uint32)
    if words.size != scores.size:
        raise CodecError(f"{words.size} random words for {scores.size} scores")
    if not 0 <= mantissa_bits <= MAX_MANTISSA_BITS:
        raise UnfitValues(f"0 to {MAX_MANTISSA_BITS} mantissa bits, not {mantissa_bits}")
    largest = abs(float(scores.max(initial=0.0)))
    if not (scores.min(initial=0.0) >= 0 and largest < np.inf):  # also true for NaN
        raise UnfitValues("scores must be finite and not negative")
    shift = np.uint32(_MANTISSA - mantissa_bits)
    lowest = _lowest(scores, num_coded, largest, int(shift))
    out = memoryview(bytearray(max_encoded_bytes(scores.size)))
    _HEADER.pack_into(out, 0, mantissa_bits, lowest)
    at, writer = _HEADER.size, SectionWriter(levels=(1,))
    for start in range(0, scores.size, BLOCK):
        bits = np.ascontiguousarray(scores[start : start + BLOCK], dtype="<f4").view(np.uint32)
        noise = words[start : start + BLOCK] & np.uint32((1 << int(shift)) - 1)
        codes = (((bits & _MAGNITUDE) + noise) >> shift).astype(np.int32) - (lowest - 1)
        at += writer.write(np.clip(codes, 0, _CODES).astype(np.uint8), out[at:])
    return out[:at]


def decode_blocks(payload: Buffer, count: int) -> Iterator[tuple[int, Floats]]:
    """Yield (start, scores) for every block of a payload that must hold `count` scores."""
    reader = SectionReader(payload)
    mantissa_bits, lowest = _HEADER.unpack(reader.read_raw(_HEADER.size))
    if mantissa_bits > MAX_MANTISSA_BITS or lowest == 0:
        raise MalformedPayload("not the header of a score payload")
    values = _table(mantissa_bits, lowest)
    for start in range(0, count, BLOCK):
        codes = reader.read(min(BLOCK, count - start))
        scores = values[codes]
        if not np.isfinite(scores).all():
            raise MalformedPayload("a score code beyond the largest float32")
        yield start, scores
    if reader.left:
        raise TrailingBytes(reader.at, reader.at + reader.left)


def decode(payload: Buffer, count: int) -> Floats:
    """Return the `count` scores of a payload."""
    scores = [block for _, block in decode_blocks(payload, count)]
    return np.concatenate(scores) if scores else np.empty(0, dtype=np.float32)


def _table(mantissa_bits: int, lowest: int) -> Floats:
    """Return the score of every code; infinity for codes beyond the largest float32."""
    steps = np.arange(lowest - 1, lowest + _CODES, dtype=np.uint64)
    bits = steps << np.uint64(_MANTISSA - mantissa_bits)
    bits[bits >= _INFINITY] = _INFINITY
    bits[0] = 0
    table: npt.NDArray[np.float32] = bits.astype(np.uint32).view(np.float32)
    return table


def _lowest(scores: Floats, num_coded: int, largest: float, shift: int) -> int:
    """Return the first step that gets a code; 255 codes must reach the largest score."""
    top = (int(np.float32(largest).view(np.uint32)) + (1 << shift) - 1) >> shift  # rounded up
    if top >= _INFINITY >> shift:
        raise UnfitValues("a score is too close to the largest float32")
    sample = scores[:: max(1, scores.size // _SAMPLE)]
    kept = max(1, round(num_coded / max(1, scores.size) * sample.size))
    if kept < sample.size:
        threshold = np.partition(sample, sample.size - kept)[sample.size - kept]
        first = int(threshold.view(np.uint32) & _MAGNITUDE) >> shift
    else:
        first = 1
    return max(1, first, top - _CODES + 1)
