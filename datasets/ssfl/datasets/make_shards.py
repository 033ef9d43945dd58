"""Cutting a data set into shard files, one per client."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.datasets.cut import Cut
from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import ShardError
from ssfl.datasets.partition import count_classes, partition, partition_test
from ssfl.datasets.shards import Shard, write_shard


@dataclass(frozen=True, eq=False)
class ShardSummary:
    """What was written, for a table."""

    paths: tuple[Path, ...]
    train_counts: npt.NDArray[np.int64]  # (clients, num_classes)
    test_counts: npt.NDArray[np.int64]  # (clients, num_classes)


def make_shards(out: Path, data: DataSet, cut: Cut, *, overwrite: bool = False) -> ShardSummary:
    """Write `shard_00.npz` … into `out` and return what each holds.

    A folder that already holds shards is refused; with `overwrite` its shard files are removed
    first, so that no shard of another partition stays among the new ones.
    """
    old = sorted(out.glob("shard_*.npz"))
    if old and not overwrite:
        raise ShardError(f"{out} already holds {len(old)} shards; add --overwrite to replace them")
    whole = data
    train = partition(whole.train_y, cut.clients, cut.partition, cut.alpha, cut.seed)
    train_counts = count_classes(whole.train_y, train, whole.num_classes)
    test = partition_test(whole.test_y, train_counts)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path in old:
            path.unlink()
        paths = _write(out, whole, zip(train, test, strict=True), cut.clients)
    except OSError as error:
        raise ShardError(f"cannot write shards into {out}: {error}") from error
    return ShardSummary(paths, train_counts, count_classes(whole.test_y, test, whole.num_classes))


def _write(
    out: Path,
    whole: DataSet,
    parts: Iterable[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    clients: int,
) -> tuple[Path, ...]:
    width = max(2, len(str(clients - 1)))
    paths = []
    for client, (train, test) in enumerate(parts):
        shard = Shard(
            whole.train_x[train],
            whole.train_y[train],
            whole.test_x[test],
            whole.test_y[test],
            whole.num_classes,
            class_names=whole.class_names,
        )
        paths.append(out / f"shard_{client:0{width}d}.npz")
        write_shard(paths[-1], shard)
    return tuple(paths)
