"""Results at a site: tests of a model, and a round of local training."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Sums over samples, so that evaluations of several shards can be added."""

    correct: int | None  # None: the task has no accuracy, or there were no samples
    total: int
    loss_sum: float
    metric_sums: Mapping[str, float] = field(default_factory=dict)  # of the other metrics


@dataclass(frozen=True, slots=True)
class LocalResult:
    """The values after local training, and their evaluations."""

    values: npt.NDArray[np.float32]  # kept values, then unmasked ones
    training_loss: float
    base: Evaluation  # of the base, before training
    personal: Evaluation  # of the trained model
