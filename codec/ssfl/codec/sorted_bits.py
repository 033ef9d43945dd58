"""A mask as bits sorted by their probability of being set.

A saliency mask is far from random: whole input and output channels are dense or empty, and
|gradient x weight| is large where the weight is large. Both ends know the shapes and often the
initial weights; a few bytes per channel describe its density. Integer arithmetic on these assigns
every coordinate to one of CLASSES classes. The bits of a class have about the same probability
and are packed together, so that they compress well.

A coordinate of output channel o and input channel i (the first and second dimension of its
tensor) with initial weight w has:

    level = input[i] + output[o] + (float32 bits of |w| >> 19) - middle
    class = (level >> width) + CLASSES / 2, clamped to 0 … CLASSES - 1

    payload   flags u8: bit 0 set if the weights are used | width u8: 2 … 7
              section of side information: for every tensor `middle` i16 (0 without weights),
                  input i8 per input channel, output i8 per output channel
              for every class that has coordinates: section of its packed bits, in mask order
"""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ssfl.codec.errors import MalformedPayload, MaskError, TrailingBytes
from ssfl.codec.masks import checked, packed_bytes
from ssfl.codec.sections import HEADER_BYTES, Buffer, SectionReader, SectionWriter, check_can_hold

CLASSES = 64
Shape = tuple[int, ...]
Bools = npt.NDArray[np.bool_]
Levels = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

_WEIGHT_SHIFT = np.int32(19)  # 16 levels per octave of |w|
_SPREAD = 24.0  # levels per unit of the normal quantile of a channel's density
_MAGNITUDE = np.int32(0x7FFFFFFF)
_BLOCK = 1 << 20  # coordinates sorted at a time
_WIDTHS = range(2, 8)  # small masks need fewer, wider classes: each class has a header
_LARGE = 1 << 20  # coordinates above which the narrowest classes are best


def max_encoded_bytes(shapes: Sequence[Shape]) -> int:
    """Return the largest possible payload for tensors of these shapes, in bytes."""
    sections = HEADER_BYTES + _side_size(shapes) + (HEADER_BYTES + 1) * CLASSES
    return 2 + sections + packed_bytes(sum(map(math.prod, shapes)))


def encode(bits: bytes, shapes: Sequence[Shape], weights: Floats | None = None) -> memoryview:
    """Return the sorted bits of a mask over tensors of these shapes, flattened in this order.

    `weights` are the initial weights of the masked coordinates, if the receiver holds them.
    """
    size = sum(map(math.prod, shapes))
    packed = np.frombuffer(checked(bits, size), dtype=np.uint8)
    kept = np.unpackbits(packed, count=size, bitorder="little").view(np.bool_)
    _check_weights(weights, size)
    side = [*_side_information(kept, shapes, weights)]
    widths = _WIDTHS if size < _LARGE else _WIDTHS[:1]
    tries = (_encode(kept, shapes, side, weights, width) for width in widths)
    return min(tries, key=len)


def _encode(
    kept: Bools,
    shapes: Sequence[Shape],
    side: Sequence["_Side"],
    weights: Floats | None,
    width: int,
) -> memoryview:
    contents: list[list[Bools]] = [[] for _ in range(CLASSES)]
    for part, order, counts in _sorted(shapes, side, weights, width):
        bits, start = kept[part][order], 0
        for number in np.flatnonzero(counts).tolist():
            end = start + int(counts[number])
            contents[number].append(bits[start:end])
            start = end
    out = memoryview(bytearray(max_encoded_bytes(shapes)))
    out[0], out[1] = int(weights is not None), width
    writer = SectionWriter(levels=(1,))
    side_data = np.frombuffer(b"".join(map(_side_bytes, side)), dtype=np.uint8)
    at = 2 + writer.write(side_data, out[2:])
    for pieces in filter(None, contents):
        content = np.packbits(np.concatenate(pieces), bitorder="little")
        pieces.clear()
        at += writer.write(content, out[at:])
    return out[:at]


def decode(payload: Buffer, shapes: Sequence[Shape], weights: Floats | None = None) -> bytes:
    """Return the packed bits of a mask over tensors of these shapes."""
    size = sum(map(math.prod, shapes))
    _check_weights(weights, size)
    check_can_hold(len(payload), packed_bytes(size))
    reader = SectionReader(payload)
    flags, width = reader.read_raw(2)
    if flags > 1 or width not in _WIDTHS:
        raise MalformedPayload(f"unknown flags {flags} or width {width} of a mask")
    if flags and weights is None:
        raise MaskError("the mask is coded with initial weights that this receiver does not have")
    used = weights if flags else None
    side = [*_read_side(reader, shapes)]
    totals = np.zeros(CLASSES, dtype=np.int64)
    for _, _, counts in _sorted(shapes, side, used, width):
        totals += counts
    contents = [_read_class(reader, int(total)) for total in totals]
    if reader.left:
        raise TrailingBytes(reader.at, reader.at + reader.left)
    kept = np.empty(size, dtype=np.bool_)
    places = [0] * CLASSES
    for part, order, counts in _sorted(shapes, side, used, width):
        pieces = []
        for number, count in enumerate(counts.tolist()):
            pieces.append(contents[number][places[number] : places[number] + count])
            places[number] += count
        kept[part][order] = np.concatenate(pieces)
    return np.packbits(kept, bitorder="little").tobytes()


@dataclass(frozen=True, eq=False)
class _Side:
    """Side information about one tensor."""

    middle: int
    inputs: Levels  # (input channels,)
    outputs: Levels  # (output channels,)


def _check_weights(weights: Floats | None, size: int) -> None:
    if weights is not None and weights.size != size:
        raise MaskError(f"{weights.size} weights for a mask of {size} coordinates")


def _dimensions(shape: Shape) -> tuple[int, int, int]:
    """Return the numbers of output channels, input channels and values per channel pair."""
    outputs = shape[0] if shape else 1
    inputs = shape[1] if len(shape) > 1 else 1
    return outputs, inputs, math.prod(shape[2:])


def _side_size(shapes: Sequence[Shape]) -> int:
    """Return the size of the side information, in bytes."""
    return sum(2 + inputs + outputs for outputs, inputs, _ in map(_dimensions, shapes))


def _side_information(
    kept: Bools, shapes: Sequence[Shape], weights: Floats | None
) -> Iterator[_Side]:
    """Yield the densities of every tensor's channels, as levels.

    Only the sender computes this, so floats are fine. Densities become normal quantiles, which
    add up along both dimensions about as the logarithms of saliencies do.
    """
    start = 0
    for shape in shapes:
        outputs, inputs, rest = _dimensions(shape)
        end = start + outputs * inputs * rest
        tensor = kept[start:end].reshape(outputs, inputs, rest)
        middle = 0
        if weights is not None and end > start:
            middle = int(np.median(_weight_levels(weights[start:end][:_BLOCK])))
        in_each = np.count_nonzero(tensor, axis=(0, 2))
        out_each = np.count_nonzero(tensor, axis=(1, 2))
        whole = _quantiles(in_each.sum(keepdims=True), tensor.size)[0]
        yield _Side(
            middle,
            _as_levels(_quantiles(in_each, outputs * rest)),
            _as_levels(_quantiles(out_each, inputs * rest) - whole),
        )
        start = end


def _quantiles(counts: npt.NDArray[np.intp], size: int) -> npt.NDArray[np.float64]:
    """Return the normal quantiles of densities, moved slightly away from 0 and 1."""
    normal = NormalDist()
    unique, places = np.unique(counts, return_inverse=True)
    quantiles = [normal.inv_cdf((count + 0.5) / (size + 1)) for count in unique.tolist()]
    return np.array(quantiles)[places]


def _as_levels(quantiles: npt.NDArray[np.float64]) -> Levels:
    return np.clip(np.rint(_SPREAD * quantiles), -127, 127).astype(np.int32)


def _weight_levels(weights: Floats) -> Levels:
    bits = np.ascontiguousarray(weights, dtype="<f4").view(np.int32)
    levels: Levels = (bits & _MAGNITUDE) >> _WEIGHT_SHIFT
    return levels


def _sorted(
    shapes: Sequence[Shape], side: Sequence[_Side], weights: Floats | None, width: int
) -> Iterator[tuple[slice, npt.NDArray[np.intp], npt.NDArray[np.int64]]]:
    """Yield (coordinates, their order by class, counts by class), a block at a time."""
    start = 0
    for shape, info in zip(shapes, side, strict=True):
        outputs, inputs, rest = _dimensions(shape)
        row = inputs * rest
        step = max(1, _BLOCK // max(1, row))
        for first in range(0, outputs if row else 0, step):
            channels = info.outputs[first : first + step]
            part = slice(start + first * row, start + (first + channels.size) * row)
            levels = channels[:, None, None] + info.inputs[None, :, None]  # (channels, inputs, 1)
            levels = np.repeat(levels, rest, axis=2).reshape(-1)
            if weights is not None:
                levels += _weight_levels(weights[part])
                levels -= np.int32(info.middle)
            levels >>= np.int32(width)
            levels += np.int32(CLASSES // 2)
            classes = np.clip(levels, 0, CLASSES - 1).astype(np.uint8)
            order = np.argsort(classes, kind="stable")
            yield part, order, np.bincount(classes, minlength=CLASSES)
        start += outputs * row


def _side_bytes(info: _Side) -> bytes:
    levels = np.concatenate([info.inputs, info.outputs])
    return struct.pack("<h", info.middle) + levels.astype(np.int8).tobytes()


def _read_side(reader: SectionReader, shapes: Sequence[Shape]) -> Iterator[_Side]:
    content = reader.read(_side_size(shapes))
    at = 0
    for outputs, inputs, _ in map(_dimensions, shapes):
        (middle,) = struct.unpack("<h", content[at : at + 2].tobytes())
        levels = content[at + 2 : at + 2 + inputs + outputs].view(np.int8).astype(np.int32)
        yield _Side(middle, levels[:inputs], levels[inputs:])
        at += 2 + inputs + outputs


def _read_class(reader: SectionReader, count: int) -> Bools:
    if not count:
        return np.empty(0, dtype=np.bool_)
    packed = reader.read(packed_bytes(count))
    if count % 8 and packed[-1] >> (count % 8):
        raise MalformedPayload("bits behind the last coordinate of a class are set")
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
