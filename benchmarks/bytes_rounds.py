"""The bytes of a client in a run: once before training, and per round.

The paper's accounting uses formulas: initial weights 4P, scores 4W and a bitmask W/8 once, then
4sP in each direction of a round. Ours is encoded from real saliency: weights follow from a seed,
scores use a logarithmic code, and masks are sorted bits; a round has 4 bytes per value. (Values can
be coded, too: bytes_run.py measures that.)

Only the score code is lossy: `mask_overlap` is the share of the exact mask that the mask of the
coded scores keeps.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from benchmarks.bytes_encodings import DENSITIES
from benchmarks.bytes_models import SIDE, ImageSet, NetworkCase, Vector

from ssfl.codec import scores, sorted_bits
from ssfl.learning import image_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.flatten import write_vector
from ssfl.learning.models import build_model
from ssfl.learning.saliency import score_locally
from ssfl.method.initialize import initial_vector
from ssfl.method.mask import top_k
from ssfl.method.settings import RunSettings

SETTINGS = RunSettings()  # the scoring minibatch: 16 samples, class-balanced
SCORERS = 5
CODED_PER_KEPT = 3  # coded scores per kept weight
SEED_BYTES = 8
CLIENTS, SAMPLED = 100, 10  # of the paper's federation: in total and per round


@dataclass(frozen=True)
class Cost:
    """Bytes of one client: once, and per direction of a round."""

    initial: int
    scores: int
    mask: int
    up: int
    down: int

    @property
    def once(self) -> int:
        return self.initial + self.scores + self.mask

    @property
    def per_round(self) -> int:
        return self.up + self.down

    def after(self, rounds: float) -> float:
        return self.once + rounds * self.per_round

    def rounds_to_beat(self, other: "Cost") -> float:
        """Return the round from which a client has fewer bytes than with `other`.

        0: from the start; infinity: never.
        """
        dearer, saved = self.once - other.once, other.per_round - self.per_round
        if dearer <= 0:
            return 0.0 if saved >= 0 else math.inf
        return dearer / saved if saved > 0 else math.inf

    def to_dict(self) -> dict[str, int]:
        return {
            "initial_bytes": self.initial,
            "scores_bytes": self.scores,
            "mask_bytes": self.mask,
            "once_bytes": self.once,
            "up_bytes": self.up,
            "down_bytes": self.down,
        }


@dataclass(frozen=True)
class Budget:
    """One network at one density, with each way of sending it."""

    model: str
    density: float
    costs: dict[str, Cost]
    mask_overlap: float

    def break_even(self, name: str) -> dict[str, float]:
        """Return when a way beats dense FedAvg, in rounds of the client and of the server."""
        own = self.costs[name].rounds_to_beat(self.costs["fedavg"])
        return {"own_rounds": own, "server_rounds": own * CLIENTS / SAMPLED}

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "density": self.density,
            "mask_overlap": round(self.mask_overlap, 4),
            "costs": {name: cost.to_dict() for name, cost in self.costs.items()},
            "break_even_with_fedavg": {
                name: self.break_even(name) for name in self.costs if name != "fedavg"
            },
        }


def budgets(case: NetworkCase, images: ImageSet) -> Iterator[Budget]:
    """Yield the budget of one network at every density."""
    model = build_model(case.model, (3, SIDE, SIDE), case.num_classes)
    manifest = manifest_of(model, {})
    vector = initial_vector(manifest, SETTINGS.seed)
    write_vector(model, manifest, vector)
    reports = [
        score_locally(
            model,
            manifest,
            image_task,
            images.shard(client, case.num_classes),
            SETTINGS,
            str(client),
        )
        for client in range(SCORERS)
    ]
    shapes = [tensor.shape for tensor, _ in manifest.masked()]
    size, num_masked = manifest.size, manifest.num_masked
    for density in DENSITIES:
        num_kept = int(density * num_masked)
        exact = top_k(_mean(reports), num_kept)
        payloads = [_coded_scores(report, num_kept, i) for i, report in enumerate(reports)]
        mask = top_k(_mean([scores.decode(payload, num_masked) for payload in payloads]), num_kept)
        sent = sorted_bits.encode(mask.bits, shapes, vector[:num_masked])
        if sorted_bits.decode(sent, shapes, vector[:num_masked]) != mask.bits:
            raise RuntimeError("the decoded mask differs")
        values = 4 * (num_kept + manifest.num_unmasked)
        per_client = round(sum(map(len, payloads)) / SCORERS)
        costs = {
            "fedavg": Cost(SEED_BYTES, 0, 0, 4 * size, 4 * size),
            "paper": _as_the_paper_counts(size, num_masked, density),
            "ours": Cost(SEED_BYTES, per_client, len(sent), values, values),
        }
        overlap = np.count_nonzero(exact.bools() & mask.bools()) / num_kept
        yield Budget(case.name, float(density), costs, float(overlap))


def _as_the_paper_counts(size: int, num_masked: int, density: Fraction) -> Cost:
    values = 4 * int(density * size)
    return Cost(4 * size, 4 * num_masked, -(-num_masked // 8), values, values)


def _coded_scores(report: Vector, num_kept: int, client: int) -> memoryview:
    words = np.random.default_rng(client).integers(0, 1 << 32, report.size, dtype=np.uint32)
    return scores.encode(report, min(report.size, CODED_PER_KEPT * num_kept), words)


def _mean(vectors: list[Vector]) -> Vector:
    """Return the mean of vectors of clients with the same number of samples."""
    total = np.zeros(vectors[0].size, dtype=np.float64)
    for vector in vectors:
        total += vector
    return (total / len(vectors)).astype(np.float32)
