"""An append-only file of records; what was acknowledged is in it.

    file    := magic "SSFLJRN1" , record*
    record  := length u32 , crc32 u32 (of the body) , crc32 u32 (of the 8 bytes before) , body
                                                                                little-endian

`append` returns after fsync. A tail cut short by a crash is dropped when the file is opened;
damage anywhere else is refused, since everything behind it was acknowledged. (The head has a
checksum of its own: a damaged length would otherwise pass for a record that was cut short.)
"""

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from ssfl.method.failpoints import failpoint, is_armed
from ssfl.program.files import sync_directory
from ssfl.server.errors import StateError

MAGIC = b"SSFLJRN1"
MAX_RECORD_BYTES = 1 << 26  # a step of 100,000 clients; a longer one is damage
_SUMMED = struct.Struct("<II")  # length, crc32 of the body
_HEAD = struct.Struct("<III")  # and the crc32 of those two


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
        failpoint("journal.append")
        view = memoryview(b"".join(_head(body) + body for body in bodies))
        if is_armed("journal.torn"):
            half = len(view) // 2
            self._file.write(view[:half])
            failpoint("journal.torn")
            view = view[half:]
        while view:
            view = view[self._file.write(view) :]
        failpoint("journal.written")
        os.fsync(self._file.fileno())
        failpoint("journal.synced")

    def close(self) -> None:
        self._file.close()


def _create(path: Path) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(MAGIC)
        file.flush()
        os.fsync(file.fileno())
    failpoint("journal.created")
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
    while at + _HEAD.size <= len(data):
        length, checksum, head_checksum = _HEAD.unpack_from(data, at)
        start = at + _HEAD.size
        body = data[start : start + length]
        sound_head = zlib.crc32(data[at : at + _SUMMED.size]) == head_checksum
        if sound_head and len(body) == length and zlib.crc32(body) == checksum:
            records.append(body)
            at = start + length
        elif not any(data[start + length if sound_head else start :]):
            break  # nothing behind it: the last write, cut short, or space never written
        else:
            raise StateError(
                f"{path} is damaged at byte {at}: restore it from a backup, "
                "or use --fresh to move the old state aside and begin again"
            )
    return records, at


def _head(body: bytes) -> bytes:
    summed = _SUMMED.pack(len(body), zlib.crc32(body))
    return summed + zlib.crc32(summed).to_bytes(4, "little")
