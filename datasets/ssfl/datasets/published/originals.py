"""Shared by the readers of published files: missing files, checksums, archives in memory.

Archives are never unpacked to disk. Members are matched by file name, so a path such as ../../x has
no effect. The size of a member is limited before it is read.
"""

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from ssfl.datasets.errors import SourceError, errors_of

MAX_MEMBER_BYTES = 256 << 20  # the largest published file, train.bin of CIFAR-100, has 154 MB
MAX_ARCHIVE_BYTES = 1 << 30
FETCH_AGAIN = "it may be cut short; delete it and download it again"


class MissingFiles(SourceError):
    """Files of a published data set were not found."""

    def __init__(self, missing: Iterable[str], *, partly: bool) -> None:
        self.missing = tuple(missing)
        self.partly = partly  # True if other files of the set were found
        super().__init__(f"missing: {', '.join(self.missing)}")


def checksum_notes(name: str, data: bytes, published: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note if the checksum of file `name` is not the published SHA-1 or MD5.

    The checksums detect corrupted files but do not protect from an attacker.
    """
    expected = published.get(name, "")
    kind = "sha1" if len(expected) == 40 else "md5"
    found = hashlib.new(kind, data, usedforsecurity=False).hexdigest()
    return (f"{name} is not the published file",) if expected and found != expected else ()


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file; raise SourceError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error


def read_tar(path: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """Return those members of a .tar.gz whose file name is in `wanted`."""
    names = set(wanted)
    found: dict[str, bytes] = {}
    try:
        with errors_of(path), gzip.open(path, "rb") as file:
            whole = _LimitedReader(file, MAX_ARCHIVE_BYTES)
            # Stream mode ("r|") unpacks each byte once, so the limit counts every byte.
            with tarfile.open(fileobj=io.BufferedReader(whole), mode="r|") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if name in names and member.isreg():
                        found[name] = _read_member(archive, member, name in found)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise SourceError(f"{path} cannot be unpacked ({error}): {FETCH_AGAIN}") from error
    return found


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, is_second: bool) -> bytes:
    if is_second:
        raise SourceError(f"{PurePosixPath(member.name).name} is in the archive twice")
    if member.size > MAX_MEMBER_BYTES:
        raise SourceError(
            f"{member.name} holds {member.size:,} bytes; no published file has more than "
            f"{MAX_MEMBER_BYTES:,}"
        )
    file = archive.extractfile(member)
    data = file.read() if file is not None else b""
    if len(data) != member.size:
        raise SourceError(f"{member.name} is cut short")
    return data


class _LimitedReader(io.RawIOBase):
    """A stream that raises SourceError after `limit` bytes."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, limit: int) -> None:
        self._file = file
        self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._file.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise SourceError(f"it unpacks to more than {MAX_ARCHIVE_BYTES:,} bytes")
        buffer[: len(data)] = data
        return len(data)


def cache_folder(name: str) -> Path:
    """Return the folder for downloads of a published data set: ~/.cache/ssfl/<name>."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(chosen) if chosen.startswith("/") else Path.home() / ".cache"
    return base / "ssfl" / name
