"""IDX, the format of MNIST and Fashion-MNIST: four files, plain or gzip-compressed.

A file is 00 00 08 (unsigned bytes), the number of axes, each axis as a big-endian uint32, then the
bytes. Both spellings are accepted: train-images-idx3-ubyte and train-images.idx3-ubyte. The first
bytes of a file show if it is compressed; its name does not, because browsers unpack some files.
"""

import gzip
import io
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import SourceError, errors_of
from ssfl.datasets.published.originals import FETCH_AGAIN, MissingFiles, checksum_notes

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_FOLDERS = ("", "raw", "MNIST/raw", "FashionMNIST/raw")  # the last two are torchvision's
_GZIP = b"\x1f\x8b"
_MAX_DEFLATE_RATIO = 1032  # most bytes that one deflated byte can expand to
_MAX_BYTES = 1 << 30  # of an unpacked file; the largest of MNIST has 47 MB

Bytes = npt.NDArray[np.uint8]


def read_idx_set(
    name: str, folder: Path, class_names: tuple[str, ...], published: Mapping[str, str]
) -> DataSet:
    """Return the data set of the four files in `folder`; raise MissingFiles if one is missing.

    `published` holds the checksum of each unpacked file.
    """
    paths = find_files(folder)
    arrays = [read_idx(path, axes=3 if "images" in file else 1) for file, path in paths.items()]
    notes: tuple[str, ...] = ()
    for file, array in zip(FILES, arrays, strict=True):
        notes += checksum_notes(file, _file_of(array), published)
    train_x, train_y, test_x, test_y = arrays
    _check_pair(paths, "train", train_x, train_y, len(class_names))
    _check_pair(paths, "t10k", test_x, test_y, len(class_names))
    if not len(train_x):
        raise SourceError(f"{paths[FILES[0]]} holds no images")
    if train_x.shape[1:] != test_x.shape[1:]:
        shapes = f"{_size(train_x)} and {_size(test_x)}"
        raise SourceError(f"the train and t10k images in {folder} have different sizes: {shapes}")
    return DataSet(
        name,
        train_x[:, None],
        train_y.astype(np.int64),
        test_x[:, None],
        test_y.astype(np.int64),
        class_names,
        notes,
    )


def find_files(folder: Path) -> dict[str, Path]:
    """Return the path of each of FILES; raise MissingFiles naming the missing ones."""
    if folder.is_file():
        raise SourceError(f"{folder} is a file; --path must be the folder with all four IDX files")
    fewest: list[str] = list(FILES)
    for inner in _FOLDERS:
        found = {file: path for file in FILES if (path := _find(folder / inner, file))}
        missing = [file for file in FILES if file not in found]
        if not missing:
            return found
        fewest = min(fewest, missing, key=len)
    raise MissingFiles(fewest, partly=len(fewest) < len(FILES))


def read_idx(path: Path, axes: int) -> Bytes:
    """Return the array in a file; raise SourceError unless it has `axes` axes."""
    try:
        size = path.stat().st_size
        with errors_of(path), path.open("rb") as file:
            start = file.read(2)
            file.seek(0)
            if start == _GZIP:
                with gzip.open(file, "rb") as unpacked:
                    return _read(unpacked, axes, min(size * _MAX_DEFLATE_RATIO, _MAX_BYTES), False)
            return _read(file, axes, size, True)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path} cannot be read ({error}): {FETCH_AGAIN}") from error


def _read(file: IO[bytes] | gzip.GzipFile, axes: int, max_bytes: int, is_exact: bool) -> Bytes:
    """Return the array; the file has `max_bytes` bytes if `is_exact`, else at most that many."""
    header = file.read(4 + 4 * axes)
    if not header:
        raise SourceError("the file is empty")
    magic = bytes((0, 0, 8, axes))
    if header[:4] != magic:
        raise SourceError(
            f"an IDX file of bytes with {axes} axes begins with {magic.hex(' ')}, "
            f"this one with {header[:4].hex(' ')}"
        )
    if len(header) < 4 + 4 * axes:
        raise SourceError("the file ends within its header")
    shape = struct.unpack(f">{axes}I", header[4:])
    length = math.prod(shape)
    announced = f"the header announces {' x '.join(map(str, shape))} bytes"
    if len(header) + length > max_bytes:
        raise SourceError(f"{announced}, but the file holds at most {max_bytes - len(header):,}")
    data = _read_all(file, length)
    if len(data) < length:
        raise SourceError(f"{announced}, but the file holds only {len(data):,}")
    if file.read(1):
        more = f"{max_bytes - len(header):,}" if is_exact else "more"
        raise SourceError(f"{announced}, but the file holds {more}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _read_all(file: IO[bytes] | gzip.GzipFile, length: int) -> bytes:
    """Return up to `length` bytes; allocate only for bytes that are received."""
    parts = io.BytesIO()
    while part := file.read(min(length - parts.tell(), 1 << 20)):
        parts.write(part)
    return parts.getvalue()


def _find(folder: Path, file: str) -> Path | None:
    dotted = file.replace("-idx", ".idx")
    for name in (file, f"{file}.gz", dotted, f"{dotted}.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def _check_pair(
    paths: Mapping[str, Path], part: str, images: Bytes, labels: Bytes, num_classes: int
) -> None:
    image_path, label_path = paths[f"{part}-images-idx3-ubyte"], paths[f"{part}-labels-idx1-ubyte"]
    if len(images) != len(labels):
        raise SourceError(
            f"{image_path} holds {len(images):,} images, {label_path} {len(labels):,} labels"
        )
    if 0 in images.shape[1:]:
        raise SourceError(f"{image_path} holds images of {_size(images)} pixels")
    if len(labels) and labels.max() >= num_classes:
        sample = int(np.argmax(labels >= num_classes))
        raise SourceError(
            f"{label_path}: label {labels[sample]} of sample {sample}, "
            f"but the classes are 0 … {num_classes - 1}"
        )


def _size(images: Bytes) -> str:
    return " x ".join(map(str, images.shape[1:]))


def _file_of(array: Bytes) -> bytes:
    """Return the uncompressed IDX file that holds an array."""
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()
