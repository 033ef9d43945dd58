"""An append-only file of records. Every acknowledged record is in it.

    file    := magic "SSFLJRN1" , record*
    record  := length u32 , crc32 u32 (of the body) , crc32 u32 (of the 8 bytes before) , body
                                                                                little-endian

`append` returns after fsync. If it fails, the file is unchanged. Opening the file truncates a torn
tail left by a crash. Damage anywhere else is an error, since every record after it was
acknowledged. The head (length and CRC of the body) has its own checksum: otherwise a damaged length
would look like a torn record.

Fencing: opening a journal takes ownership of it. The file is renamed, read, and copied to a new
file under the old name. After each write, and BEFORE acknowledging it, an owner checks that the
name still refers to its own file, and stops if it does not. So a record was either read by the new
owner, or never acknowledged. This works on any file system with atomic renames, even across
machines.
"""

import contextlib
import os
import secrets
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from ssfl.durable.failpoints import failpoint, is_armed
from ssfl.durable.files import sync_directory
from ssfl.server.errors import Fenced, StateError, StateGone

MAGIC = b"SSFLJRN1"
TAKEN = ".taken"  # suffix of a journal that is being taken over
NEW = ".new"  # suffix of a journal that is being written
MAX_RECORD_BYTES = 1 << 26  # a step of 100,000 clients; a longer record is damage
_BLOCK_BYTES = 1 << 20
_SUMMED = struct.Struct("<II")  # length, crc32 of the body
_HEAD = struct.Struct("<III")  # length, crc32 of the body, crc32 of these two fields


class Journal:
    """An open journal."""

    def __init__(self, path: Path, checked_bytes: int = 0) -> None:
        """Open or create `path` and truncate a torn tail; raise StateError if it is damaged.

        The first `checked_bytes` are known to be sound (snapshot.py).
        """
        self.path = path
        self._file, self.cut_bytes = _take_over(path, checked_bytes)
        self.num_bytes = self._file.seek(0, os.SEEK_END)  # all on disk, without a torn tail
        self._is_torn = False  # by a write that failed

    @property
    def records(self) -> list[bytes]:
        """All records, read from the file. Only for short journals."""
        return [body for _, body in records_of(self.path)]

    def read_from(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the end position and the body of each record from byte `start` to `stop`."""
        return records_of(self.path, start, stop)

    def append(self, bodies: Sequence[bytes]) -> None:
        """Write records and return when they are on disk; raise Fenced if the file is not ours."""
        for body in bodies:
            if len(body) > MAX_RECORD_BYTES:
                raise StateError(f"a journal record of {len(body)} bytes is over the limit")
        failpoint("journal.append")
        try:
            self._mend()
            self._write(bodies)
        except OSError:
            self._is_torn = True
            with contextlib.suppress(OSError):  # if this fails, the next write repairs it
                self._mend()
            raise
        self.num_bytes = self._file.tell()
        failpoint("journal.synced")
        self.check_ours()

    def check_ours(self) -> None:
        """Raise Fenced if another coordinator took over the journal, StateGone if it is gone.

        During a takeover, the journal exists under its own name or under its temporary name.
        """
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self.path.stat(), os.fstat(self._file.fileno())):
                return
        if not holds_journal(self.path) and not self.path.exists():
            raise StateGone(self.path.parent)
        raise Fenced(
            f"another coordinator has taken over {self.path.parent}: this one ends, and what "
            "it was about to acknowledge does not count"
        )

    def _mend(self) -> None:
        if self._is_torn:
            self._file.truncate(self.num_bytes)
            self._file.seek(self.num_bytes)
            self._is_torn = False

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

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class JournalFile:
    """The file of a journal as a reader sees it: nothing is locked or changed."""

    path: Path

    @property
    def num_bytes(self) -> int:
        """The length of the file, torn tail included; 0 if there is no file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def read_from(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the end position and the body of each record from byte `start` to `stop`."""
        return records_of(self.path, start, stop)

    def crc32(self, start: int, stop: int, before: int = 0) -> int:
        """Return the CRC-32 of a range of bytes, continued from the CRC-32 `before`."""
        with self.path.open("rb") as file:
            file.seek(start)
            while start < stop and (block := file.read(min(_BLOCK_BYTES, stop - start))):
                before = zlib.crc32(block, before)
                start += len(block)
        return before


def read_journal(path: Path) -> tuple[list[bytes], int]:
    """Return the records of a journal that may be in use, and the length of its torn tail.

    The file is not changed. Raise StateError if it is damaged, FileNotFoundError if missing.
    """
    taken = _abandoned(path)
    try:
        return _read(path)
    except FileNotFoundError:  # a takeover is in progress or was interrupted
        return _read(taken[-1] if taken and taken[-1].exists() else path)


def _read(path: Path) -> tuple[list[bytes], int]:
    size, found = path.stat().st_size, list(records_of(path))
    sound = found[-1][0] if found else len(MAGIC)
    return [body for _, body in found], max(0, size - sound)  # some may have been appended since


def _take_over(path: Path, checked_bytes: int) -> tuple[FileIO, int]:
    """Take ownership of the journal; return its file and the length of the torn tail cut off."""
    if not path.exists():
        abandoned = _abandoned(path)
        if not abandoned:
            return _create(path, [MAGIC]), 0
        abandoned[-1].rename(path)  # a takeover was interrupted between its two renames
    sound = _sound_bytes(path, checked_bytes)  # a damaged journal keeps its name
    taken = path.with_name(f"{path.name}.{time.time_ns()}{TAKEN}")
    path.rename(taken)
    failpoint("journal.taken")
    length = _sound_bytes(taken, sound)
    cut_bytes = taken.stat().st_size - length
    file = _create(path, _blocks(taken, length))
    for old in _abandoned(path):
        old.unlink(missing_ok=True)
    return file, cut_bytes


def holds_journal(path: Path) -> bool:
    """Return True if there is a journal, or one left by an interrupted takeover."""
    return path.exists() or bool(_abandoned(path))


def _abandoned(path: Path) -> list[Path]:
    """Return the files that interrupted takeovers left behind, the newest last."""
    return sorted(path.parent.glob(f"{path.name}.*{TAKEN}"))


def _blocks(path: Path, num_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(min(_BLOCK_BYTES, num_bytes)):
            num_bytes -= len(block)
            yield block


def _create(path: Path, data: Iterable[bytes]) -> FileIO:
    """Write a journal under a temporary name, rename it to `path`, and return the open file."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{NEW}")
    file = temporary.open("w+b", buffering=0)
    os.fchmod(file.fileno(), 0o600)  # it holds the tokens of clients
    try:
        for block in data:
            view = memoryview(block)
            while view:
                view = view[file.write(view) :]
        os.fsync(file.fileno())
        failpoint("journal.created")
        temporary.rename(path)
        sync_directory(path.parent)
    except BaseException:
        file.close()
        raise
    for left in path.parent.glob(f"{path.name}.*{NEW}"):  # left by interrupted starts
        left.unlink(missing_ok=True)
    return file


def _sound_bytes(path: Path, checked_bytes: int) -> int:
    """Return the length of a journal without its torn tail."""
    sound = max(checked_bytes, len(MAGIC))
    for end, _ in records_of(path, checked_bytes):
        sound = end
    return sound


def records_of(path: Path, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the end position and the body of each record, up to a torn tail.

    Read from byte `start`, where a record begins, to byte `stop`. Raise StateError where the file
    is damaged. A record that is being appended is read again while the file grows.
    """
    size = 0  # of the file after the last unsound record
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise StateError(
                f"{path} is not a journal of this version; use --fresh to move the old state aside"
            )
        at = file.seek(max(start, len(MAGIC)))
        while (stop is None or at < stop) and len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, checksum, head_checksum = _HEAD.unpack(head)
            sound_head = zlib.crc32(head[: _SUMMED.size]) == head_checksum
            body = file.read(length) if sound_head else b""
            if sound_head and len(body) == length and zlib.crc32(body) == checksum:
                at += len(head) + length
                yield at, body
            elif _is_empty(file):
                return  # no data after it: a torn last write, or space never written
            elif (grown := file.seek(0, os.SEEK_END)) > size:
                size = grown
                file.seek(at)
            else:
                raise StateError(
                    f"{path} is damaged at byte {at}: restore it from a backup, "
                    "or use --fresh to move the old state aside and begin again"
                )


def _is_empty(file: BinaryIO) -> bool:
    """Return True if the rest of a file is empty or zeros."""
    return not any(any(block) for block in iter(lambda: file.read(_BLOCK_BYTES), b""))


def _head(body: bytes) -> bytes:
    summed = _SUMMED.pack(len(body), zlib.crc32(body))
    return summed + zlib.crc32(summed).to_bytes(4, "little")
