"""Storage protocols of the run. Files in a state directory are the only implementation."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from ssfl.durable.files import Bytes


class LogReader(Protocol):
    """A sequence of records (journal.JournalFile)."""

    def read_from(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the end position and the body of each record between two positions."""
        ...


class Log(LogReader, Protocol):
    """A log that one coordinator at a time may append to (journal.Journal)."""

    @property
    def num_bytes(self) -> int:
        """The length of all records; a position in the log."""
        ...

    def append(self, bodies: Sequence[bytes]) -> None:
        """Return when the records are durable; raise Fenced if the log is no longer ours."""
        ...

    def check_ours(self) -> None:
        """Raise Fenced if another coordinator has taken over the log."""
        ...

    def close(self) -> None: ...


class Blobs(Protocol):
    """Named byte strings that are replaced atomically (blobs.FileBlobs)."""

    def put(self, name: str, data: Bytes | Iterable[Bytes]) -> None:
        """Write a blob; return when its content and name are durable."""
        ...

    def read(self, name: str, start: int = 0, count: int | None = None) -> bytearray:
        """Return up to `count` bytes from `start`; raise FileNotFoundError if missing."""
        ...

    def names(self, prefix: str = "") -> list[str]:
        """Return the names that start with `prefix`, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Remove a blob if it exists."""
        ...
