"""Fuzz targets: one function per decoder of bytes from the network, for any input.

The first bytes of the input give the decoder's parameters (counts, shapes, whether there is a
reference), the rest is the payload. Only the decoder's typed errors are caught; any other error is
a bug. A decoded value is encoded and decoded again, and must be the same. The result is True if the
payload was decoded.

run_target.py runs them on coverage-guided inputs, test_fuzz.py on those of corpus/.
"""

import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.codec import bfloat16, blocks, int8, masks, planes, reference, scores, sorted_bits
from ssfl.codec.bitmask import BITMASK
from ssfl.codec.blocks import Floats, ValueCode
from ssfl.codec.chunks import Receiver
from ssfl.codec.contract import Encoding
from ssfl.codec.coo import COO
from ssfl.codec.dense import DENSE
from ssfl.codec.errors import CodecError, UnfitValues
from ssfl.codec.grid import Grid
from ssfl.codec.sections import SectionReader
from ssfl.codec.values_only import VALUES_ONLY
from ssfl.method.errors import ManifestError
from ssfl.method.manifest import Manifest

MAX_COORDINATES = 1 << 17  # two blocks of values: enough for every loop, and fast
ANY_BITS = np.random.default_rng(0).integers(0, 2**32, MAX_COORDINATES, dtype=np.uint32)

Target = Callable[[bytes], bool]


class Input:
    """The input of a target: parameters, then the payload."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, num_bytes: int = 1) -> int:
        """Return the next bytes as a number; zeros follow the end."""
        taken = self._data[self._at : self._at + num_bytes]
        self._at += num_bytes
        return int.from_bytes(taken, "little")

    def count(self) -> int:
        """Return a number up to 65535, doubled if the next bit is set."""
        return self.number(2) << (self.number() & 1)

    def rest(self) -> bytes:
        return self._data[self._at :]


def any_floats(count: int) -> Floats:
    """Return fixed values that both ends hold, including NaN and subnormal numbers."""
    return ANY_BITS[:count].view(np.float32)


def any_shapes(start: Input) -> Iterator[sorted_bits.Shape]:
    """Yield shapes of 0 to 3 tensors of 0 to 5 dimensions that are not too large."""
    left = MAX_COORDINATES
    for _ in range(start.number() & 3):
        shape = tuple(start.number() for _ in range(start.number() % 6))
        if math.prod(shape) <= left:
            left -= math.prod(shape)
            yield shape


def fuzz_sections(data: bytes) -> bool:
    start = Input(data)
    size, again = start.count(), start.number() & 3
    reader = SectionReader(start.rest())
    try:
        for _ in range(1 + again):
            assert reader.read(size).shape == (size,)
    except CodecError:
        return False
    assert reader.left >= 0
    return True


def fuzz_planes(data: bytes) -> bool:
    start = Input(data)
    count = start.count()
    dtype: Any = (np.uint8, np.uint16, np.uint32)[start.number() % 3]
    try:
        integers = planes.read(SectionReader(start.rest()), count, dtype)
    except CodecError:
        return False
    assert (integers.shape, integers.itemsize) == ((count,), np.dtype(dtype).itemsize)
    return True


def _fuzz_value_code(code: ValueCode, data: bytes) -> bool:
    start = Input(data)
    count, flags = start.count(), start.number()
    against = any_floats(count) if flags & 1 else None
    try:
        values = blocks.decode(code, start.rest(), count, against)
    except CodecError:
        return False
    assert values.shape == (count,)
    words = ANY_BITS[:count] if flags & 2 else None
    try:
        payload = blocks.encode(code, values, against, words)
    except UnfitValues:
        assert not code.lossless
        return True
    assert len(payload) <= blocks.max_encoded_bytes(code, count)
    again = blocks.decode(code, payload, count, against)
    assert not code.lossless or again.tobytes() == values.tobytes()
    return True


def fuzz_reference(data: bytes) -> bool:
    return _fuzz_value_code(reference.CODE, data)


def fuzz_bfloat16(data: bytes) -> bool:
    return _fuzz_value_code(bfloat16.CODE, data)


def fuzz_int8(data: bytes) -> bool:
    return _fuzz_value_code(int8.CODE, data)


def fuzz_grid(data: bytes) -> bool:
    return _fuzz_value_code(Grid(), data)


def fuzz_scores(data: bytes) -> bool:
    start = Input(data)
    count, payload = start.count(), start.rest()
    try:
        values = scores.decode(payload, count)
    except CodecError:
        return False
    assert values.shape == (count,) and np.isfinite(values).all() and (values >= 0).all()
    # All lie on the grid of their own code, so that truncation changes nothing.
    zeros = np.zeros(count, dtype=np.uint32)
    again = scores.decode(scores.encode(values, count, zeros, payload[0]), count)
    assert again.tobytes() == values.tobytes()
    return True


def fuzz_masks(data: bytes) -> bool:
    start = Input(data)
    size = start.number(3)
    try:
        bits = masks.decompress(start.rest(), size)
    except CodecError:
        return False
    assert masks.checked(bits, size) == bits
    frame = masks.compress(bits)
    assert frame is None or masks.decompress(frame, size) == bits
    return True


def fuzz_packed_bits(data: bytes) -> bool:
    start = Input(data)
    size, other = start.number(), ANY_BITS[: start.number() & 15].tobytes()
    bits = start.rest()
    try:
        assert masks.checked(bits, size) == bits
        between = masks.difference(bits, other)
    except CodecError:
        return False
    assert masks.difference(between, other) == bits
    return True


def fuzz_sorted_bits(data: bytes) -> bool:
    start = Input(data)
    shapes = [*any_shapes(start)]
    size = sum(math.prod(shape) for shape in shapes)
    weights = any_floats(size) if start.number() & 1 else None
    try:
        bits = sorted_bits.decode(start.rest(), shapes, weights)
    except CodecError:
        return False
    assert masks.checked(bits, size) == bits
    payload = sorted_bits.encode(bits, shapes, weights)
    assert len(payload) <= sorted_bits.max_encoded_bytes(shapes)
    assert sorted_bits.decode(payload, shapes, weights) == bits
    return True


def _fuzz_encoding(encoding: Encoding, data: bytes) -> bool:
    start = Input(data)
    size, flags, num_kept = start.count(), start.number(), start.number(3)
    bits = None
    if flags & 1:
        kept: npt.NDArray[np.bool_] = ANY_BITS[:size] < np.uint32((flags >> 1) << 25)
        bits = np.packbits(kept, bitorder="little").tobytes()
        num_kept = int(np.count_nonzero(kept)) + (num_kept & 1)
    payload = start.rest()
    try:
        vector = encoding.decode(payload, size, num_kept, bits)
    except CodecError:
        return False
    assert vector.size == size and (bits is None or vector.bits == bits)
    # One payload per vector; otherwise the same update could have two digests.
    assert encoding.encode(vector) == payload
    return True


def fuzz_dense(data: bytes) -> bool:
    return _fuzz_encoding(DENSE, data)


def fuzz_values_only(data: bytes) -> bool:
    return _fuzz_encoding(VALUES_ONLY, data)


def fuzz_coo(data: bytes) -> bool:
    return _fuzz_encoding(COO, data)


def fuzz_bitmask(data: bytes) -> bool:
    return _fuzz_encoding(BITMASK, data)


def fuzz_chunks(data: bytes) -> bool:
    """Check chunks of any offset, length and checksum: only the next part is accepted."""
    start = Input(data)
    receiver = Receiver(start.number(3), start.number())
    while rest := start.rest():
        flags, length = start.number(), start.number()
        offset = receiver.offset if flags & 1 else start.number(8)
        chunk = start.rest()[:length] * (8192 if flags & 4 else 1)  # above 128: too large
        start.number(length)
        crc32 = zlib.crc32(chunk) if flags & 2 else start.number(4)
        before = receiver.offset
        try:
            receiver.check(offset, chunk, crc32)
        except CodecError:
            assert receiver.offset == before
        else:
            assert (offset, zlib.crc32(chunk)) == (before, crc32) and chunk
            assert receiver.offset == before + len(chunk) <= receiver.num_bytes
        assert len(start.rest()) < len(rest)
    return receiver.complete


def fuzz_manifest(data: bytes) -> bool:
    try:
        manifest = Manifest.from_json(data)
    except ManifestError:
        return False
    assert manifest.json == data
    assert manifest.first_difference(Manifest.from_json(data)) == ""
    assert manifest.num_masked + manifest.num_unmasked == manifest.size
    assert sum(place.stop - place.start for place in manifest.slices.values()) == manifest.size
    return True


TARGETS: dict[str, Target] = {
    name.removeprefix("fuzz_"): function
    for name, function in globals().copy().items()
    if name.startswith("fuzz_")
}
