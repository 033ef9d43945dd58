"""A whole data set as read from its source, before it is cut among clients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Progress = Callable[[str, int, int], None]  # the current task, units done, units in total


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples and targets, each in the narrowest type that holds them."""

    name: str
    # Images (N, C, H, W) uint8, uint16 or float32; tables (N, columns) float32;
    # sequences (N, length) int32 or int64.
    train_x: Array
    train_y: Array  # (N,) int64, 0 … num_classes-1; for numbers float32, (N,) or (N, d)
    test_x: Array  # (M, ...) as train_x; if M is 0, a share of train is set aside
    test_y: Array  # (M,)
    class_names: tuple[str, ...] = ()  # by class number; empty if the targets are numbers
    notes: tuple[str, ...] = ()  # changes made while reading, for the user ("12 rows dropped")
    columns: tuple[dict[str, Any], ...] = ()  # table: how to prepare each column, for `new_rows`

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 if the targets are numbers."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.train_x.shape[1:]
