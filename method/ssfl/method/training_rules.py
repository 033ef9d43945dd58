"""Rules that change every step of local training. They are data, so clients can train in a batch.

The vectors of a rule have the kept values of the mask that is trained, then the unmasked values.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Pull:
    """Draws the weights w towards a vector.

    After every step: w -= rate * strength * (w - toward). With `in_gradient`, instead, before every
    step: gradient += strength * (w - toward), so that clipping and momentum apply to it.
    """

    toward: Vector
    strength: float
    in_gradient: bool = False


@dataclass(frozen=True, eq=False)
class Correction:
    """Before every step, and before clipping: gradient += vector."""

    vector: Vector


TrainingRule = Pull | Correction
