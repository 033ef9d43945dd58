"""Why data cannot be used.

DataError
├─ ShardError      a shard file is missing, unreadable or not what the format says
├─ SourceError     an original data set is missing, unreadable or not what its format says
│  └─ OptionError  an option of reading it has no such value, or does not apply
├─ DownloadError   a data set could not be fetched, or what came is not the published file
└─ PartitionError  the data cannot be cut among the clients as asked
"""


class DataError(Exception):
    """Base of everything `ssfl.datasets` raises on purpose."""


class ShardError(DataError):
    """The shard cannot be used; the message names the file and what to change."""


class SourceError(DataError):
    """The data set cannot be used; the message names the file and what to change."""


class OptionError(SourceError):
    """Ask otherwise; the message names the flag."""


class DownloadError(DataError):
    """Try again, or fetch the file by hand; the message says from where and to where."""


class PartitionError(DataError):
    """Ask for another cut; the message says which would do."""
