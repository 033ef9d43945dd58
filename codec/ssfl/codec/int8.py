"""Lossy value code: changes from the reference in 8 bits, with a step size per 256 values.

    block   steps, float32 each, one per 256 values | plane of codes, one byte each

A step is the group's largest |change| / 127. The receiver computes reference + code * step in
float32. Codes are zigzagged (0, -1, 1, -2 … as 0, 1, 2, 3 …).
"""

import numpy as np

from ssfl.codec import planes
from ssfl.codec.blocks import Floats, Words, change, rounded
from ssfl.codec.errors import MalformedPayload, UnfitValues
from ssfl.codec.sections import SectionReader

GROUP = 256  # values that share a step
_LARGEST = 127


class Int8:
    """Changes in 255 steps."""

    name = "int8"
    lossless = False

    def block_bound(self, count: int) -> int:
        return 4 * _groups(count) + planes.bound(count, 1)

    def encode_block(
        self, values: Floats, reference: Floats, words: Words | None, out: memoryview
    ) -> int:
        changes = change(values, reference)
        starts = np.arange(0, changes.size, GROUP)
        largest = np.maximum.reduceat(np.abs(changes), starts)
        steps = (largest / np.float32(_LARGEST)).astype("<f4")
        with np.errstate(over="ignore"):  # near the largest float, a step may round up
            if not np.isfinite(steps * np.float32(_LARGEST)).all():
                raise UnfitValues("a change is too large for int8")
        out[: steps.nbytes] = steps.data.cast("B")
        divisors = np.where(steps > 0, steps, 1).astype(np.float64)
        numbers = changes / np.repeat(divisors, GROUP)[: changes.size]
        codes = np.clip(rounded(numbers, words), -_LARGEST, _LARGEST).astype(np.int16)
        zigzagged = ((codes << 1) ^ (codes >> 15)).astype(np.uint8)
        return steps.nbytes + planes.write(zigzagged, out[steps.nbytes :])

    def decode_block(self, reader: SectionReader, reference: Floats) -> Floats:
        steps = np.frombuffer(reader.read_raw(4 * _groups(reference.size)), dtype="<f4")
        zigzagged = planes.read(reader, reference.size, np.uint8)
        codes = zigzagged.astype(np.int16)
        codes = (codes >> 1) ^ -(codes & 1)
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            changes = codes.astype(np.float32) * np.repeat(steps, GROUP)[: codes.size]
            values: Floats = reference + changes
        if not (np.isfinite(changes).all() and np.isfinite(steps).all()):
            raise MalformedPayload("a change or a step that is not finite")
        return values


CODE = Int8()


def _groups(count: int) -> int:
    return -(-count // GROUP)
