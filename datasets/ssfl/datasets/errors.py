"""Exceptions of `ssfl.datasets`.

DataError
├─ ShardError      a shard file is missing, unreadable or malformed
├─ SourceError     an original data set is missing, unreadable or malformed
│  └─ OptionError  an option has an invalid value or does not apply to the source
├─ DownloadError   a download failed, or its checksum is not the published one
└─ PartitionError  the data cannot be cut among the clients as requested
"""

from collections.abc import Iterator
from contextlib import contextmanager


class DataError(Exception):
    """Base class of all exceptions of `ssfl.datasets`."""


class ShardError(DataError):
    """The shard cannot be used; the message names the file and what to change."""


class SourceError(DataError):
    """The data set cannot be used; the message names the file and what to change."""


class OptionError(SourceError):
    """An option is invalid for this source; the message names the flag."""


class DownloadError(DataError):
    """A download failed; the message names the URL and the path for a manual download."""


class PartitionError(DataError):
    """The partition is impossible; the message suggests one that is possible."""


@contextmanager
def errors_of(place: object) -> Iterator[None]:
    """Prefix the message of a ShardError or SourceError with the file or folder it is about."""
    try:
        yield
    except (ShardError, SourceError) as error:
        raise type(error)(f"{place}: {error}") from error
