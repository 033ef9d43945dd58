from ssfl.datasets import errors
from ssfl.datasets.errors import DataError


def test_the_docstring_names_every_error() -> None:
    names = {error.__name__ for error in DataError.__subclasses__()}
    assert names == {"ShardError", "SourceError", "DownloadError", "PartitionError"}
    assert all(name in (errors.__doc__ or "") for name in names)
