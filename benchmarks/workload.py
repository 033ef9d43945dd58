"""The uploads of a benchmark's clients, and the expected results.

Numbers are multiples of 2^-10, drawn from (seed, step, client). Weighted sums of them are exact in
float64, and a quotient of two such small integers is never so near the midpoint of two float32
that rounding twice differs from rounding once: plain numpy gives the exact mean.
"""

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec

SEED = 0  # the coordinator's default
GRID = 2.0**-10
Vector = npt.NDArray[np.float32]


def manifest_of(num_masked: int, num_dense: int) -> Manifest:
    """Return a model of one masked and one dense tensor; no torch is needed to describe it."""
    return Manifest(
        (
            TensorSpec("weight", (num_masked,), Role.MASKED, Init("normal", 0.125)),
            TensorSpec("bias", (num_dense,), Role.DENSE, Init("zeros")),
        ),
        {"name": "benchmark"},
    )


def digest(values: Vector) -> bytes:
    """Return the SHA-256 of the values as sent."""
    return hashlib.sha256(values.astype("<f4").tobytes()).digest()


class Workload:
    """Uploads by client and step, and the results computed the slow, obvious way."""

    def __init__(self, num_masked: int, num_dense: int, weights: list[int]) -> None:
        self.manifest = manifest_of(num_masked, num_dense)
        self.weights = weights  # training samples, by client
        self.initial = initial_vector(self.manifest, SEED)
        self.num_kept = num_masked // 10  # sparsity 0.9

    def scores(self, client: int) -> Vector:
        """Return a client's scores: never negative, often equal."""
        return _draw(0, client, 0, self.manifest.num_masked)

    def update(self, round_number: int, client: int) -> Vector:
        """Return a client's values after a round."""
        count = self.num_kept + self.manifest.num_unmasked
        return _draw(1 + round_number, client, -1024, count)

    def expected_mask(self) -> npt.NDArray[np.bool_]:
        """Return the mask of the largest mean scores; ties go to the lowest coordinate."""
        mean = self._mean(self.scores)
        order = np.argsort(-mean, kind="stable")
        kept = np.zeros(mean.size, dtype=np.bool_)
        kept[order[: self.num_kept]] = True
        return kept

    def expected_base(self, rounds_done: int) -> Vector:
        """Return the global values after `rounds_done` rounds."""
        if rounds_done == 0:
            kept, size = self.expected_mask(), self.manifest.num_masked
            return np.concatenate([self.initial[:size][kept], self.initial[size:]])
        return self._mean(lambda client: self.update(rounds_done - 1, client))

    def _mean(self, upload_of: Callable[[int], Vector]) -> Vector:
        total = np.zeros_like(upload_of(0), dtype=np.float64)
        for client, weight in enumerate(self.weights):
            total += weight * upload_of(client).astype(np.float64)
        return (total / sum(self.weights)).astype(np.float32)


def _draw(step: int, client: int, low: int, count: int) -> Vector:
    units = np.random.default_rng((SEED, step, client)).integers(low, 1024, count)
    return (units * GRID).astype(np.float32)
