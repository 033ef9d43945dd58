"""What the readers of published files share: missing files, checksums, archives read in memory.

An archive is never unpacked to the disk: its members are looked up by name, so that a member
called ../../x is only a name nobody asks for. How much a member may hold is bounded before it is
read, whatever its header says.
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

from ssfl.datasets.errors import SourceError

MAX_MEMBER_BYTES = 256 << 20  # the largest published file, train.bin of CIFAR-100, is 154 MB
MAX_ARCHIVE_BYTES = 1 << 30
FETCH_AGAIN = "it may be cut short; remove it and fetch it again"


class MissingFiles(SourceError):
    """Files of a known set are not where they were looked for."""

    def __init__(self, missing: Iterable[str], *, partly: bool) -> None:
        self.missing = tuple(missing)
        self.partly = partly  # others of the set were there
        super().__init__(f"missing: {', '.join(self.missing)}")


def digest(data: bytes | memoryview, like: str) -> str:
    """Return the checksum of `data`, of the kind `like` is: SHA-1 (40 digits) or MD5 (32)."""
    made = hashlib.sha1(usedforsecurity=False) if len(like) == 40 else new_md5()
    made.update(data)
    return made.hexdigest()


def new_md5() -> "hashlib._Hash":
    """Return an empty MD5: it tells published files from others, not friends from foes."""
    return hashlib.md5(usedforsecurity=False)


def checksum_notes(name: str, data: bytes, published: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note if the file called `name` has another checksum than the published one."""
    expected = published.get(name)
    if expected is None or digest(data, expected) == expected:
        return ()
    return (f"{name} is not the published file",)


def read_bytes(path: Path) -> bytes:
    """Return what a file holds."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error


def read_tar(path: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """Return the members of a .tar.gz whose last name is among `wanted`, as far as there are."""
    names = set(wanted)
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path, "rb") as file:
            whole = _LimitedReader(file, MAX_ARCHIVE_BYTES)
            # As a stream ("r|"): each byte is unpacked once and counted.
            with tarfile.open(fileobj=io.BufferedReader(whole), mode="r|") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if name in names and member.isreg():
                        found[name] = _read_member(archive, member, name in found)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise SourceError(f"{path} cannot be unpacked ({error}): {FETCH_AGAIN}") from error
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from error
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
    """A stream that fails after so many bytes instead of filling the memory."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, most: int) -> None:
        self._file = file
        self._left = most

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
    """Return where the files of a known set are kept: ~/.cache/ssfl/<name>."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(chosen) if chosen.startswith("/") else Path.home() / ".cache"
    return base / "ssfl" / name
