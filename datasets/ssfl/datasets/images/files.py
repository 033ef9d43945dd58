"""Inspect and decode a single image file with Pillow.

Only the pixels of the first frame are read, rotated by the EXIF orientation. Formats that Pillow
passes to other programs (EPS, WMF) are not opened.
"""

import functools
import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from ssfl.datasets.errors import SourceError

_NOT_PIXELS = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
_COMMON = {"PNG", "JPEG"}  # tried first
_GREY = ("1", "L", "LA", "La")
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_COLOUR = ("RGB", "RGBA", "RGBX", "RGBa", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV")
_WITH_ALPHA = ("LA", "La", "RGBA", "RGBa", "PA")
_SWAPPING_ORIENTATIONS = (5, 6, 7, 8)  # EXIF orientations that swap width and height
_8_TO_16_BITS = 257  # 255 * 257 = 65535

# Exceptions that Pillow raises for files that are damaged, truncated or only partly supported.
_DAMAGED = (
    *(OSError, SyntaxError, ValueError, EOFError, TypeError, KeyError, IndexError),
    *(OverflowError, NotImplementedError, MemoryError, struct.error, zlib.error),
)

Pixels = npt.NDArray[Any]  # uint8 or uint16


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Properties from the header of an image file."""

    width: int
    height: int
    kind: str  # grey, deep (16-bit grey) or colour
    has_alpha: bool
    has_frames: bool  # more than one


@dataclass(frozen=True)
class ImageForm:
    """The shape and type to which all images of a data set are converted."""

    channels: int
    dtype: type[np.uint8] | type[np.uint16]
    height: int
    width: int
    may_scale: bool  # False if every image already has this size

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image."""
        return (self.channels, self.height, self.width)


def image_endings() -> frozenset[str]:
    """Return the lower-case file name extensions of supported image formats."""
    formats = _formats()
    endings = Image.registered_extensions().items()
    return frozenset(ending.lower() for ending, name in endings if name in (*formats, "MPO"))


def inspect(path: Path) -> ImageInfo:
    """Return the properties of an image without decoding its pixels."""
    with _open_image(path) as image:
        if image.mode not in _GREY + _DEEP + _COLOUR:
            raise SourceError(
                f"{printable_path(path)}: Pillow's pixel mode {image.mode} is not supported; "
                "save the image with 8 or 16 bits"
            )
        width, height = reversed(image.size) if _swaps_sides(image) else image.size
        kind = "grey" if image.mode in _GREY else "deep" if image.mode in _DEEP else "colour"
        has_alpha = image.mode in _WITH_ALPHA or "transparency" in image.info
        has_frames = getattr(image, "n_frames", 1) > 1
        return ImageInfo(width, height, kind, has_alpha and kind != "deep", has_frames)


def decode(path: Path, form: ImageForm, data: bytes | None = None) -> Pixels:
    """Return the pixels (channels, height, width), cropped and scaled to `form` if needed.

    For a file in an archive, `data` holds its bytes and `path` is used only in messages.
    """
    with _open_image(path, data) as opened:
        opened.load()  # decoding a TIFF rotates it; it must not be rotated a second time
        image = ImageOps.exif_transpose(opened)
        is_deep = image.mode in _DEEP
        if is_deep:
            image = image.convert("I")
        else:
            image = _on_white(image).convert("L" if form.channels == 1 else "RGB")
        if image.size != (form.width, form.height):
            if not form.may_scale:
                raise SourceError(
                    f"{printable_path(path)} has {image.width} x {image.height} pixels, "
                    f"not {form.width} x {form.height}"
                )
            image = ImageOps.fit(image, (form.width, form.height), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
    if is_deep and not 0 <= pixels.min() <= pixels.max() <= np.iinfo(np.uint16).max:
        raise SourceError(
            f"{printable_path(path)}: the pixels are not in 0 … 65535; save it with 16 bits"
        )
    if is_deep and form.dtype == np.uint8:
        pixels = pixels // _8_TO_16_BITS
    elif not is_deep and form.dtype == np.uint16:
        pixels = pixels.astype(np.uint16) * _8_TO_16_BITS
    planes = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[np.newaxis]
    result: Pixels = np.broadcast_to(planes, form.shape).astype(form.dtype)
    return result


def printable_path(path: Path) -> str:
    """Return a path for a message, with bytes that are not UTF-8 escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _swaps_sides(image: Image.Image) -> bool:
    """Return True if the EXIF orientation swaps width and height."""
    if image.format == "TIFF":  # Pillow reports the size after rotation
        return False
    if image.format == "PNG" and "exif" not in image.info:  # getexif() would decode the image
        return False
    return image.getexif().get(ExifTags.Base.Orientation) in _SWAPPING_ORIENTATIONS


def _on_white(image: Image.Image) -> Image.Image:
    """Return the image on a white background if it has transparent parts."""
    if image.mode not in _WITH_ALPHA and "transparency" not in image.info:
        return image
    rgba = image.convert("RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    # A grey image has three equal channels.
    return flat.getchannel("R") if image.mode in _GREY else flat


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(sorted(set(Image.OPEN) - _NOT_PIXELS, key=lambda name: name not in _COMMON))


@contextmanager
def _open_image(path: Path, data: bytes | None = None) -> Iterator[Image.Image]:
    """Open an image; raise SourceError if it cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unusual metadata does not matter
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Pass a file, not a path: from a path Pillow maps a TIFF and rotates it wrongly.
            content = path.open("rb") if data is None else io.BytesIO(data)
            with content as file, Image.open(file, formats=_formats()) as image:
                yield image
    except (Image.DecompressionBombWarning, Image.DecompressionBombError, *_DAMAGED) as error:
        raise SourceError(f"{printable_path(path)}: {_explain(error)}") from error


def _explain(error: Exception) -> str:
    match error:
        case Image.DecompressionBombWarning() | Image.DecompressionBombError():
            largest = f"{Image.MAX_IMAGE_PIXELS:,} pixels"
            return (
                f"the image has more than {largest}, which may be an attack; make it smaller first"
            )
        case PermissionError():
            return "you have no permission to read this file"
        case UnidentifiedImageError():
            return "this is not an image, or its header is damaged; repair or remove it"
    return f"the image is damaged or cut short ({str(error)[:200]}); repair or remove it"
