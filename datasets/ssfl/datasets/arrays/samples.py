"""Convert saved arrays to samples: images (N, C, H, W), tables (N, columns) or token ids.

    (N, H, W), (N, H, W, C), (N, C, H, W)  images; the axis with 1, 3 or 4 entries holds the
                                           channels unless a layout is given
    (N, columns) of floats, uint8, uint16  tables, float32; uint8 is divided by 255, uint16 by
                                           65535
    (N, length) of other integers          token ids, int64

Images of uint8 and uint16 keep their type. Other integers are converted to one of these if they
fit. Floats become float32. Values that are not finite are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssfl.datasets.data_set import Array
from ssfl.datasets.errors import SourceError
from ssfl.datasets.memory import first_not_finite

_CHANNELS = (1, 3, 4)
_TYPE_NAMES = {"U": "text", "S": "bytes", "c": "complex numbers", "M": "dates", "m": "durations"}
_PIXEL_MAX = {"uint8": 255, "uint16": 65535}
_FEW_BITS = 14  # cameras and scanners store 10, 12 or 14 bits in uint16


@dataclass(frozen=True)
class SampleArrays:
    """The converted arrays, all of one type and sample shape."""

    values: tuple[Array, ...]
    notes: tuple[str, ...] = ()


def read_samples(arrays: Sequence[tuple[str, Array]], layout: str) -> SampleArrays:
    """Return the samples of (name, array) pairs of one data set; names appear in messages."""
    values, notes = zip(*(_read(name, array, layout) for name, array in arrays), strict=True)
    is_converted = {array.dtype.name for _, array in arrays}.isdisjoint(_PIXEL_MAX)
    if is_converted and {part.dtype.name for part in values} == set(_PIXEL_MAX):
        values = tuple(part.astype(np.uint16) for part in values)
    first = values[0]
    for (name, _), other in zip(arrays, values, strict=True):
        if (other.shape[1:], other.dtype) != (first.shape[1:], first.dtype):
            raise SourceError(
                f"{arrays[0][0]} holds {first.dtype} of shape {first.shape[1:]}, "
                f"{name} {other.dtype} of shape {other.shape[1:]}: they must be the same"
            )
    return SampleArrays(values, tuple(filter(None, notes)))


def _read(name: str, array: Array, layout: str) -> tuple[Array, str]:
    """Return the converted array and a note, which may be empty."""
    if array.dtype.kind not in "biuf":
        what = _TYPE_NAMES.get(array.dtype.kind, f"records of type {array.dtype}")
        raise SourceError(f"{name} holds {what}; samples must be numbers")
    if not 2 <= array.ndim <= 4 or 0 in array.shape[1:]:
        raise SourceError(
            f"{name} has shape {array.shape}; samples are (N, columns), (N, height, width), "
            "(N, height, width, channels) or (N, channels, height, width)"
        )
    if layout != "auto" and array.ndim != 4:
        raise SourceError(f"--layout is for images of 4 axes; {name} has shape {array.shape}")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype == np.bool_:
        native = native.astype(np.float32)
    if native.ndim == 2:
        return _flat(name, native)
    images = native[:, None] if native.ndim == 3 else _channels_first(name, native, layout)
    return _images(name, images)


def _flat(name: str, array: Array) -> tuple[Array, str]:
    if array.dtype.kind == "f":
        return _floats(name, array), ""
    top = _PIXEL_MAX.get(array.dtype.name)
    if top:
        note = f"{name} holds rows of {array.dtype}: divided by {top}"
        return array.astype(np.float32) / np.float32(top), note
    highest = np.iinfo(np.int64).max
    if array.size and (array.min() < 0 or array.max() > highest):
        sample = int(np.argmax(((array < 0) | (array > highest)).any(axis=1)))
        raise SourceError(
            f"{name} holds integers, which are read as token ids, but one in sample {sample} is "
            "below 0 or too large; save a table as floats"
        )
    return array.astype(np.int64), f"{name} holds rows of {array.dtype}: read as token ids"


def _channels_first(name: str, array: Array, layout: str) -> Array:
    if layout == "auto":
        first, last = array.shape[1] in _CHANNELS, array.shape[3] in _CHANNELS
        if first == last:
            doubt = "both the first and the last" if first else "neither the first nor the last"
            raise SourceError(
                f"{name} has shape {array.shape}: {doubt} axis of an image could be channels "
                "(1, 3 or 4); use --layout nchw or --layout nhwc"
            )
        layout = "nchw" if first else "nhwc"
    return array if layout == "nchw" else array.transpose(0, 3, 1, 2)


def _images(name: str, images: Array) -> tuple[Array, str]:
    if images.dtype.kind == "f":
        values = _floats(name, images)
        top = float(values.max()) if values.size else 0.0
        note = f"{name} goes up to {top:g}; pixels are usually 0 … 1, and floats are not scaled"
        return values, note if top > 1 else ""
    if images.dtype.name in _PIXEL_MAX:
        return np.ascontiguousarray(images), dark_note(name, images)
    low, high = (int(images.min()), int(images.max())) if images.size else (0, 0)
    for kind, top in _PIXEL_MAX.items():
        if low >= 0 and high <= top:
            note = f"{name} holds {images.dtype} pixels {low} … {high}: kept as {kind}"
            kept = np.ascontiguousarray(images.astype(kind))
            return kept, "; ".join(filter(None, [note, dark_note(name, kept)]))
    raise SourceError(
        f"{name} holds {images.dtype} pixels {low} … {high}; integers must fit "
        "uint8 or uint16, otherwise save floats"
    )


def dark_note(name: str, images: Array) -> str:
    """Return a note if 16-bit images use so few bits that they will look black, else ''."""
    high = int(images.max()) if images.size and images.dtype == np.uint16 else 0
    bits = high.bit_length()
    if not 0 < bits <= _FEW_BITS:
        return ""
    return (
        f"{name} goes up to {high} of 65535: {max(bits, 8)}-bit images? They will be dark because "
        f"they are divided by 65535; first multiply them by {1 << (16 - max(bits, 8))}"
    )


def _floats(name: str, array: Array) -> Array:
    """Return the array as float32; raise SourceError naming the first sample not finite."""
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(array, dtype=np.float32)
    sample = first_not_finite(values)
    if sample is not None:
        was_finite = np.isfinite(array[sample]).all()
        what = "a number too large for float32" if was_finite else "NaN or infinity"
        raise SourceError(f"{name} holds {what}, first in sample {sample}")
    return values
