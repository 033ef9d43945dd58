"""Lossy value code: changes from the reference as whole multiples of 2^-g.

The absolute error is at most half a step (nearest) or less than a step (stochastic), so small
changes cost few bits and large changes are kept. The receiver computes reference + code * 2^-g in
float32. Layout: g as one byte, then the byte planes of the zigzagged codes.
"""

from dataclasses import dataclass

import numpy as np

from ssfl.codec import planes
from ssfl.codec.blocks import Floats, Words, change, rounded
from ssfl.codec.errors import MalformedPayload, UnfitValues
from ssfl.codec.reference import unzigzag, zigzag
from ssfl.codec.sections import SectionReader

MIN_BITS, MAX_BITS = 1, 40
DEFAULT_BITS = 16


@dataclass(frozen=True)
class Grid:
    """Changes as multiples of 2^-bits."""

    bits: int = DEFAULT_BITS
    name: str = "grid"
    lossless: bool = False

    def __post_init__(self) -> None:
        if not MIN_BITS <= self.bits <= MAX_BITS:
            raise UnfitValues(f"a grid has {MIN_BITS} to {MAX_BITS} bits, not {self.bits}")

    def block_bound(self, count: int) -> int:
        return 1 + planes.bound(count, 4)

    def encode_block(
        self, values: Floats, reference: Floats, words: Words | None, out: memoryview
    ) -> int:
        numbers = change(values, reference).astype(np.float64) * 2.0**self.bits
        numbers = rounded(numbers, words)
        if np.abs(numbers).max(initial=0.0) >= 2.0**31:
            raise UnfitValues(f"a change is too large for the grid 2^-{self.bits}")
        out[0] = self.bits
        return 1 + planes.write(zigzag(numbers.astype(np.int32)), out[1:])

    def decode_block(self, reader: SectionReader, reference: Floats) -> Floats:
        (bits,) = reader.read_raw(1)
        if not MIN_BITS <= bits <= MAX_BITS:
            raise MalformedPayload(f"a grid of {bits} bits; {MIN_BITS} to {MAX_BITS} are possible")
        codes = planes.read(reader, reference.size, np.uint32)
        changes = unzigzag(codes).astype(np.float64) * 2.0**-bits
        with np.errstate(over="ignore", invalid="ignore"):
            return reference + changes.astype(np.float32)
