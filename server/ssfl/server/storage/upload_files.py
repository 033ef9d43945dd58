"""Files of uploads: bytes being received, and values being checked or stored.

Other packages do not open these files; they use the objects below, which read and write in blocks,
so that memory does not grow with the size of an upload.
"""

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ssfl.codec import values_only
from ssfl.codec.errors import DigestMismatch
from ssfl.durable.failpoints import failpoint
from ssfl.method.model_state import Vector
from ssfl.method.norm_clip import BLOCK  # the block size affects the bits of a norm

Block = tuple[int, Vector]  # the position of the first value, and the values


@dataclass(frozen=True, slots=True)
class UploadFile:
    """A file of one upload."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def num_bytes(self) -> int:
        """The length of the file; raises FileNotFoundError if it was dropped."""
        return self.path.stat().st_size

    def digest(self) -> bytes:
        """Return the SHA-256 of the file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    def check_digest(self, expected: bytes) -> None:
        """Raise DigestMismatch unless the file has this SHA-256."""
        actual = self.digest()
        if actual != expected:
            raise DigestMismatch(expected, actual)

    def drop(self) -> None:
        """Remove the file, if it is still there."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class StoredValues(UploadFile):
    """float32 values in a file."""

    def read(self, start: int, count: int) -> Vector:
        """Return up to `count` values from value number `start`."""
        values = np.fromfile(self.path, dtype="<f4", count=count, offset=4 * start)
        return values.astype(np.float32, copy=False)

    def tail(self, num_bytes: int) -> bytes:
        """Return the last bytes of the file; fewer if it is shorter."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.num_bytes - num_bytes))
            return file.read(num_bytes)

    def blocks(self, count: int) -> Iterator[Block]:
        """Yield the first `count` values, block by block."""
        for start in range(0, count, BLOCK):
            yield start, self.read(start, min(BLOCK, count - start))


@dataclass(frozen=True, slots=True)
class PartialUpload(UploadFile):
    """An upload as it was sent, up to the last chunk received."""

    @property
    def values(self) -> StoredValues:
        """The same file, read as values: for an upload of plain float32 values."""
        return StoredValues(self.path)

    def append(self, data: bytes) -> None:
        """Append one chunk; raise FileNotFoundError if the upload was dropped."""
        failpoint("spool.chunk")
        with open(self.path, "ab", buffering=0, opener=_existing) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        failpoint("spool.chunk-written")

    def restart(self) -> None:
        """Restart at byte 0 in a new file, since another call may still read the old one."""
        self.drop()
        self.path.touch()

    def view(self) -> memoryview:
        """Return the bytes without reading them all into memory."""
        if not self.num_bytes:
            return memoryview(b"")
        return memoryview(np.memmap(self.path, dtype=np.uint8, mode="r"))  # type: ignore[arg-type]

    @contextmanager
    def stage(self) -> Iterator["StagedValues"]:
        """Yield a new file for the values of this upload; remove it if the block fails.

        Each call has its own file, since a client that lost its connection may send the upload
        again while the first call still decodes it.
        """
        path = self.path.with_suffix(f".{secrets.token_hex(4)}.plain")
        try:
            with path.open("wb") as file:
                yield StagedValues(StoredValues(path), file)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


@dataclass(frozen=True, slots=True)
class StagedValues:
    """Values that are being written."""

    values: StoredValues  # readable after the file is closed
    file: BinaryIO

    def write(self, block: Vector) -> None:
        self.file.write(values_only.encode(block))

    def write_bytes(self, data: bytes) -> None:
        self.file.write(data)


def _existing(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_CREAT)
