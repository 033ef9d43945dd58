"""An append-only file of records; what was acknowledged is in it.

    file    := magic "SSFLJRN1" , record*
    record  := length u32 , crc32 u32 (of the body) , body        little-endian

`append` returns after fsync. A tail cut short by a crash is dropped when the file is opened;
damage anywhere else is refused, since everything behind it was acknowledged.
"""

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from ssfl.program.files import sync_directory
from ssfl.server.errors import StateError

MAGIC = b"SSFLJRN1"
MAX_RECORD_BYTES = 1 << 26  # a step of 100,000 clients; a longer one is damage
_HEAD = struct.Struct("<II")


class Journal:
    """An open journal."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`, cutting a torn tail; raise StateError if it is damaged."""
        self.path = path
        if not path.exists():
            _create(path)
        self.records, length = _read(path)
        self.cut_bytes = path.stat().st_size - length
        self._file = path.open("r+b", buffering=0)
        if self.cut_bytes:
            self._file.truncate(length)
            os.fsync(self._file.fileno())
        self._file.seek(length)

    def append(self, bodies: Sequence[bytes]) -> None:
        """Write records and return when they are on disk."""
        for body in bodies:
            if len(body) > MAX_RECORD_BYTES:
                raise StateError(f"a journal record of {len(body)} bytes is over the limit")
        data = b"".join(_HEAD.pack(len(body), zlib.crc32(body)) + body for body in bodies)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _create(path: Path) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(MAGIC)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


def _read(path: Path) -> tuple[list[bytes], int]:
    """Return the records and the length of the sound part."""
    data = path.read_bytes()
    if data[: len(MAGIC)] != MAGIC:
        raise StateError(
            f"{path} is not a journal of this version; use --fresh to move the old state aside"
        )
    records, at = [], len(MAGIC)
    while at < len(data):
        if at + _HEAD.size > len(data):
            break
        length, checksum = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        body = data[at + _HEAD.size : end]
        if 0 < length <= MAX_RECORD_BYTES and end <= len(data) and zlib.crc32(body) == checksum:
            records.append(body)
            at = end
            continue
        if end >= len(data) or not any(data[at:]):  # the last write, or space never written
            break
        raise StateError(
            f"{path} is damaged at byte {at}: restore it from a backup, "
            "or use --fresh to move the old state aside and begin again"
        )
    return records, at
