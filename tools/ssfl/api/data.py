"""Shards in memory, as `ssfl shards` writes them and a client reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ssfl.api.errors import flags_as_keywords
from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import ShardError
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.shard_file import MAKE_SHARDS, Shard, find_shard, read_shard, shard_names
from ssfl.datasets.shards.write import make_shards
from ssfl.datasets.source import SourceOptions, read_source
from ssfl.learning.load_task import load_task
from ssfl.program.settings.command_line import closest

Shards = Sequence[Shard] | Mapping[str, Shard]


def digits(
    clients: int = 8, partition: str = "dirichlet", alpha: float = 0.3, seed: int = 0
) -> list[Shard]:
    """Return shards of scikit-learn's digits data set: 1,797 images of 8x8 pixels.

    Examples:
        >>> shards = digits(clients=4)
        >>> [shard.num_samples for shard in shards]
        [325, 325, 324, 324]
        >>> shards[0].train_x.shape, shards[0].num_classes
        ((325, 1, 8, 8), 10)
    """
    return cut("digits", clients=clients, partition=partition, alpha=alpha, seed=seed)


def cut(
    source: DataSet | str | Path,
    *,
    clients: int = 8,
    partition: str = "dirichlet",
    alpha: float = 0.3,
    classes_per_client: int = 2,
    validation: float = 0.1,
    test_share: float = 0.2,
    seed: int = 0,
    **reading: Any,
) -> list[Shard]:
    """Return the shards of a data set, one per client, as `ssfl shards` writes them.

    `source` is a `DataSet` of your own arrays, the name of a known data set (`"mnist"`) or a path,
    as for `ssfl shards --source`. That command's other flags for reading a source are keyword
    arguments here (`label="price"`). Raises SourceError or DownloadError if the source cannot be
    read, and PartitionError if it cannot be cut with these arguments.

    Examples:
        >>> import numpy as np
        >>> x, y = np.eye(6, dtype=np.float32), np.array([0, 1] * 3)
        >>> mine = DataSet("mine", x, y, x[:2], y[:2], class_names=("no", "yes"))
        >>> [shard.num_samples for shard in cut(mine, clients=3, partition="iid", validation=0)]
        [2, 2, 2]
    """
    options = Cut(clients, partition, alpha, classes_per_client, validation, test_share, seed)
    if isinstance(source, DataSet) and reading:
        raise TypeError(f"{next(iter(reading))} is for reading a source; this is a DataSet")
    with flags_as_keywords(), TemporaryDirectory(prefix="ssfl-shards-") as folder:
        options.validate()
        data = source if isinstance(source, DataSet) else _read(source, reading)
        # Write files and read them back, so that pixels are scaled and checked as at a site.
        return [read_shard(path) for path in make_shards(Path(folder), data, options).paths]


def read_shards(folder: str | Path, task: str | Path = "") -> dict[str, Shard]:
    """Return the shards of a folder by client name, sorted by name.

    If `task` names your own task, its `load_shard` reads them. Raises ShardError if the folder has
    no shards or a file is not a shard, and TaskError if the task fails.
    """
    read = load_task(str(task)).load_shard if task else read_shard
    return {name: read(find_shard(name, Path(folder))) for name in shard_names(Path(folder))}


def by_client(shards: Shards) -> dict[str, Shard]:
    """Return shards by client name, in order; those of a list are named shard_00, shard_01, …"""
    if not len(shards):
        raise ShardError(f"there are no shards; {MAKE_SHARDS}")
    if isinstance(shards, Mapping):
        return dict(sorted(shards.items()))
    width = max(2, len(str(len(shards) - 1)))
    return {f"shard_{index:0{width}d}": shard for index, shard in enumerate(shards)}


def _read(source: str | Path, reading: dict[str, Any]) -> DataSet:
    known = [field.name for field in fields(SourceOptions) if field.name != "source"]
    for name in reading:
        if name not in known:
            raise TypeError(f"{name} is not an option of cut{closest(name, known)}")
    paths = {name: Path(reading[name]) for name in ("path", "test") if reading.get(name)}
    return read_source(SourceOptions(str(source), **{**reading, **paths}))
