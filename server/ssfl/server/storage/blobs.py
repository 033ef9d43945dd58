"""Blobs as files of one directory."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ssfl.durable.files import Bytes, write_atomic


@dataclass(frozen=True, slots=True)
class FileBlobs:
    """The files of a directory; each is written completely, synced, then renamed into place."""

    root: Path

    def put(self, name: str, data: Bytes | Iterable[Bytes]) -> None:
        """Write a file; return when its content and name are on disk."""
        write_atomic(self.root / name, data)

    def read(self, name: str, start: int = 0, count: int | None = None) -> bytearray:
        """Return up to `count` bytes from `start`; raise FileNotFoundError if missing."""
        with (self.root / name).open("rb") as file:
            rest = max(0, os.fstat(file.fileno()).st_size - start)
            data = bytearray(rest if count is None else min(rest, count))
            file.seek(start)
            del data[file.readinto(data) :]
            return data

    def names(self, prefix: str = "") -> list[str]:
        """Return the file names that start with `prefix`, sorted."""
        if not self.root.is_dir():
            return []
        with os.scandir(self.root) as entries:
            return sorted(
                entry.name for entry in entries if entry.name.startswith(prefix) and entry.is_file()
            )

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""
        (self.root / name).unlink(missing_ok=True)
