"""The result of a round at one client."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ssfl.learning.evaluate import Evaluation


@dataclass(frozen=True, slots=True)
class LocalResult:
    """What a client has after local training: the values that travel, and how good they are."""

    values: npt.NDArray[np.float32]
    training_loss: float
    base: Evaluation  # the base, tested before training
    personal: Evaluation  # the trained model, tested before it is sent
