"""An append-only file of records; what was acknowledged is in it.

    file    := magic "SSFLJRN1" , record*
    record  := length u32 , crc32 u32 (of the body) , crc32 u32 (of the 8 bytes before) , body
                                                                                little-endian

`append` returns after fsync; if it fails, the file is as it was before. A tail cut short by a
crash is dropped when the file is opened; damage anywhere else is refused, since everything behind
it was acknowledged. (The head has a checksum of its own: a damaged length would otherwise pass
for a record that was cut short.)

Fencing: who opens a journal takes it over. The file is renamed, read, and copied to a new one
under the old name. Whoever had it open finds, after writing and before acknowledging, that the
name belongs to another file, and must stop: either the new owner has read the record, or nobody
was told that it counts. This holds on any file system with atomic renames, also across machines.
"""

import os
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from ssfl.method.failpoints import failpoint, is_armed
from ssfl.program.files import sync_directory
from ssfl.server.errors import Fenced, StateError

MAGIC = b"SSFLJRN1"
TAKEN = ".taken"  # ends the name of a journal that somebody is taking over
MAX_RECORD_BYTES = 1 << 26  # a step of 100,000 clients; a longer one is damage
_SUMMED = struct.Struct("<II")  # length, crc32 of the body
_HEAD = struct.Struct("<III")  # and the crc32 of those two


class Journal:
    """An open journal."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`, cutting a torn tail; raise StateError if it is damaged."""
        self.path = path
        self.records, self.cut_bytes = _take_over(path)
        self._file = path.open("r+b", buffering=0)
        self._length = self._file.seek(0, os.SEEK_END)

    def append(self, bodies: Sequence[bytes]) -> None:
        """Write records and return when they are on disk."""
        for body in bodies:
            if len(body) > MAX_RECORD_BYTES:
                raise StateError(f"a journal record of {len(body)} bytes is over the limit")
        failpoint("journal.append")
        try:
            self._write(bodies)
        except OSError:
            self._file.truncate(self._length)
            self._file.seek(self._length)
            raise
        self._length = self._file.tell()
        failpoint("journal.synced")
        if not self._is_ours():
            raise Fenced(
                f"another coordinator has taken over {self.path.parent}: this one ends, and what "
                "it was about to acknowledge does not count"
            )

    def _write(self, bodies: Sequence[bytes]) -> None:
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

    def _is_ours(self) -> bool:
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(self._file.fileno()))

    def close(self) -> None:
        self._file.close()


def read_journal(path: Path) -> tuple[list[bytes], int]:
    """Return the records of a journal that may be in use, and the bytes of a torn tail.

    Nothing is changed; raise StateError if it is damaged, FileNotFoundError if there is none.
    """
    taken = _abandoned(path)
    try:
        records, sound, size = _read(path)
    except FileNotFoundError:  # somebody is taking it over, or was cut short in that
        records, sound, size = _read(taken[-1] if taken and taken[-1].exists() else path)
    return records, size - sound


def _take_over(path: Path) -> tuple[list[bytes], int]:
    """Make the journal ours; return its records and how many bytes of a torn tail were cut."""
    if not path.exists():
        abandoned = _abandoned(path)
        if not abandoned:
            _create(path, MAGIC)
            return [], 0
        abandoned[-1].rename(path)  # a start that was cut short between its two renames
    _read(path)  # a damaged one stays where it is
    taken = path.with_name(f"{path.name}.{time.time_ns()}{TAKEN}")
    path.rename(taken)
    failpoint("journal.taken")
    records, length, size = _read(taken)
    _create(path, taken.read_bytes()[:length])
    for old in _abandoned(path):
        old.unlink()
    return records, size - length


def _abandoned(path: Path) -> list[Path]:
    """Return what starts that were cut short left behind, the newest last."""
    return sorted(path.parent.glob(f"{path.name}.*{TAKEN}"))


def _create(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    failpoint("journal.created")
    temporary.rename(path)
    sync_directory(path.parent)


def _read(path: Path) -> tuple[list[bytes], int, int]:
    """Return the records, the length of the sound part and that of the whole."""
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
    return records, at, len(data)


def _head(body: bytes) -> bytes:
    summed = _SUMMED.pack(len(body), zlib.crc32(body))
    return summed + zlib.crc32(summed).to_bytes(4, "little")
