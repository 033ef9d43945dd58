"""Lossless value code: float32 relative to values that both ends hold.

1. Map the bits to signed integers in the order of the floats, so that close values become close
   integers, also across zero and powers of two.
2. Subtract the mapped reference, modulo 2^32.
3. Zigzag: 0, -1, 1, -2 … become 0, 1, 2, 3 …, so that small differences have zero high bytes.
4. Write byte planes, each entropy-coded where that is smaller (planes.py).

With a reference of zeros, step 3 moves the sign to the lowest bit and leaves the exponent as the
highest plane.
"""

import numpy as np
import numpy.typing as npt

from ssfl.codec import planes
from ssfl.codec.blocks import Floats, Words
from ssfl.codec.sections import SectionReader

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN = np.int32(31)
_ONE = np.int32(1)


class Reference:
    """The lossless value code."""

    name = "reference"
    lossless = True

    def block_bound(self, count: int) -> int:
        return planes.bound(count, 4)

    def encode_block(
        self, values: Floats, reference: Floats, _words: Words | None, out: memoryview
    ) -> int:
        ordered = _ordered(values)
        ordered -= _ordered(reference)  # modulo 2^32, as numpy's integers are
        return planes.write(zigzag(ordered), out)

    def decode_block(self, reader: SectionReader, reference: Floats) -> Floats:
        codes = planes.read(reader, reference.size, np.uint32)
        ordered = unzigzag(codes)
        ordered += _ordered(reference)
        return _bits_in_order(ordered).view(np.float32)


CODE = Reference()


def zigzag(integers: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32]:
    """Return 0, 1, 2, 3 … for 0, -1, 1, -2 …; modifies its argument."""
    signs = integers >> _SIGN
    integers <<= _ONE
    integers ^= signs
    return integers.view(np.uint32)


def unzigzag(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Return the integers of zigzag codes; modifies its argument."""
    signs = codes.view(np.int32) & _ONE
    np.negative(signs, out=signs)
    codes >>= np.uint32(1)
    integers = codes.view(np.int32)
    integers ^= signs
    return integers


def _ordered(values: Floats) -> npt.NDArray[np.int32]:
    """Return integers in the order of the values."""
    return _bits_in_order(np.ascontiguousarray(values, dtype="<f4").view(np.int32))


def _bits_in_order(bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Invert the magnitude bits of negative numbers; this map is its own inverse."""
    flips = bits >> _SIGN
    flips &= _MAGNITUDE
    flips ^= bits
    return flips
