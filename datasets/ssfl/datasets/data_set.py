"""A whole data set, as read from its source and before it is cut among clients."""

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples and targets, in the narrowest type that holds them; sources return it."""

    name: str
    # Images (N, C, H, W) uint8, uint16 or float32; tables (N, columns) float32;
    # sequences (N, length) int32 or int64.
    train_x: Array
    train_y: Array  # (N,) int64: 0 … num_classes-1; or float32, also (N, d): numbers to predict
    test_x: Array  # (M, ...) as train_x; M may be 0: then a share of train is set aside
    test_y: Array  # (M,)
    class_names: tuple[str, ...] = ()  # of class 0, 1, …; empty: the targets are numbers
    notes: tuple[str, ...] = ()  # what was done on the way, for the person ("12 rows dropped")
    columns: tuple[dict[str, Any], ...] = ()  # table: how each became inputs, for `new_rows`

    @property
    def num_classes(self) -> int:
        """How many classes there are; 0 if the targets are numbers."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.train_x.shape[1:]
