"""The kept weights of a mask, by tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Layers:
    """The masked tensors, in the model's order.

    Attributes:
        names: as in the model's `state_dict`
        kept: number of weights that the mask keeps
        size: number of weights

    Examples:
        >>> layers = Layers.of({"conv.weight": (30, 40), "linear.weight": (10, 100)})
        >>> layers.names, layers.density.tolist()
        (('conv.weight', 'linear.weight'), [0.75, 0.1])
    """

    names: tuple[str, ...]
    kept: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]

    @property
    def density(self) -> npt.NDArray[np.float64]:
        """The share of kept weights."""
        return self.kept / self.size

    @classmethod
    def of(cls, counts: Mapping[str, tuple[int, int]]) -> "Layers":
        """Return the layers for pairs (kept, size) by name."""
        table = np.array(list(counts.values()), dtype=np.int64).reshape(-1, 2)
        return cls(tuple(counts), table[:, 0], table[:, 1])
