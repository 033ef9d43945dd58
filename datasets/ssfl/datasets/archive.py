"""Read arrays from an untrusted numpy archive (.npz).

Nothing is unpickled. Before memory is allocated, each entry is checked: it is stored or deflated,
its size is possible for its compressed size, and its header matches the number of bytes after it.
"""

import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ssfl.datasets.data_set import Array
from ssfl.datasets.errors import ShardError
from ssfl.datasets.wording import format_bytes

MEMORY_ADVICE = "close other programs, or keep fewer samples in the file"
_COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MAX_DEFLATE_RATIO = 1032  # most bytes that one deflated byte can expand to
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_archive(path: Path, needed: Sequence[str], optional: Sequence[str]) -> dict[str, Array]:
    """Return the arrays by name; raise ShardError, whose message does not name the path."""
    try:
        _check_file(path)
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            held = set(archive.namelist())
            missing = [name for name in needed if f"{name}.npy" not in held]
            if missing:
                raise ShardError(f"the archive lacks {', '.join(missing)}")
            names = [*needed, *(name for name in optional if f"{name}.npy" in held)]
            return {name: _read_array(archive, name, path.stat().st_size) for name in names}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ShardError(f"the archive cannot be read: {error}") from error
    except (KeyError, NotImplementedError, RuntimeError) as error:
        raise ShardError(f"the archive is damaged: {type(error).__name__}: {error}") from error


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise ShardError("this is a folder, not a file")
    if not path.is_file():
        raise ShardError("there is no such file")
    if path.stat().st_size == 0:
        raise ShardError("the file is empty")
    if not zipfile.is_zipfile(path):
        raise ShardError("this is not a numpy .npz archive, or it was cut short")


def _read_array(archive: zipfile.ZipFile, name: str, file_size: int) -> Array:
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type not in _COMPRESSION_METHODS:
        raise ShardError(f"{name} has an unsupported compression: save it with numpy.savez")
    packed = min(entry.compress_size, file_size)
    stored = entry.compress_type == zipfile.ZIP_STORED
    if entry.file_size > (packed if stored else packed * _MAX_DEFLATE_RATIO):
        raise ShardError(f"{name} claims {entry.file_size} bytes, more than the file can hold")
    with archive.open(entry) as file:
        _check_header(name, file, entry.file_size)
    with archive.open(entry) as file:
        try:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
        except MemoryError as error:
            raise ShardError(
                f"{name} takes {format_bytes(entry.file_size)}, more memory than is free here: "
                f"{MEMORY_ADVICE}"
            ) from error
        file.read(1)  # reading past the end makes zipfile verify the checksum
    return array


def _check_header(name: str, file: IO[bytes], size: int) -> None:
    """Raise ShardError if the array's header does not match the bytes that follow it."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ShardError(f"{name} has numpy format version {version[0]}.{version[1]}")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ShardError(f"{name} holds Python objects, which are never read: save plain numbers")
    announced = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or not dtype.itemsize or announced != size - file.tell():
        raise ShardError(
            f"{name} announces {dtype} of shape {shape}, but {size - file.tell()} bytes follow"
        )
