"""The result of a round at one client."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ssfl.learning.evaluate import Evaluation


@dataclass(frozen=True, slots=True)
class LocalResult:
    """The values to send after local training, and their evaluations."""

    values: npt.NDArray[np.float32]
    training_loss: float
    base: Evaluation  # of the base, before training
    personal: Evaluation  # of the trained model, before it is sent
