"""What the run needs of durable storage. Files in a state directory are the one implementation."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from ssfl.durable.files import Bytes


class LogReader(Protocol):
    """A sequence of records (journal.JournalFile)."""

    def read_from(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the position behind each record, and its body, between two positions."""
        ...


class Log(LogReader, Protocol):
    """A log that one coordinator at a time may extend (journal.Journal)."""

    @property
    def num_bytes(self) -> int:
        """The length of all records; a position in the log."""
        ...

    def append(self, bodies: Sequence[bytes]) -> None:
        """Return when the records are durable and the log is still ours; else raise Fenced."""
        ...

    def check_ours(self) -> None:
        """Raise Fenced if another coordinator has taken the log over."""
        ...

    def close(self) -> None: ...


class Blobs(Protocol):
    """Named byte strings that are replaced whole or not at all (blobs.FileBlobs)."""

    def put(self, name: str, data: Bytes | Iterable[Bytes]) -> None:
        """Return when the content and the name are durable."""
        ...

    def read(self, name: str, start: int = 0, count: int | None = None) -> bytearray:
        """Return up to `count` bytes from `start` on; raise FileNotFoundError."""
        ...

    def names(self, prefix: str = "") -> list[str]:
        """Return the names that begin with `prefix`, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Remove a name; nothing happens if there is none."""
        ...
