"""Assign samples to clients, before anything is written."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import PartitionError
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.partition import count_classes, partition, partition_test
from ssfl.datasets.shards.shard_file import Shard, check_inputs, check_pair
from ssfl.datasets.shards.split import choose_share, groups_of
from ssfl.method.streams import Stream

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Assignment:
    """The samples of every client, as indices into the data set, and their counts per group."""

    data: DataSet
    train: list[Indices]  # into data.train_x
    val: list[Indices]  # into data.train_x
    test: list[Indices]  # into data.test_x, or into data.train_x if `test_set_aside`
    test_set_aside: bool
    group_names: tuple[str, ...]  # classes, or intervals if the targets are numbers
    train_counts: Indices  # all counts are (clients, groups)
    val_counts: Indices
    test_counts: Indices

    def shards(self) -> Iterator[Shard]:
        """Yield the shards client by client, so that only one is in memory at a time."""
        data = self.data
        x, y, classes = data.train_x, data.train_y, data.num_classes
        test_x, test_y = (x, y) if self.test_set_aside else (data.test_x, data.test_y)
        for train, val, test in zip(self.train, self.val, self.test, strict=True):
            mine = (x[train], y[train], test_x[test], test_y[test], classes, x[val], y[val])
            yield Shard(*mine, class_names=data.class_names)


def assign(data: DataSet, cut: Cut) -> Assignment:
    """Assign samples to clients; raise PartitionError if the cut is impossible."""
    _check(data, cut)
    groups = groups_of(data)
    # If the data set has no test samples, some training samples are set aside for testing. Every
    # class keeps at least one training sample, or it could not be learned.
    share = 0.0 if len(data.test_y) else cut.test_share
    stream = Stream(cut.seed, "partition", "test")
    aside = choose_share(groups.train, share, stream, keep_each=True)
    rest = np.delete(np.arange(len(groups.train)), aside)
    how = (cut.clients, cut.partition, cut.alpha, cut.seed, cut.classes_per_client)
    parts = [rest[part] for part in partition(groups.train[rest], *how, groups.names)]
    counts = count_classes(groups.train, parts, len(groups.names))
    test_groups = groups.train[aside] if len(aside) else groups.test
    test = partition_test(test_groups, counts)
    val = []
    for client, part in enumerate(parts):
        stream = Stream(cut.seed, "partition", "validation", client)
        held = choose_share(groups.train[part], cut.validation, stream, keep_each=False)
        val.append(part[held])
    val_counts = count_classes(groups.train, val, len(groups.names))
    train = [np.setdiff1d(*pair, assume_unique=True) for pair in zip(parts, val, strict=True)]
    return Assignment(
        data,
        train,
        val,
        [aside[part] for part in test] if len(aside) else test,
        bool(len(aside)),
        groups.names,
        counts - val_counts,
        val_counts,
        count_classes(test_groups, test, len(groups.names)),
    )


def _check(data: DataSet, cut: Cut) -> None:
    if not len(data.train_y):
        raise PartitionError("the data set has no training samples")
    if cut.partition == "classes" and not data.num_classes:
        raise PartitionError(
            "--partition classes needs classes, but the targets are numbers: "
            "use iid, dirichlet or dirichlet-unbalanced"
        )
    for part, x, y in (("train", data.train_x, data.train_y), ("test", data.test_x, data.test_y)):
        check_inputs(f"{part}_x", x)
        check_pair(part, x, y, data.num_classes)
    _refuse_constant(data)


def _refuse_constant(data: DataSet) -> None:
    """Raise PartitionError if all training samples have the same target."""
    first = data.train_y[0]
    if (data.train_y != first).any():
        return
    if data.num_classes:
        raise PartitionError(
            f"all training samples have one class ({data.class_names[first]!r}), "
            "but a classifier needs at least two"
        )
    raise PartitionError(
        "the number to predict is the same in all training samples, so there is nothing to learn"
    )
