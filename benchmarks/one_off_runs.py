"""The runs of one_off_bytes.py: coded scores, their masks, and short runs with them."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import resnet_scores
from benchmarks.fashion import (
    NUM_CLIENTS,
    SPARSITY,
    PlainChannel,
    Vector,
    federation,
    mean_scores,
)
from benchmarks.parallel import Report

from ssfl.codec import scores, sorted_bits
from ssfl.method.density import kept_for_sparsity
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask, top_k
from ssfl.method.value_types import random_words

PER_ROUND = 10
LAST = 5  # the final accuracy is the mean of the last rounds


@dataclass(frozen=True)
class ScoreCoding:
    """A way to code scores."""

    mantissa_bits: int
    factor: int  # coded scores, as a multiple of the kept ones; 0: all

    @property
    def name(self) -> str:
        return f"m={self.mantissa_bits}, {f'{self.factor}k' if self.factor else 'all'}"


@dataclass(frozen=True)
class Codings:
    """Codings to try on the scores of some clients."""

    data: Path
    paths: tuple[Path, ...] | None  # files of ResNet-18's scores; None: the CNN's
    clients: int
    codings: tuple[ScoreCoding, ...]


@dataclass(frozen=True)
class CodeResult:
    """The size of a coding, and the quality of its mask."""

    network: str
    clients: int
    coding: ScoreCoding
    coded: float  # coded scores, as a multiple of the kept ones
    bits: float  # per coordinate
    score_bytes: float  # mean over clients
    mask_bytes: int
    share: float  # of 4P + 4W + W/8
    overlap: float  # of kept coordinates with those of the exact mask

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Short:
    """A short run with the mask of a coding; None: with the exact mask."""

    data: Path
    seed: int
    coding: ScoreCoding | None
    rounds: int


def code_scores(work: Codings, report: Report) -> list[CodeResult]:
    """Return the result of each coding; runs in a process of its own."""
    if work.paths:
        network, seed = "ResNet-18", resnet_scores.SETTINGS.seed
        _, manifest, initial = resnet_scores.resnet()
        exact = resnet_scores.read(work.paths)
        weights = dict.fromkeys(exact, 1)
    else:
        network, seed = "CNN", 0
        clients = federation(work.data, seed, NUM_CLIENTS, PER_ROUND)
        manifest, initial, weights = clients.manifest, clients.initial, clients.weights
        exact = clients.scores(list(clients.sites)[: work.clients])
    kept = kept_for_sparsity(SPARSITY, manifest.num_masked)
    wanted = top_k(mean_scores(exact, weights), kept)
    results = []
    for coding in work.codings:
        mask, score_bytes, coded = mask_of(coding, exact, weights, kept, seed)
        mask_bytes = coded_mask_bytes(mask, manifest, initial)
        shared = int(np.count_nonzero(mask.bools() & wanted.bools()))
        paper = 4 * manifest.size + 4 * manifest.num_masked + manifest.num_masked / 8
        results.append(
            CodeResult(
                network,
                len(exact),
                coding,
                coded,
                8 * score_bytes / manifest.num_masked,
                score_bytes,
                mask_bytes,
                (score_bytes + mask_bytes) / paper,
                shared / kept,
            )
        )
    report(10 if work.paths else 4)
    return results


def mask_of(
    coding: ScoreCoding, exact: dict[str, Vector], weights: dict[str, int], kept: int, seed: int
) -> tuple[Mask, float, float]:
    """Return the mask of coded scores, their mean bytes, and codes per kept coordinate."""
    received: dict[str, Vector] = {}
    num_bytes, num_codes = 0, 0
    for client, own in exact.items():
        words = random_words(seed, own.size, "scores", client)
        num_coded = coding.factor * kept or own.size
        payload = scores.encode(own, num_coded, words, coding.mantissa_bits)
        received[client] = scores.decode(payload, own.size)
        num_bytes += len(payload)
        num_codes += int(np.count_nonzero(received[client]))
    mask = top_k(mean_scores(received, weights), kept)
    return mask, num_bytes / len(exact), num_codes / len(exact) / kept


def coded_mask_bytes(mask: Mask, manifest: Manifest, initial: Vector) -> int:
    shapes = [tensor.shape for tensor, _ in manifest.masked()]
    return len(sorted_bits.encode(mask.bits, shapes, initial[: manifest.num_masked]))


def run_short(work: Short, report: Report) -> float:
    """Return the accuracy of a run, the mean of its last rounds; runs in a process of its own."""
    clients = federation(work.data, work.seed, NUM_CLIENTS, PER_ROUND)
    mask = clients.mask
    if work.coding:
        exact = clients.scores(clients.sites)
        mask, *_ = mask_of(work.coding, exact, clients.weights, clients.num_kept, work.seed)
    reached: list[float] = []

    def on_round(round_number: int, base: Vector) -> None:
        if round_number >= work.rounds - LAST:
            reached.append(clients.accuracy(mask, base))
        report(1)

    clients.train(mask, work.rounds, PlainChannel(), on_round)
    return float(np.mean(reached))
